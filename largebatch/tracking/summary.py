"""How a run ended, in one small file that other programs can read."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from largebatch.files import read_json, write_json

Status = Literal["complete", "stopped", "preempted", "failed", "evaluated"]


@dataclass(frozen=True)
class Summary:
    """The outcome of a run.

    Attributes:
        status: how it ended.
        top1: validation accuracy, a fraction; None when nothing was evaluated.
        top5: the same within the first five guesses.
        loss: validation loss, nats per image; None when nothing was evaluated.
        steps: optimizer steps completed, those before a resume included.
        samples: training samples consumed by them.
        wall_s: wall time of all turns at the run, in seconds, compilation included.
        compile_s: time spent compiling, in seconds.
        images_per_s: training throughput without compilation; None when no step was timed.
        train_s: seconds of steps in this turn at the run, the waits for data included.
        wait_s: seconds of those that were waits for data.
        evaluation_s: seconds of evaluations in this turn.
        checkpoint_s: seconds that checkpoints kept this turn from training.
        skips: steps of all turns whose update was left out, since it was not finite.
        rollbacks: how often the run went back to a checkpoint, in all turns.
        unreadable: examples that process 0 met in this turn and could not decode.
        target_top1: accuracy that the run was to reach, a fraction; None without one.
        target_step: steps after which an evaluation first reached it; None where none did.
        target_s: wall time until then, of all turns, in seconds; None likewise.
    """

    status: Status
    top1: float | None
    top5: float | None
    loss: float | None
    steps: int
    samples: int
    wall_s: float
    compile_s: float
    images_per_s: float | None
    train_s: float | None = None
    wait_s: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    skips: int = 0
    rollbacks: int = 0
    unreadable: int = 0
    target_top1: float | None = None
    target_step: int | None = None
    target_s: float | None = None

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"status is {self.status!r}; it must be one of {get_args(Status)}")

    @classmethod
    def read(cls, workdir: Path) -> "Summary | None":
        """Reads `summary.json` of the directory of a run; None where none is whole."""
        try:
            return cls(**read_json(workdir / "summary.json"))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, workdir: Path) -> Path:
        """Writes `summary.json` into the directory of the run.

        Args:
            workdir: directory of the run; made when absent.

        Returns:
            The file written.
        """
        path = workdir / "summary.json"
        write_json(path, asdict(self))
        return path
