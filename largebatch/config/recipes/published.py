"""What was published of a run, and how well each of its values is known."""

import dataclasses
from collections.abc import Mapping

from largebatch.errors import ConfigError, did_you_mean

TAGS: Mapping[str, str] = {
    "S": "read in a primary source: the submitter's own files or logs",
    "A": "read in an abstract, in the press or in somebody's notes on the paper",
    "D": "computed from values of S",
    "M": "from memory, found nowhere: unverified",
    "C": "carried over from a sister run: unverified for this one",
    "U": "published nowhere, chosen here: unverified",
}
"""Tag of a value's source, and its meaning."""

UNVERIFIED = frozenset("MCU")


@dataclasses.dataclass(frozen=True)
class Published:
    """The row of a run in the literature. None: not known."""

    source: str
    """Paper, or repository and folder."""
    provenance: str
    """Tags of the row as a whole, of `TAGS`."""
    devices: str
    """As published, for people."""
    device_count: int | None = None
    """Devices that each computed a worker or more."""
    cluster: str = ""
    """Name of such machines in `largebatch.planning`; empty: not modelled."""
    epochs: float | None = None
    """Epochs to the accuracy below."""
    top1_percent: float | None = None
    """Of the run; where several were logged their mean, or the middle of their range."""
    seconds: float | None = None
    """Time of the run, by the rules of its day."""
    target_percent: float | None = None
    """Top-1 at which its clock stopped."""
    mlperf: str = ""
    """Round and division of an MLPerf submission; empty: none."""
    software: str = ""
    """MLPerf round nearest in time, for predictions; empty: that of ``mlperf``."""

    @property
    def round(self) -> str:
        """MLPerf round whose software predictions are for; empty: not known."""
        return self.software or (self.mlperf.split()[0] if self.mlperf.startswith("v") else "")


def sources(**options: str) -> dict[str, str]:
    """{option: tag}, from the options of each tag, such as ``S="schedule.peak norm.span"``.

    Raises:
      ConfigError: an unknown tag, or an option that is given twice.
    """
    found: dict[str, str] = {}
    for tag, names in options.items():
        if tag not in TAGS:
            raise ConfigError(f"SOURCES: {tag!r} is no tag; {did_you_mean(tag, TAGS)}")
        for name in names.split():
            if name in found:
                raise ConfigError(f"SOURCES: {name} is tagged {found[name]} and {tag}; keep one")
            found[name] = tag
    return found
