"""Decide where a run starts: archive or resume an earlier run, or start a new one."""

from collections.abc import Sequence

from largebatch import data, tracking
from largebatch.checkpoint import run_directory
from largebatch.checkpoint.checkpoints import Checkpoints, Stored
from largebatch.checkpoint.file import Progress, on_devices
from largebatch.config import Config
from largebatch.config.schema import Difference
from largebatch.errors import CheckpointError, ConfigError
from largebatch.parallel import processes
from largebatch.training import description
from largebatch.training.request import Request
from largebatch.training.run import Run
from largebatch.training.state import TrainState


def open_checkpoints(config: Config, request: Request, console: tracking.Console) -> Checkpoints:
    """Open the checkpoints; create the run directory, or archive an earlier run."""
    place = request.directory
    if not request.eval_only:
        moved = processes.first_process_does(
            lambda: run_directory.prepare(place, archive=request.resume == "never")
        )
        if moved:
            console.note(f"the earlier run in {request.place} is now in {moved}")
    return Checkpoints(
        place,
        keep=config.run.keep_checkpoints,
        keep_best=config.run.keep_best,
        warn=console.warn,
        read_only=request.eval_only,
        extends=request.resume == "extend",
        saved=lambda step: run_directory.note_saved(place, step),
    )


def newest(run: Run, request: Request, checkpoints: Checkpoints) -> Stored | None:
    """Return the newest checkpoint; None if training starts from the beginning.

    Raises:
      CheckpointError: it belongs to another run, or there is none and one is needed.
      ConfigError: a clocked run cannot be resumed.
    """
    stored = checkpoints.newest(run.plan, run.checkpoint_shapes)
    if stored is None and request.needs_checkpoint:
        raise request.no_checkpoint()
    if stored is not None and not request.eval_only:
        _check_sets(stored, run)
    clocked = run.config.run.mlperf_log
    if clocked and stored is not None and not request.eval_only:
        raise ConfigError(
            f"run.mlperf_log={clocked} clocks a run from its start, {request.place} holds "
            f"one at step {stored.step}; use --resume=never, or --config.run.mlperf_log= to "
            "continue without the log"
        )
    return stored


def _check_sets(stored: Stored, run: Run) -> None:
    """Check that further validation sets of the same names are the same as before."""
    then = stored.progress.memory.get("sets", {})
    for name, identity in data.identities(run.splits[0].further).items():
        if then.get(name, identity) != identity:
            raise CheckpointError(
                f"data.validation_sets: {name} is another set than in the run so far (number, "
                "classes or names of its examples differ); restore it, or give the new one "
                "another name"
            )


def complete(run: Run, request: Request, stored: Stored | None) -> tracking.Summary | None:
    """Return the summary of a run that is complete; None otherwise."""
    steps = run.plan.steps
    summary = tracking.Summary.read(request.workdir)
    at_end = stored is not None and stored.step == steps and not stored.progress.evaluation_due
    complete = summary is not None and summary.status == "complete" and summary.steps == steps
    if not processes.agreed_minimum(int(at_end and complete)):
        return None
    again = description.commands(
        request, ("evaluate", "--eval_only"), ("train again", "--resume=never")
    )
    rows = [
        *([] if summary.top1 is None else [("top-1", f"{summary.top1:.2%}")]),
        ("checkpoint", request.checkpoint(steps)),
        *again,
    ]
    run.console.closing(rows, f"already complete: {steps:,} steps, nothing was changed")
    return summary


def _extension(run: Run, stored: Stored) -> str:
    """Return the line that says from where on a run has another schedule."""
    plan, done = run.plan, stored.progress
    following = ""
    if stored.step < plan.steps:
        rate = plan.rates(stored.step + 1).learning_rate
        following = f"; the next learning rate is {rate:.4g}"
    return (
        f"from sample {done.samples:,} on (step {stored.step:,}, epoch "
        f"{done.samples / plan.epoch_samples:.2f}) the schedule is another: "
        f"{shown(stored.schedule)}{following}"
    )


def shown(changes: Sequence[Difference]) -> str:
    """Format options of the schedule that differ from those of a checkpoint in one line."""
    return ", ".join(f"{d.key}={d.requested!r} instead of {d.stored!r}" for d in changes)


def announced(run: Run, request: Request, stored: Stored | None) -> Progress:
    """Return where a run starts; print the path of the checkpoint and the changed options."""
    if stored is None:
        return Progress()
    run.console.note(f"resuming from {request.checkpoint(stored.step)}")
    if stored.schedule:
        run.console.warn(_extension(run, stored))
    if stored.table:
        run.console.warn(f"options that differ from the checkpoint:\n{stored.table}")
    return stored.progress


def state_of(run: Run, stored: Stored) -> TrainState:
    """Return the state of a checkpoint on the devices, for the first stage.

    ``stored`` gives it away: the copy on the host is as large as that on a device.
    """
    held, stored.state = stored.state, None
    return run.first_stage.steps.from_checkpoint(on_devices(held, run.checkpoint_shapes))
