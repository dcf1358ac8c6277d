"""Where the history of a run goes: its files, and the trackers asked for."""

import dataclasses
import platform
import socket
import time
from pathlib import Path

import jax

from largebatch import tracking
from largebatch.checkpoint.manifest import Progress
from largebatch.files import write_json
from largebatch.training import description as describe
from largebatch.training.setup import Run


@dataclasses.dataclass(frozen=True)
class History:
    """What a turn at a run writes to; on processes other than 0, to nothing.

    Attributes:
      tracker: takes rows and events.
      target: knows what earlier turns have reached.
    """

    tracker: tracking.Tracker
    target: tracking.Target


def nothing() -> History:
    """Of a process that writes nothing."""
    return History(tracking.Composite(()), tracking.Target(0.0))


def opened(run: Run, workdir: Path, progress: Progress, began: float) -> History:
    """The run's files, with what it resolved to.

    Args:
      run: that is about to train.
      workdir: its directory.
      progress: where it begins.
      began: the ``time.perf_counter()`` at which this turn started.

    Raises:
      UserError: a tracker that was asked for is not installed, or cannot be reached.
    """
    resolved = describe.resolved(run)
    write_json(workdir / "config.json", resolved)
    where = {"workdir": workdir, "resume_step": progress.step}
    options = run.plan.config.run
    trackers: list[tracking.Tracker] = [
        tracking.JsonlTracker(**where, again=bool(progress.evaluation_due)),
        tracking.TensorBoardTracker(**where),
    ]
    # Of earlier turns; a long history is not read for nothing.
    rows = tracking.read_rows(workdir / "metrics.jsonl") if options.target else ()
    if options.mlperf_log:
        facts, kind = run.plan.facts, run.first_stage.mesh.devices.flat[0].device_kind
        log = tracking.MlperfTracker(
            workdir / f"result_{options.seed}.txt",
            run.plan,
            division=options.mlperf_log,
            platform=f"{facts.devices} × {kind}",
            target=options.target,
            organisation=options.mlperf_organisation,
            began=time.time() - (time.perf_counter() - began),
        )
        trackers.append(log)
    trackers += [
        tracking.hosted_tracker(name, **where, config=resolved, warn=run.console.warn)
        for name in options.trackers
    ]
    tracker = tracking.Composite(trackers)
    tracker.event(
        "turn",
        progress.step,
        progress.samples,
        devices=run.plan.facts.devices,
        processes=run.plan.facts.processes,
        device_kind=run.first_stage.mesh.devices.flat[0].device_kind,
        jax=jax.__version__,
        python=platform.python_version(),
        host=socket.gethostname(),
    )
    return History(tracker, tracking.Target(options.target, rows))
