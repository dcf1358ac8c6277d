"""MLPerf's checker and logs: check a log, rehearse the log of a plan, read a log."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from largebatch.config import Config, Plan
from largebatch.errors import ConfigError, UserError
from largebatch.tracking.mlperf import CLOSED_TARGET, RULESET, Division, MlperfTracker


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of the checker.

    Attributes:
        accepted: its exit code was 0.
        text: its output.
    """

    accepted: bool
    text: str

    @property
    def complaints(self) -> tuple[str, ...]:
        """What the checker does not accept, a short text each."""
        failed = re.findall(
            r"CHECK for '([^']*)' failed.*\n.*\"value\": ([^,]*),.*\nfailed test: *(.*?) *\n",
            self.text,
        )
        missing = re.findall(r"(?:Required|Failed checks for) .*", self.text)
        return (*(f"{key}={value} fails {test}" for key, value, test in failed), *missing)


def check_log(log: Path) -> Verdict:
    """Run MLPerf's compliance checker on a log, with warnings as errors.

    Args:
        log: `result_N.txt`; it names its division and benchmark itself.

    Raises:
        UserError: there is no such file, or the checker cannot run.
    """
    if not log.is_file():
        raise _missing(log)
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage=training"]
    command += [f"--ruleset={RULESET}", "--werror", f"--log_output={os.devnull}", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"mlperf-logging's checker ended with {done.returncode}: {last}")
    return Verdict(done.returncode == 0, done.stderr)


def rehearse(
    log: Path,
    plan: Plan,
    *,
    division: Division,
    accuracy: Callable[[float], float],
    target: float = 0.0,
    images_per_s: float = 1e6,
) -> None:
    """Write the log of a run of a plan with an invented clock and invented accuracies.

    With it, a recipe can be checked before training.

    Args:
        log: the file to write.
        plan: the run.
        division: `open` or `closed`.
        accuracy: epochs consumed → top-1, a fraction.
        target: see `MlperfTracker`.
        images_per_s: of training and of evaluation.
    """
    now = 0.0
    tracker = MlperfTracker(
        log, plan, division=division, platform="none", target=target, clock=lambda: now
    )

    def event(name: str, step: int, **values: float) -> None:
        tracker.event(name, step, plan.position(step), **values)

    event("train_start", 0)
    last = plan.stop_after_step
    for step in range(1, last + 1):
        now += (plan.position(step) - plan.position(step - 1)) / images_per_s
        if step == last or plan.evaluates_at(step):
            event("eval_start", step)
            now += plan.facts.validation_examples / images_per_s
            event("eval_stop", step, top1=accuracy(plan.position(step) / plan.epoch_samples))
        event("step", step)
    event("train_stop", last)
    tracker.close()


class Event(NamedTuple):
    """A line of a log."""

    key: str
    value: Any
    metadata: Mapping[str, Any]
    seconds: float
    """Since 1970."""


def read_log(path: Path) -> list[Event]:
    """Return the events of `result_N.txt`, in order.

    Raises:
        UserError: the file is missing, or a line is not one of a log.
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError as error:
        raise _missing(path) from error
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line.removeprefix(":::MLLOG "))
            event = Event(*(entry[key] for key in ("key", "value", "metadata", "time_ms")))
            events.append(event._replace(seconds=event.seconds / 1000))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: line {number} of {len(lines)} is not a line of an MLPerf log; delete it"
            ) from error
    return events


def seconds_between(events: Sequence[Event], name: str) -> float:
    """Return the seconds between the first `<name>_start` and the last `<name>_stop`.

    Raises:
        UserError: one of them is missing.
    """
    starts = [event.seconds for event in events if event.key == f"{name}_start"]
    stops = [event.seconds for event in events if event.key == f"{name}_stop"]
    if not starts or not stops:
        raise UserError(f"the log has {len(starts)} {name}_start and {len(stops)} {name}_stop")
    return stops[-1] - starts[0]


def _missing(log: Path) -> UserError:
    return UserError(f"{log}: no such file; use the path of a log, result_N.txt")


def check_logger(config: Config) -> None:
    """Check that the package that writes and checks the MLPerf log is installed.

    Raises:
        UserError: it is missing.
    """
    if importlib.util.find_spec("mlperf_logging") is None:
        raise UserError(
            f"run.mlperf_log={config.run.mlperf_log} needs a package that is missing; use "
            "pip install mlperf-logging"
        )


def check_rules(plan: Plan) -> None:
    """Give the log that a run of the plan would write to MLPerf's checker.

    Raises:
        ConfigError: the checker refuses it, whatever the accuracy.
        UserError: mlperf-logging is not installed.
    """
    options = plan.config.run
    check_logger(plan.config)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, f"result_{options.seed}.txt")
        reached = options.target or CLOSED_TARGET
        rehearse(
            log,
            plan,
            division=options.mlperf_log,
            accuracy=lambda epochs: reached * (epochs / plan.epochs),
            target=options.target,
        )
        verdict = check_log(log)
    if not verdict.accepted:
        raise ConfigError(
            f"run.mlperf_log={options.mlperf_log}: the division's rules refuse this recipe: "
            f"{'; '.join(verdict.complaints)}; change it, or use run.mlperf_log=open"
        )
