"""MLPerf's own checkers, asked about our logs: in processes of their own, as they are published."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from largebatch.config import Plan
from largebatch.errors import UserError
from largebatch.tracking.mlperf import RULESET, Division, MlperfTracker


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a checker found.

    Attributes:
        accepted: its exit code was 0.
        text: what it said.
    """

    accepted: bool
    text: str

    @property
    def complaints(self) -> tuple[str, ...]:
        """What the compliance checker does not accept, a short text each."""
        failed = re.findall(
            r"CHECK for '([^']*)' failed.*\n.*\"value\": ([^,]*),.*\nfailed test: *(.*?) *\n",
            self.text,
        )
        missing = re.findall(r"(?:Required|Failed checks for) .*", self.text)
        return (*(f"{key}={value} fails {test}" for key, value, test in failed), *missing)


def check_log(log: Path) -> Verdict:
    """Asks the compliance checker about one log, its warnings taken for errors.

    Args:
        log: `result_N.txt`; it names its division and benchmark itself.

    Raises:
        UserError: there is no such file.
    """
    if not log.is_file():
        raise UserError(f"{log}: no such file; name a log, result_N.txt")
    return _ask("compliance_checker", "--usage=training", f"--ruleset={RULESET}", "--werror", log)


def rehearse(
    log: Path,
    plan: Plan,
    *,
    division: Division,
    accuracy: Callable[[float], float],
    target: float = 0.0,
    images_per_s: float = 1e6,
) -> None:
    """Writes the log that a run of a plan would leave, with a made-up clock and made-up accuracies.

    With it a checker can be asked about a recipe before anything is trained.

    Args:
        log: the file to write.
        plan: the run.
        division: `open` or `closed`.
        accuracy: epochs consumed → top-1, a fraction.
        target: as of `MlperfTracker`.
        images_per_s: of training and of evaluation.
    """
    now = 0.0
    tracker = MlperfTracker(
        log, plan, division=division, platform="none", target=target, clock=lambda: now
    )

    def tell(name: str, step: int, **values: float) -> None:
        tracker.event(name, step, plan.position(step), **values)

    tell("train_start", 0)
    last = plan.stop_after_step
    for step in range(1, last + 1):
        now += (plan.position(step) - plan.position(step - 1)) / images_per_s
        if step == last or plan.evaluates_at(step):
            tell("eval_start", step)
            now += plan.facts.validation_examples / images_per_s
            tell("eval_stop", step, top1=accuracy(plan.position(step) / plan.epoch_samples))
        tell("step", step)
    tell("train_stop", last)
    tracker.close()


def _ask(checker: str, *arguments: str | Path) -> Verdict:
    command = [sys.executable, "-m", f"mlperf_logging.{checker}", f"--log_output={os.devnull}"]
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"{checker} of mlperf-logging ended with {done.returncode}: {last}")
    return Verdict(done.returncode == 0, done.stderr)
