"""Published facts about a run, and tags for the sources of its values."""

import dataclasses
from collections.abc import Mapping

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
