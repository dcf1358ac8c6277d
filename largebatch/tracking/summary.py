"""How a run ended, as one small file for other programs, and when it reached its target."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from largebatch.files import read_json, write_json

Status = Literal["complete", "stopped", "preempted", "failed", "evaluated"]


@dataclass(frozen=True)
class Summary:
    """The outcome of a run.

    Attributes:
        status: how it ended.
        top1: validation accuracy of the newest evaluation, a fraction; None if there was none.
        top5: the same within the first five guesses.
        loss: validation loss, nats per image; None if nothing was evaluated.
        steps: optimizer steps completed, including those before a resume.
        samples: training samples consumed by them.
        wall_s: wall time of all attempts, in seconds, compilation included.
        compile_s: time of compilation, in seconds.
        images_per_s: training throughput without compilation; None if no step was timed.
        train_s: seconds of steps of all attempts, including waits for data.
        wait_s: seconds of those that were waits for data.
        evaluation_s: seconds of evaluations of all attempts.
        checkpoint_s: seconds that checkpoints delayed training, in all attempts.
        skips: steps of all attempts whose update was skipped because it was not finite.
        rollbacks: number of returns to a checkpoint, in all attempts.
        unreadable: corrupt examples that process 0 met in this attempt.
        target_top1: target accuracy, a fraction; None without one.
        target_step: steps after which an evaluation first reached it; None if none did.
        target_s: wall time until then, of all attempts, in seconds; None if none did.
        ema_top1: validation accuracy of the averaged weights, a fraction; None without an average.
        ema_top5: the same within the first five guesses.
        ema_loss: validation loss of the averaged weights, nats per image.
        noise_scale: gradient noise scale at the end, in images; None if it was not measured.
        noise_scale_error: its standard error, in images.
        sets: results of further validation sets, such as ``NAME/top1``; keys of the file itself.
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
    ema_top1: float | None = None
    ema_top5: float | None = None
    ema_loss: float | None = None
    noise_scale: float | None = None
    noise_scale_error: float | None = None
    sets: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, workdir: Path) -> "Summary | None":
        """Read `summary.json` of a run directory; None if there is no valid one."""
        try:
            found = read_json(workdir / "summary.json")
            sets = {key: found.pop(key) for key in list(found) if "/" in key}
            return cls(**found, sets=sets)
        except (OSError, ValueError, TypeError):
            return None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the file; of averaged weights and noise only if there are any."""
        own = asdict(self)
        sets = own.pop("sets")
        optional = ("ema_", "noise_")
        return {k: v for k, v in own.items() if v is not None or not k.startswith(optional)} | sets

    def write(self, workdir: Path) -> Path:
        """Write `summary.json` into a run directory, created if absent, and return its path."""
        path = workdir / "summary.json"
        write_json(path, self.fields())
        return path


class Target:
    """The target accuracy of a run, compared with every evaluation, of earlier attempts too.

    Attributes:
        top1: target accuracy, a fraction; 0: none.
        step: steps after which an evaluation first reached it; None before.
        seconds: wall time of the run until that evaluation; None before, or unknown.
        best: the greatest accuracy so far, a fraction; None before the first evaluation.
    """

    def __init__(self, top1: float, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Take the target accuracy, and the rows that `metrics.jsonl` has already."""
        self.top1 = top1
        self.step: int | None = None
        self.seconds: float | None = None
        self.best: float | None = None
        for row in rows:
            found = row.get("validation/top1")
            if found is not None:
                self.look(row["step"], row.get("seconds"), found)

    def look(self, step: int, seconds: float | None, top1: float) -> str:
        """Compare an evaluation with the target.

        Args:
            step: steps completed.
            seconds: wall time of the run.
            top1: accuracy found, a fraction.

        Returns:
            A remark if the target is reached for the first time, else ''.
        """
        self.best = top1 if self.best is None else max(self.best, top1)
        if not self.top1 or self.step is not None or top1 < self.top1:
            return ""
        self.step, self.seconds = step, seconds
        return f"target {self.top1:.2%} reached"

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, value) for the end of the run; nothing without a target."""
        if not self.top1:
            return []
        if self.step is None:
            best = "nothing was evaluated" if self.best is None else f"best {self.best:.2%}"
            return [("target", f"{self.top1:.2%} not reached, {best}")]
        after = "" if self.seconds is None else f", after {self.seconds:.1f} s"
        return [("target", f"{self.top1:.2%} reached at step {self.step:,}{after}")]
