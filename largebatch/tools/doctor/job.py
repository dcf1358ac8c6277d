"""The job that the doctor examines, and what its checks have found out so far."""

import dataclasses
from pathlib import Path

from largebatch import data
from largebatch.config import Config, Plan
from largebatch.parallel.processes import agreed_minimum
from largebatch.tools.doctor.lines import Skip


@dataclasses.dataclass(frozen=True)
class Pace:
    """The time of a step, and its source."""

    step_s: float
    source: str


@dataclasses.dataclass
class Job:
    """A job before its start; the fields from `splits` on are None until a check has set them."""

    config: Config
    workdir: Path
    devices: int = 0  # number of devices that there should be in all; 0: any
    full: bool = False  # read every shard of a prepared dataset
    measure_step: bool = False  # compile and time two steps
    seconds: float = 3.0  # time to measure decoding for
    limit_s: float = 0.0  # time limit of each stage, in seconds; 0: none
    splits: tuple[data.Source, data.Source] | None = None  # training and validation
    plan: Plan | None = None
    pace: Pace | None = None  # time of a step
    images_per_s: float | None = None  # that this process decodes
    _all_have_plan: bool = False
    _all_have_splits: bool = False

    def agree(self) -> None:
        """Find out what all processes have; each process must call this."""
        self._all_have_plan = bool(agreed_minimum(int(self.plan is not None)))
        self._all_have_splits = bool(agreed_minimum(int(self.splits is not None)))

    def known_plan(self) -> Plan:
        """Return the plan of this process.

        Raises:
            Skip: it is unknown.
        """
        if self.plan is None:
            raise Skip("the plan of the run is unknown")
        return self.plan

    def common_plan(self) -> Plan:
        """Return the plan if all processes have one, as collectives require.

        Raises:
            Skip: a process has none; this is the same in all processes.
        """
        if not self._all_have_plan:
            raise Skip("the plan of the run is unknown")
        return self.known_plan()

    def common_splits(self) -> tuple[data.Source, data.Source]:
        """Return the splits if all processes have plan and splits.

        Raises:
            Skip: a process lacks one; this is the same in all processes.
        """
        self.common_plan()
        if self.splits is None or not self._all_have_splits:
            raise Skip("the dataset cannot be read")
        return self.splits
