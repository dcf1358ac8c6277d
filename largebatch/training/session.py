"""Run one training, evaluation or dry run in a run directory."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax

from largebatch import tracking
from largebatch.checkpoint import run_directory
from largebatch.checkpoint.checkpoints import Checkpoints, Stored, has_checkpoints
from largebatch.config import Config, changed
from largebatch.config.checks import check_ranges
from largebatch.config.recipe_file import label
from largebatch.config.registries import MODELS, OPTIMIZERS
from largebatch.fault_tolerance import Interrupted, Watchdog
from largebatch.files import appending, is_still, write_json
from largebatch.optim.adapter import factory_of
from largebatch.parallel import processes
from largebatch.registry import parse_options, resolve
from largebatch.store_urls import url_of
from largebatch.tracking.summary import Status
from largebatch.training import agreement, description, resume
from largebatch.training.evaluation import averaged_columns, evaluate, with_final_statistics
from largebatch.training.initialization import check_weights, initial_state
from largebatch.training.log import Log
from largebatch.training.loop import train
from largebatch.training.memory import reporting_out_of_memory
from largebatch.training.preflight import check_logger, check_rules
from largebatch.training.rehearsal import dry_run, warm_up
from largebatch.training.request import Request
from largebatch.training.request import check as check_request
from largebatch.training.run import Run

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
    console = tracking.Console(quiet=jax.process_index() != 0, brief=request.quiet)
    url, watchdog = url_of(request.workdir), watchdog or Watchdog(config.health)
    if not url:
        return _run(config, request, console, hosts, devices, watchdog)
    with run_directory.staged(
        url,
        trains=request.trains,
        watchdog=watchdog,
        note=console.note,
        warn=console.warn,
    ) as remote:
        copied = dataclasses.replace(request, workdir=remote.logs, remote=remote)
        return _run(config, copied, console, hosts, devices, watchdog)


def _run(
    config: Config,
    request: Request,
    console: tracking.Console,
    hosts: str,
    devices: Sequence[jax.Device] | None,
    watchdog: Watchdog,
) -> tracking.Summary | None:
    """Run in a local directory; see `run`."""
    began = time.perf_counter()
    weights = _check_early(config, request)
    for text in request.notes:
        console.note(text)
    # An evaluation or dry run may share the directory with a training.
    # Errors of the log end the run with one line; a checkpoint that fails only warns.
    with (
        run_directory.reporting_full_disk(request.workdir),
        run_directory.held(request.workdir, watchdog, console.note, began)
        if request.trains
        else contextlib.nullcontext(),
        contextlib.ExitStack() as closing,
    ):
        with watchdog.section("compile"):  # a dataset may take long to open
            this_run = agreement.opened_by_all(
                lambda: Run.open(config, console, devices, given=request.given), weights
            )
            config = this_run.config
        checkpoints = stored = None
        if not (request.dry_run or request.resume == "never"):
            # A complete run, or a checkpoint of another run, ends here, before compilation.
            checkpoints = resume.open_checkpoints(config, request, console)
            closing.enter_context(contextlib.closing(checkpoints))
            stored = resume.newest(this_run, request, checkpoints)
            done = None if request.eval_only else resume.complete(this_run, request, stored)
            if done is not None:
                return done
        if weights is not None:
            check_weights(weights, this_run.checkpoint_shapes)
        with watchdog.section("compile"):  # the search for a microbatch compiles
            this_run.build(evaluated_step=stored.step if request.eval_only else None)
        rows = description.plan_rows(this_run, hosts)
        name = label(request.recipe) if request.recipe else "configuration"
        console.plan(f"{name}: {request.place}", rows, changed(this_run.plan.config))
        if config.batch.deadline_s and this_run.plan.first_stage.microbatches == 1:
            console.warn(
                "batch.deadline_s cannot leave out microbatches, since a step has only one; use "
                f"batch.microbatch below {this_run.plan.first_stage.microbatch}"
            )
        with reporting_out_of_memory(this_run.plan.first_stage):
            if request.dry_run:
                dry_run(this_run, request, watchdog, weights)
                return None
            if checkpoints is None:
                checkpoints = resume.open_checkpoints(config, request, console)
                closing.enter_context(contextlib.closing(checkpoints))
            watchdog.finally_do("checkpoint", lambda *_: checkpoints.wait_before_exit())
            if request.eval_only:
                return _evaluate(this_run, request, stored, began, watchdog)
            return _train(this_run, request, checkpoints, stored, weights, began, watchdog)


def _check_early(config: Config, request: Request) -> "Weights | None":
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
    if not begin or (request.resume != "never" and has_checkpoints(request.directory)):
        return None  # a resumed run has its own weights; the file may no longer exist
    from largebatch import weights

    return weights.beginning(config.model)


def _train(
    run: Run,
    request: Request,
    checkpoints: Checkpoints,
    stored: Stored | None,
    weights: "Weights | None",
    began: float,
    watchdog: Watchdog,
) -> tracking.Summary:
    """Train from the newest checkpoint or from the start."""
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
    progress = resume.announced(run, request, stored)
    with (
        watchdog.section("compile"),
        console.compiling("initialisation, train step and evaluation"),
    ):
        run.prepare()
        if clocked:
            warm_up(run)
        state = resume.state_of(run, stored) if stored else initial_state(run, weights)
    home = request.workdir.stat() if first else None
    callbacks = tracking.CallbackTracker(
        request.callbacks, request.checkpoint, checkpoints.is_saved, watchdog.stop
    )
    log = Log(plan, run.stages, console.warn)
    processes.first_process_does(
        lambda: log.open(
            request.workdir,
            description.resolved(run, request.recipe),
            progress,
            began,
            callbacks if request.callbacks else None,
            resumes=stored is not None,
        )
    )
    with contextlib.closing(log):
        if stored is not None and stored.schedule:
            log.event("schedule", progress.step, changes=resume.shown(stored.schedule))
        _connect_unreadable(run, request)
        profile = request.workdir / "profile" if first else None
        run.start(log, checkpoints, progress, began, watchdog, profile=profile)
        if first:
            watchdog.finally_do(
                "summary", lambda status, _: run.summary(status).write(request.workdir)
            )
        watchdog.keep_stacks(request.workdir)
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
            if first and not watchdog.lost and is_still(request.workdir, home):
                summary.write(request.workdir)
                if status != "failed":
                    callbacks.end(summary)
    if run.result is None:
        return summary  # stopped before an evaluation
    console.closing(
        description.closing_rows(run, request, summary),
        f"{summary.status}: {summary.steps:,} steps, {summary.samples:,} samples",
    )
    return summary


def _connect_unreadable(run: Run, request: Request) -> None:
    """Warn of examples that cannot be decoded; each process writes its own list."""
    process = jax.process_index()
    name = f"unreadable_{process}.jsonl"
    path, shown = request.workdir / name, f"{request.place}/{name}"

    def report(name: str, reason: str) -> None:
        with appending(path) as stream:
            stream.write(json.dumps({"name": name, "reason": reason}).encode() + b"\n")
        if process == 0:
            run.console.warn(f"{name} cannot be decoded: {reason}; listed in {shown}")

    for split in run.unreadable.values():
        split.connect(report, shown)


def _evaluate(
    run: Run, request: Request, stored: Stored, began: float, watchdog: Watchdog
) -> tracking.Summary:
    """Evaluate the newest checkpoint and write ``evaluation.json``."""
    progress = resume.announced(run, request, stored)
    run.warn_of_unreadable()
    with watchdog.section("compile"), run.console.compiling("evaluation"):
        stage = run.stage_at(progress.step)
        for shape in stage.evaluation_shapes:
            stage.evaluate(shape)
        state = stage.placed(resume.state_of(run, stored))
    with watchdog.section("evaluation"):
        state = with_final_statistics(stage, state, progress.samples, watchdog)
        result = evaluate(stage, state, watchdog)
    summary = tracking.Summary(
        status="evaluated",
        top1=result.top1,
        top5=result.top5,
        loss=result.loss,
        steps=progress.step,
        samples=progress.samples,
        wall_s=time.perf_counter() - began,
        compile_s=run.compile_s,
        images_per_s=result.images / result.seconds,
        **averaged_columns(result),
        sets=result.set_columns,
    )
    if jax.process_index() == 0:
        write_json(request.workdir / "evaluation.json", summary.fields())
    rows = [
        *description.result_rows(result, run.plan),
        ("checkpoint", request.checkpoint(progress.step)),
    ]
    run.console.closing(rows, f"evaluated at step {progress.step}")
    return summary
