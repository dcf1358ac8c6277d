"""A recipe with the facts of its published run and the sources of its values."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.config import Config, adjusted, freeze, options
from largebatch.config.recipe_file import execute, find, label
from largebatch.errors import ConfigError, did_you_mean

TAGS: Mapping[str, str] = {
    "S": "read in a primary source: the submitter's own files or logs",
    "A": "read in an abstract, in the press or in notes on the paper",
    "D": "computed from values with tag S",
    "M": "from memory, without a source: unverified",
    "C": "copied from a related run: unverified for this run",
    "U": "not published, chosen here: unverified",
}
"""Tags for the source of a value, with their meanings."""

UNVERIFIED = frozenset("MCU")


@dataclasses.dataclass(frozen=True)
class Published:
    """Published facts about a run; None: unknown."""

    source: str
    """Paper, or repository and directory."""
    provenance: str
    """Tags from `TAGS` for the facts of this class."""
    devices: str
    """Description of the devices, as published."""
    device_count: int | None = None
    """Number of devices that computed workers."""
    cluster: str = ""
    """Name of the hardware in `largebatch.planning`; empty: not modelled."""
    epochs: float | None = None
    """Number of epochs to `top1_percent`."""
    top1_percent: float | None = None
    """Top-1 accuracy; the mean of several runs, or the middle of a range."""
    seconds: float | None = None
    """Training time by the rules at the time of publication."""
    target_percent: float | None = None
    """Top-1 accuracy that stopped the clock."""
    mlperf: str = ""
    """Round and division of an MLPerf submission; empty: none."""
    software: str = ""
    """MLPerf round closest in time, for predictions; empty: the round of ``mlperf``."""

    @property
    def round(self) -> str:
        """MLPerf round of the software, for predictions; empty: unknown."""
        return self.software or (self.mlperf.split()[0] if self.mlperf.startswith("v") else "")


def sources(**options: str) -> dict[str, str]:
    """Return {option: tag} from the options of each tag, such as ``S="schedule.peak norm.span"``.

    Raises:
      ConfigError: a tag is unknown, or an option has two tags.
    """
    found: dict[str, str] = {}
    for tag, names in options.items():
        if tag not in TAGS:
            raise ConfigError(f"SOURCES: unknown tag {tag!r}; {did_you_mean(tag, TAGS)}")
        for name in names.split():
            if name in found:
                raise ConfigError(f"SOURCES: {name} has the tags {found[name]} and {tag}; keep one")
            found[name] = tag
    return found


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
