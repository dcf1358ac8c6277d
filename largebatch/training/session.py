"""Run one training, evaluation or dry run in a run directory."""

import contextlib
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax

from largebatch import data, tracking
from largebatch.checkpoint import place, run_directory
from largebatch.checkpoint.checkpoints import Stored, has_checkpoints
from largebatch.checkpoint.file import Progress, on_devices
from largebatch.config import Config, changed
from largebatch.config.checks import check_ranges
from largebatch.config.recipe_file import label
from largebatch.config.registries import MODELS, OPTIMIZERS
from largebatch.config.schema import Difference
from largebatch.errors import CheckpointError, ConfigError
from largebatch.fault_tolerance import Interrupted, Watchdog
from largebatch.files import appending, is_still, write_json
from largebatch.optim.adapter import factory_of
from largebatch.parallel import processes
from largebatch.registry import parse_options, resolve
from largebatch.tracking.mlperf import check_logger, check_rules
from largebatch.tracking.summary import Status
from largebatch.training import agreement, description
from largebatch.training.evaluation import evaluate, with_final_statistics
from largebatch.training.initialization import initial_state
from largebatch.training.log import Log
from largebatch.training.loop import train
from largebatch.training.memory import reporting_out_of_memory
from largebatch.training.rehearsal import dry_run, warm_up
from largebatch.training.request import Request
from largebatch.training.request import check as check_request
from largebatch.training.run import Run
from largebatch.training.state import TrainState

if TYPE_CHECKING:  # weights are read by few runs
    from largebatch.weights import Weights


def run(
    config: Config,
    request: Request,
    *,
    hosts: str = "one process",
    devices: Sequence[jax.Device] | None = None,
    watchdog: Watchdog | None = None,
) -> tracking.Summary | None:
    """Train, evaluate or rehearse a run.

    Args:
      config: configuration of the run.
      request: what to do, and where.
      hosts: how the processes found each other, for the printed table.
      devices: None for all devices of all processes.
      watchdog: requests a stop, and ends the process where it cannot stop by itself; None: nothing
        does.

    Returns:
      The summary; None for a dry run.

    Raises:
      UserError: an error that the user can fix.
      Interrupted: the run was asked to stop; the same command resumes it.
    """
    began = time.perf_counter()
    console = tracking.Console(quiet=jax.process_index() != 0, brief=request.quiet)
    watchdog = watchdog or Watchdog(config.health)
    with place.opened(request.workdir) as directory:
        weights = _check_early(config, request, directory)
        for text in request.notes:
            console.note(text)
        # Errors of the log end the run with one line; a checkpoint that fails only warns.
        with (
            run_directory.reporting_full_disk(directory.logs),
            run_directory.held(
                directory,
                trains=request.trains,
                watchdog=watchdog,
                note=console.note,
                warn=console.warn,
                began=began,
            ),
        ):
            with watchdog.section("compile"):  # a dataset may take long to open
                opened = agreement.opened_by_all(
                    lambda: Run.open(
                        config,
                        console,
                        devices,
                        request=request,
                        place=directory,
                        watchdog=watchdog,
                        began=began,
                    ),
                    weights,
                )
            with contextlib.closing(opened.checkpoints):
                return _run(opened, hosts, weights)


def _run(run: Run, hosts: str, weights: "Weights | None") -> tracking.Summary | None:
    """Train, evaluate or rehearse a run whose data is open; see `run`."""
    request, console, watchdog = run.request, run.console, run.watchdog
    stored = None
    if not (request.dry_run or request.resume == "never"):
        # A complete run, or a checkpoint of another run, ends here, before compilation.
        _prepare(run)
        stored = _newest(run)
        done = None if request.eval_only else _complete(run, stored)
        if done is not None:
            return done
    if weights is not None:  # of another network: refused before compilation
        from largebatch.weights import initial

        initial(weights, run.checkpoint_shapes.params, run.checkpoint_shapes.stats)
    with watchdog.section("compile"):  # the search for a microbatch compiles
        run.build(evaluated_step=stored.step if request.eval_only else None)
    rows = description.plan_rows(run, hosts)
    name = label(request.recipe) if request.recipe else "configuration"
    console.plan(f"{name}: {request.place}", rows, changed(run.plan.config))
    if run.config.batch.deadline_s and run.plan.first_stage.microbatches == 1:
        console.warn(
            "batch.deadline_s cannot leave out microbatches, since a step has only one; use "
            f"batch.microbatch below {run.plan.first_stage.microbatch}"
        )
    with reporting_out_of_memory(run.plan.first_stage):
        if request.dry_run:
            dry_run(run, weights)
            return None
        if request.resume == "never":  # an error until here leaves the earlier run where it is
            _prepare(run)
        watchdog.finally_do("checkpoint", lambda *_: run.checkpoints.wait_before_exit())
        if request.eval_only:
            return _evaluate(run, stored)
        return _train(run, stored, weights)


