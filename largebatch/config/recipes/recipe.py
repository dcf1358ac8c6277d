"""Loading of a recipe with the sources of its values."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.config import Config, adjusted, freeze, options
from largebatch.config.recipe_file import execute, find, label
from largebatch.config.recipes.published import UNVERIFIED, Published
from largebatch.errors import ConfigError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe in ``configs/``."""

    name: str
    path: Path
    title: str
    """First line of the recipe's docstring."""
    about: str
    """The recipe's docstring."""
    config: Config
    published: Published | None
    """None: not a published run."""
    sources: Mapping[str, str]
    """{option: tag}, of `largebatch.config.recipes.TAGS`."""

    @property
    def samples_per_step(self) -> int:
        """Global batch size of the first stage."""
        return self.config.batch.images

    @property
    def unverified(self) -> tuple[str, ...]:
        """Options with values that no primary or secondary source documents."""
        return tuple(key for key, tag in self.sources.items() if tag in UNVERIFIED)

    def values(self) -> Iterator[tuple[str, Any, str]]:
        """Yield (option, value, tag) of each option that the recipe sets or has a source for."""
        for key, value, field in options(self.config):
            tag = self.sources.get(key, "")
            if tag or value != field.default:
                yield key, value, tag


def load_recipe(
    path: str | Path,
    overrides: Sequence[tuple[str, str]] = (),
    note: Callable[[str], None] = lambda text: None,
) -> Recipe:
    """Load the recipe at ``path`` and apply overrides like `largebatch.config.load`.

    Raises:
      ConfigError: the file does not exist or raises, or its ``SOURCES`` has an unknown option.
    """
    path = find(path)
    found, module = execute(path)
    config = adjusted(freeze(found, overrides), overrides, note)
    tagged = getattr(module, "SOURCES", {})
    known = [key for key, _, _ in options(config)]
    for key in tagged:
        if key not in known:
            raise ConfigError(f"{path} SOURCES: unknown option {key!r}; {did_you_mean(key, known)}")
    about = (module.__doc__ or "").strip()
    return Recipe(
        name=label(path),
        path=path,
        title=about.partition("\n")[0].rstrip("."),
        about=about,
        config=config,
        published=getattr(module, "PUBLISHED", None),
        sources=tagged,
    )


def all_recipes(folder: Path) -> tuple[Recipe, ...]:
    """Return the recipes of a directory, sorted by name.

    Raises:
      ConfigError: the directory has no recipes.
    """
    paths = sorted(folder.glob("*.py"))
    if not paths:
        raise ConfigError(
            f"no recipes in {folder}; use a directory of Python files with get_config()"
        )
    return tuple(load_recipe(path) for path in paths)
