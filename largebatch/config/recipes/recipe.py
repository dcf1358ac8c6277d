"""A recipe file with what it says of its sources."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.config import Config, adjusted, options
from largebatch.config.load import check_length, frozen
from largebatch.config.recipe_file import execute, find, label
from largebatch.config.recipes.published import UNVERIFIED, Published
from largebatch.errors import ConfigError, did_you_mean

# What a recipe says of the place where it runs, and not of the run that it repeats.
_OWN = ("data.source", "run.seed")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe of ``configs/``."""

    name: str
    path: Path
    title: str
    """First line of its docstring."""
    about: str
    """All of it."""
    config: Config
    published: Published | None
    """None for recipes of our own."""
    sources: Mapping[str, str]
    """{option: tag}, of `largebatch.config.recipes.TAGS`."""

    @property
    def samples_per_step(self) -> int:
        """The global batch, at first."""
        return self.config.batch.images

    @property
    def unverified(self) -> tuple[str, ...]:
        """Options whose values no primary or secondary source gives."""
        return tuple(key for key, tag in self.sources.items() if tag in UNVERIFIED)

    def values(self) -> Iterator[tuple[str, Any, str]]:
        """(option, value, tag) of every option that the recipe sets or has a source for."""
        for key, value, field in options(self.config):
            tag = self.sources.get(key, "")
            if tag or value != field.default:
                yield key, value, tag

    def untagged(self) -> tuple[str, ...]:
        """Options that decide the mathematics, are not at their defaults and have no source."""
        return tuple(
            key
            for key, value, field in options(self.config)
            if value != field.default
            and field.metadata["mathematics"]
            and key not in self.sources
            and key not in _OWN
        )


def load_recipe(path: str | Path, overrides: Sequence[tuple[str, str]] = ()) -> Recipe:
    """The recipe at ``path``, its configuration with overrides as of `largebatch.config.load`.

    Raises:
      ConfigError: no such file, it raises, or it tags what is no option.
    """
    path = find(path)
    found, module = execute(path)
    recipe = frozen(found, overrides)
    config = adjusted(recipe, overrides)
    check_length(recipe, config, overrides)
    tagged = getattr(module, "SOURCES", {})
    known = [key for key, _, _ in options(config)]
    for key in tagged:
        if key not in known:
            raise ConfigError(f"{path} SOURCES: {key!r} is no option; {did_you_mean(key, known)}")
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
    """The recipes of a folder, by name.

    Raises:
      ConfigError: there are none.
    """
    paths = sorted(folder.glob("*.py"))
    if not paths:
        raise ConfigError(
            f"no recipes in {folder}; give a folder of Python files with get_config()"
        )
    return tuple(load_recipe(path) for path in paths)