def _check_early(config: Config, request: Request, directory: place.Place) -> "Weights | None":
    """Check what needs no data, before data is opened.

    Returns:
      The weights of ``model.init_from``, if a fresh run starts with them.

    Raises:
      UserError: a number is out of range, a module, a tracker or a package is missing, the
        run to evaluate or resume does not exist, or the initial weights cannot be read.
    """
    check_ranges(config)
    if config.model.name not in MODELS:
        resolve(config.model.name, MODELS, "model.name")  # imports the user's module
    if config.optimizer.name not in OPTIMIZERS:
        factory_of(config.optimizer.name, parse_options(config.optimizer.options))
    if request.trains and config.run.mlperf_log:  # process 0 writes the log
        processes.first_process_does(lambda: check_logger(config))
    for name in config.run.trackers:
        tracking.check_installed(name)
    check_request(config, request)
    begin = config.model.init_from
    if not begin or (request.resume != "never" and has_checkpoints(directory)):
        return None  # a resumed run has its own weights; the file may no longer exist
    from largebatch import weights

    return weights.beginning(config.model)


def _prepare(run: Run) -> None:
    """Create the run directory, or archive an earlier run; an evaluation changes nothing."""
    if run.request.eval_only:
        return
    moved = processes.first_process_does(
        lambda: run_directory.prepare(run.place, archive=run.request.resume == "never")
    )
    if moved:
        run.console.note(f"the earlier run in {run.request.place} is now in {moved}")


def _newest(run: Run) -> Stored | None:
    """Return the newest checkpoint; None if training starts from the beginning.

    Raises:
      CheckpointError: it belongs to another run, or there is none and one is needed.
      ConfigError: a clocked run cannot be resumed.
    """
    request = run.request
    stored = run.checkpoints.newest(run.plan, run.checkpoint_shapes)
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
    for name, dataset in run.splits[0].further.items():
        identity = data.identity(dataset.source)
        if then.get(name, identity) != identity:
            raise CheckpointError(
                f"data.validation_sets: {name} is another set than in the run so far (number, "
                "classes or names of its examples differ); restore it, or give the new one "
                "another name"
            )


def _complete(run: Run, stored: Stored | None) -> tracking.Summary | None:
    """Return the summary of a run that is complete; None otherwise."""
    request, steps = run.request, run.plan.steps
    summary = tracking.Summary.read(run.place.logs)
    at_end = stored is not None and stored.step == steps and not stored.progress.evaluation_due
    complete = summary is not None and summary.status == "complete" and summary.steps == steps
    if not processes.agreed_minimum(int(at_end and complete)):
        return None
    again = description.commands(
        request, ("evaluate", "--eval_only"), ("train again", "--resume=never")
    )
    rows = [
        *([] if summary.top1 is None else [("top-1", f"{summary.top1:.2%}")]),
        ("checkpoint", run.checkpoints.path(steps)),
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
        f"{_shown(stored.schedule)}{following}"
    )


def _shown(changes: Sequence[Difference]) -> str:
    """Format options of the schedule that differ from those of a checkpoint in one line."""
    return ", ".join(f"{d.key}={d.requested!r} instead of {d.stored!r}" for d in changes)


def _announced(run: Run, stored: Stored | None) -> Progress:
    """Return where a run starts; print the path of the checkpoint and the changed options."""
    if stored is None:
        return Progress()
    run.console.note(f"resuming from {run.checkpoints.path(stored.step)}")
    if stored.schedule:
        run.console.warn(_extension(run, stored))
    if stored.table:
        run.console.warn(f"options that differ from the checkpoint:\n{stored.table}")
    return stored.progress


def _state_of(run: Run, stored: Stored) -> TrainState:
    """Return the state of a checkpoint on the devices, for the first stage.

    ``stored`` gives it away: the copy on the host is as large as that on a device.
    """
    held, stored.state = stored.state, None
    return run.first_stage.steps.from_checkpoint(on_devices(held, run.checkpoint_shapes))


