"""Run one training, evaluation or dry run in a run directory."""

import contextlib
import dataclasses
import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from largebatch import tracking
from largebatch.checkpoint import directories as checkpoint_directories
from largebatch.checkpoint import run_directory
from largebatch.checkpoint.arrays import on_devices
from largebatch.checkpoint.directories import Stored, has_checkpoints
from largebatch.checkpoint.manager import Checkpoints, Progress
from largebatch.config import Config, changed
from largebatch.config.checks import check_ranges
from largebatch.config.recipe_file import label
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import IDLE, Interrupted, Watchdog
from largebatch.files import write_json
from largebatch.parallel import processes
from largebatch.tracking.summary import Status
from largebatch.training import description, journal
from largebatch.training.evaluation import averaged_columns, evaluate, with_final_statistics
from largebatch.training.loop import Loop
from largebatch.training.memory import out_of_memory_explained
from largebatch.training.preflight import check_rules
from largebatch.training.rehearsal import dry_run, warm_up
from largebatch.training.request import Request
from largebatch.training.request import check as check_request
from largebatch.training.setup import OpenedRun, Run, initial_state, open_run
from largebatch.training.state import TrainState

if TYPE_CHECKING:  # weights are read by few runs
    from largebatch.weights import Weights


def run(
    config: Config,
    request: Request,
    *,
    hosts: str = "one process",
    devices: Sequence[jax.Device] | None = None,
    watchdog: Watchdog = IDLE,
) -> tracking.Summary | None:
    """Train, evaluate or rehearse a run.

    Args:
      config: configuration of the run.
      request: what to do, and where.
      hosts: how the processes found each other, for the printed table.
      devices: None for all devices of all processes.
      watchdog: requests a stop, and ends the process where it cannot stop by itself.

    Returns:
      The summary; None for a dry run.

    Raises:
      UserError: an error that the user can fix.
      Interrupted: the run was asked to stop; the same command resumes it.
    """
    began = time.perf_counter()
    console = tracking.Console(quiet=jax.process_index() != 0)
    weights = _check_early(config, request)
    # An evaluation or dry run may share the directory with a training.
    needs_lock = not (request.eval_only or request.dry_run)
    # Errors of the log end the run with one line; a checkpoint that fails only warns.
    with (
        run_directory.full_disk_explained(request.workdir),
        run_directory.held(request.workdir, watchdog, console.note, began)
        if needs_lock
        else contextlib.nullcontext(),
        contextlib.ExitStack() as closing,
    ):
        with watchdog.section("compile"):  # a dataset may take long to open
            opened = open_run(config, console, devices)
        checkpoints, stored = None, None
        if not (request.dry_run or request.resume == "never"):
            # A complete run, or a checkpoint of another run, ends here, before compilation.
            checkpoints = _open_checkpoints(config, request, console)
            closing.enter_context(contextlib.closing(checkpoints))
            stored = _newest(opened, request, checkpoints)
            if not request.eval_only and (done := _complete(opened, request, stored)) is not None:
                return done
        with watchdog.section("compile"):  # the search for a microbatch compiles
            this_run = opened.build(evaluated_step=stored.step if request.eval_only else None)
        rows = description.plan_rows(this_run, hosts)
        name = label(request.recipe) if request.recipe else "configuration"
        console.plan(f"{name}: {request.workdir}", rows, changed(this_run.plan.config))
        if config.batch.deadline_s and this_run.plan.first_stage.microbatches == 1:
            console.warn(
                "batch.deadline_s cannot leave out microbatches, since a step has only one; use "
                f"batch.microbatch below {this_run.plan.first_stage.microbatch}"
            )
        with out_of_memory_explained(this_run.plan.first_stage):
            if request.dry_run:
                dry_run(this_run, request.workdir, watchdog, weights)
                return None
            if checkpoints is None:
                checkpoints = _open_checkpoints(config, request, console)
                closing.enter_context(contextlib.closing(checkpoints))
            watchdog.finally_do("checkpoint", lambda *_: checkpoints.wait_before_exit())
            session = _Session(this_run, request, checkpoints, stored, began, watchdog, weights)
            return session.evaluate() if request.eval_only else session.train()


def _check_early(config: Config, request: Request) -> "Weights | None":
    """Check what needs no data, before data is opened.

    Returns:
      The weights of ``model.init_from``, if a fresh run starts with them.

    Raises:
      UserError: a number is out of range, a tracker is unknown or not installed, the run to
        evaluate or resume does not exist, or the initial weights cannot be read.
    """
    check_ranges(config)
    for name in config.run.trackers:
        tracking.check_installed(name)
    check_request(config, request)
    begin = config.model.init_from
    if not begin or (request.resume != "never" and has_checkpoints(request.checkpoints)):
        return None  # a resumed run has its own weights; the file may no longer exist
    from largebatch import weights

    return weights.read(Path(begin))