def _train(run: Run, stored: Stored | None, weights: "Weights | None") -> tracking.Summary:
    """Train from the newest checkpoint or from the start."""
    request, watchdog, logs = run.request, run.watchdog, run.place.logs
    checkpoints = run.checkpoints
    plan, console, first = run.plan, run.console, jax.process_index() == 0
    if stored is None or stored.step != plan.steps:
        checkpoints.check_space(run.checkpoint_shapes)
    clocked = plan.config.run.mlperf_log
    if stored is not None and plan.stop_after_step <= stored.step < plan.steps:
        console.warn(
            f"run.stop_after={plan.config.run.stop_after!r} has been reached: the newest "
            f"checkpoint is that of step {stored.step:,}; nothing is trained"
        )
    if clocked:
        processes.first_process_does(lambda: check_rules(plan))
    progress = _announced(run, stored)
    with (
        watchdog.section("compile"),
        console.compiling("initialisation, train step and evaluation"),
    ):
        run.prepare()
        if clocked:
            warm_up(run)
        state = _state_of(run, stored) if stored else initial_state(run, weights)
    home = logs.stat() if first else None
    callbacks = tracking.CallbackTracker(
        request.callbacks, checkpoints.path, checkpoints.is_saved, watchdog.stop
    )
    log = Log(plan, run.stages, console.warn)
    processes.first_process_does(
        lambda: log.open(
            logs,
            description.resolved(run, request.recipe),
            progress,
            run.began,
            callbacks if request.callbacks else None,
            resumes=stored is not None,
        )
    )
    with contextlib.closing(log):
        if stored is not None and stored.schedule:
            log.event("schedule", progress.step, changes=_shown(stored.schedule))
        _connect_unreadable(run)
        run.start(log, progress)
        if first:
            watchdog.finally_do("summary", lambda status, _: run.summary(status).write(logs))
        watchdog.keep_stacks(logs)
        status: Status = "failed"
        try:
            with watchdog.section("step"):
                train(run, state)
            run.wait_for_checkpoint()
            status = "complete" if run.step == plan.steps else "stopped"
        except Interrupted as reason:
            run.wait_for_checkpoint()
            newest = checkpoints.latest_step()
            kept = "no checkpoint yet" if newest is None else f"saved at step {newest:,}"
            if processes.from_first_process(int(callbacks.has_stopped)):
                status = "stopped"
                console.note(f"{reason}; {kept}")
            else:
                status = "preempted"
                raise Interrupted(
                    f"{reason}; {kept}",
                    then="the clock cannot be stopped: start again with --resume=never"
                    if clocked
                    else reason.then,
                ) from reason
        finally:
            summary = run.summary(status)
            # A directory that was lost has the summary of another run, and one that was removed is
            # not created again.
            if first and not watchdog.lost and is_still(logs, home):
                summary.write(logs)
                if status != "failed":
                    callbacks.end(summary)
    if run.result is None:
        return summary  # stopped before an evaluation
    console.closing(
        description.closing_rows(run, summary),
        f"{summary.status}: {summary.steps:,} steps, {summary.samples:,} samples",
    )
    return summary


def _connect_unreadable(run: Run) -> None:
    """Warn of examples that cannot be decoded; each process writes its own list."""
    request, process = run.request, jax.process_index()
    name = f"unreadable_{process}.jsonl"
    path, shown = run.place.logs / name, f"{request.place}/{name}"

    def report(name: str, reason: str) -> None:
        with appending(path) as stream:
            stream.write(json.dumps({"name": name, "reason": reason}).encode() + b"\n")
        if process == 0:
            run.console.warn(f"{name} cannot be decoded: {reason}; listed in {shown}")

    for split in run.unreadable.values():
        split.connect(report, shown)


def _evaluate(run: Run, stored: Stored) -> tracking.Summary:
    """Evaluate the newest checkpoint and write ``evaluation.json``."""
    progress, watchdog = _announced(run, stored), run.watchdog
    run.warn_of_unreadable()
    with watchdog.section("compile"), run.console.compiling("evaluation"):
        stage = run.stage_at(progress.step)
        for shape in stage.evaluation_shapes:
            stage.evaluate(shape)
        state = stage.placed(_state_of(run, stored))
    with watchdog.section("evaluation"):
        state = with_final_statistics(stage, state, progress.samples, watchdog)
        result = evaluate(stage, state, watchdog)
    summary = tracking.Summary(
        status="evaluated",
        **result.columns,
        steps=progress.step,
        samples=progress.samples,
        wall_s=time.perf_counter() - run.began,
        compile_s=run.compile_s,
        images_per_s=result.images / result.seconds,
        sets=result.set_columns,
    )
    if jax.process_index() == 0:
        write_json(run.place.logs / "evaluation.json", summary.fields())
    rows = [
        *description.result_rows(result, run.plan),
        ("checkpoint", run.checkpoints.path(progress.step)),
    ]
    run.console.closing(rows, f"evaluated at step {progress.step}")
    return summary