def _open_checkpoints(config: Config, request: Request, console: tracking.Console) -> Checkpoints:
    """Open the checkpoints; create the run directory, or archive an earlier run."""
    if not request.eval_only:
        moved = processes.first_process_does(
            lambda: run_directory.prepare(request.workdir, archive=request.resume == "never")
        )
        if moved:
            console.note(f"the earlier run in {request.workdir} is now in {moved}")
    return Checkpoints(
        request.checkpoints,
        keep=config.run.keep_checkpoints,
        keep_best=config.run.keep_best,
        warn=console.warn,
        read_only=request.eval_only,
    )


def _newest(opened: OpenedRun, request: Request, checkpoints: Checkpoints) -> Stored | None:
    """Return the newest checkpoint; None if training starts from the beginning.

    Raises:
      CheckpointError: it belongs to another run, or there is none and one is needed.
      ConfigError: a clocked run cannot be resumed.
    """
    stored = checkpoints.newest(opened.plan, opened.checkpoint_shapes)
    if stored is None and request.needs_checkpoint:
        raise request.no_checkpoint()
    clocked = opened.config.run.mlperf_log
    if clocked and stored is not None and not request.eval_only:
        raise ConfigError(
            f"run.mlperf_log={clocked} clocks a run from its start, {request.workdir} holds "
            f"one at step {stored.step}; use --resume=never, or --config.run.mlperf_log= to "
            "continue without the log"
        )
    return stored


def _complete(
    opened: OpenedRun, request: Request, stored: Stored | None
) -> tracking.Summary | None:
    """Return the summary of a run that is complete; None otherwise."""
    steps = opened.plan.steps
    summary = tracking.Summary.read(request.workdir)
    at_end = stored is not None and stored.step == steps and not stored.progress.evaluation_due
    complete = summary is not None and summary.status == "complete" and summary.steps == steps
    if not processes.agreed_minimum(int(at_end and complete)):
        return None
    again = _commands(request, ("evaluate", "--eval_only"), ("train again", "--resume=never"))
    rows = [
        *([] if summary.top1 is None else [("top-1", f"{summary.top1:.2%}")]),
        ("checkpoint", str(request.checkpoints / str(steps))),
        *again,
    ]
    opened.console.closing(rows, f"already complete: {steps:,} steps, nothing was changed")
    return summary


def _commands(request: Request, *labelled: tuple[str, str]) -> list[tuple[str, str]]:
    """Return rows (label, command line with a flag); none if there is no recipe file."""
    if request.recipe is None:
        return []
    given = request.recipe, request.workdir, request.overrides
    return [(name, description.command(*given, *flag.split())) for name, flag in labelled]


class _Session:
    """A run whose directory is open."""

    def __init__(
        self,
        run: Run,
        request: Request,
        checkpoints: Checkpoints,
        stored: Stored | None,
        began: float,
        watchdog: Watchdog,
        weights: "Weights | None",
    ) -> None:
        self.run = run
        self.request = request
        self.checkpoints = checkpoints
        self.stored = stored
        self.began = began
        self.watchdog = watchdog
        self.weights = weights
        self.console = run.console
        step = None if stored is None else stored.step
        if not request.eval_only and step != run.plan.steps:
            checkpoints.check_space(run.checkpoint_shapes)

    def train(self) -> tracking.Summary:
        """Train from the newest checkpoint or from the start."""
        run, plan, request = self.run, self.run.plan, self.request
        clocked = plan.config.run.mlperf_log
        if self.stored is not None and plan.stop_after_step <= self.stored.step < plan.steps:
            self.console.warn(
                f"run.stop_after={plan.config.run.stop_after!r} has been reached: the newest "
                f"checkpoint is that of step {self.stored.step:,}; nothing is trained"
            )
        if clocked:
            processes.first_process_does(lambda: check_rules(plan))
        progress = self._stored_progress()
        with (
            self.watchdog.section("compile"),
            self.console.compiling("initialisation, train step and evaluation"),
        ):
            run.prepare()
            if clocked:
                warm_up(run)
            state = self._state()
        status: Status = "failed"
        written = self._history(progress)
        with contextlib.closing(written.tracker):
            self._connect_unreadable()
            loop = Loop(
                run,
                written.tracker,
                self.checkpoints,
                progress,
                self.began,
                self.watchdog,
                target=written.target,
                profile=request.workdir / "profile" if jax.process_index() == 0 else None,
            )
            if jax.process_index() == 0:
                self.watchdog.finally_do(
                    "summary", lambda status, _: loop.summary(status).write(request.workdir)
                )
            self.watchdog.keep_stacks(request.workdir)
            try:
                with self.watchdog.section("step"):
                    loop.train(state)
                self._wait_for_checkpoint(loop)
                status = "complete" if loop.step == plan.steps else "stopped"
            except Interrupted as reason:
                self._wait_for_checkpoint(loop)
                status = "preempted"
                raise Interrupted(
                    f"{reason}; saved at step {self.checkpoints.latest_step():,}",
                    then="the clock cannot be stopped: start again with --resume=never"
                    if clocked
                    else reason.then,
                ) from reason
            finally:
                summary = loop.summary(status)
                if jax.process_index() == 0:
                    summary.write(request.workdir)
        self._close(summary, loop)
        return summary

    def _connect_unreadable(self) -> None:
        """Warn of examples that cannot be decoded; each process writes its own list."""
        process = jax.process_index()
        path = self.request.workdir / f"unreadable_{process}.jsonl"

        def report(name: str, reason: str) -> None:
            with path.open("a") as stream:
                stream.write(json.dumps({"name": name, "reason": reason}) + "\n")
            if process == 0:
                self.console.warn(f"{name} cannot be decoded: {reason}; listed in {path}")

        for split in self.run.unreadable.values():
            split.connect(report, str(path))

    def _wait_for_checkpoint(self, loop: Loop) -> None:
        """Wait on every process until process 0 has written the newest checkpoint."""
        since = time.perf_counter()
        with self.watchdog.section("checkpoint"):
            processes.first_process_does(self.checkpoints.wait)
        loop.clock.checkpoint_s += time.perf_counter() - since

    def evaluate(self) -> tracking.Summary:
        """Evaluate the newest checkpoint and write ``evaluation.json``."""
        progress = self._stored_progress()
        self.run.warn_of_unreadable()
        with self.watchdog.section("compile"), self.console.compiling("evaluation"):
            stage = self.run.stage_at(progress.step)
            for view in stage.validation_views:
                stage.programs.evaluate(view.shape)
            state = stage.placed(self._state())
        with self.watchdog.section("evaluation"):
            state = with_final_statistics(stage, state, progress.samples, self.watchdog)
            result = evaluate(stage, state, self.watchdog)
        summary = tracking.Summary(
            status="evaluated",
            top1=result.top1,
            top5=result.top5,
            loss=result.loss,
            steps=progress.step,
            samples=progress.samples,
            wall_s=time.perf_counter() - self.began,
            compile_s=self.run.compile_s,
            images_per_s=result.images / result.seconds,
            **averaged_columns(result),
        )
        if jax.process_index() == 0:
            write_json(self.request.workdir / "evaluation.json", summary.fields())
        rows = [
            *description.result_rows(result, self.run.plan),
            ("checkpoint", self._checkpoint(progress.step)),
        ]
        self.console.closing(rows, f"evaluated at step {progress.step}")
        return summary

    def _stored_progress(self) -> Progress:
        """Return the progress of the newest checkpoint and warn of changed options."""
        if self.stored is None:
            return Progress()
        self.console.note(f"resuming from {self._checkpoint(self.stored.step)}")
        if self.stored.table:
            self.console.warn(f"options that differ from the checkpoint:\n{self.stored.table}")
        return self.stored.progress

    def _state(self) -> TrainState:
        if self.stored is None:
            return initial_state(self.run, self.weights)
        programs = self.run.first_stage.programs
        stored, self.stored = self.stored, None  # as large on the host as on a device
        return programs.steps.from_checkpoint(on_devices(stored.state, programs.checkpoint_shapes))

    def _history(self, progress: Progress) -> journal.History:
        run, place = self.run, self.request.workdir
        written = processes.first_process_does(
            lambda: journal.opened(run, place, progress, self.began, self.request.recipe)
        )
        return written or journal.nothing()

    def _checkpoint(self, step: int) -> str:
        """Return the path of a checkpoint below the --workdir given."""
        return str(self.request.checkpoints / str(step))

    def _close(self, summary: tracking.Summary, loop: Loop) -> None:
        request = self.request
        following = [("next", f"python scripts/report.py {shlex.quote(str(request.workdir))}")]
        if summary.status == "stopped":
            kept = tuple(o for o in request.overrides if o[0] != "run.stop_after")
            following = _commands(dataclasses.replace(request, overrides=kept), ("next", ""))
        keeps_best = self.run.plan.config.run.keep_best
        best = checkpoint_directories.best(request.checkpoints) if keeps_best else None
        rows = [
            *description.result_rows(loop.result, self.run.plan),
            *loop.target.rows(),
            ("time", f"{summary.wall_s:.1f} s, of which compiling {summary.compile_s:.1f} s"),
            ("throughput", f"{summary.images_per_s:,.0f} images/s"),
            ("memory", description.memory(self.run)),
            ("checkpoint", self._checkpoint(summary.steps)),
            *([("best checkpoint", self._checkpoint(best.step))] if best else []),
            *following,
        ]
        self.console.closing(
            rows, f"{summary.status}: {summary.steps:,} steps, {summary.samples:,} samples"
        )
