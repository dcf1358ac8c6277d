"""A run: its plan and its stages, and while it trains, its log, its checkpoints and its health."""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from largebatch import data, parallel
from largebatch.checkpoint.checkpoints import Checkpoints
from largebatch.checkpoint.file import Progress, on_devices
from largebatch.checkpoint.place import LocalPlace, Place
from largebatch.checkpoint.run_directory import note_saved
from largebatch.config import Config, Facts, stages_of
from largebatch.config.plan import Plan, microbatch_candidates
from largebatch.config.resolution import resolve
from largebatch.config.unused import settled
from largebatch.data.open import facts_of, grouped_by_class, open_split, open_validation_sets
from largebatch.errors import HealthError
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.fault_tolerance.health import Health, Verdict
from largebatch.parallel import processes, xla_options
from largebatch.tracking import Console, Summary, Target
from largebatch.tracking.summary import Status
from largebatch.training.checks import HostTimes
from largebatch.training.evaluation import Result, evaluate, with_final_statistics
from largebatch.training.log import Log
from largebatch.training.memory import largest_microbatch
from largebatch.training.request import Request
from largebatch.training.stage import Splits, Stage, stage_at
from largebatch.training.state import MEASURED, Metrics, TrainState
from largebatch.training.steps import steps_of
from largebatch.training.timing import Clock, Profiler

PyTree = Any


class Run:
    """A run whose data is open; after `build`, with programs; after `start`, one attempt at it.

    Each process calls the methods that evaluate, judge, save and load.
    """

    def __init__(
        self,
        config: Config,
        console: Console,
        devices: Sequence[jax.Device],
        splits: Sequence[Splits],
        facts: Facts,
        request: Request,
        place: Place,
        watchdog: Watchdog,
        began: float,
    ) -> None:
        """Resolve the plan; see `open`, which opens the data of each stage."""
        self.config, self.console, self.devices = config, console, devices
        self.splits, self.facts = splits, facts
        self.request, self.place, self.watchdog, self.began = request, place, watchdog, began
        self.checkpoints = Checkpoints(
            place,
            keep=config.run.keep_checkpoints,
            keep_best=config.run.keep_best,
            warn=console.warn,
            read_only=request.eval_only,
            extends=request.resume == "extend",
            saved=lambda step: note_saved(place, step),
        )
        self.plan: Plan = resolve(config, facts)
        """Until `build`, with the largest possible microbatch if ``batch.microbatch=auto``."""
        self.stages: tuple[Stage, ...] = ()
        self._search_s = 0.0
        """Seconds of compilation of microbatches that were not chosen."""

    # ---- Setup

    @classmethod
    def open(
        cls,
        config: Config,
        console: Console,
        devices: Sequence[jax.Device] | None = None,
        *,
        request: Request | None = None,
        place: Place | None = None,
        watchdog: Watchdog = IDLE,
        began: float | None = None,
    ) -> "Run":
        """Open the data of each stage and resolve the plan, which finds most mistakes.

        Args:
          config: configuration of the run.
          console: prints progress and warnings.
          devices: None for all devices of all processes.
          request: what the user asks for. Options that the user did not give, and that the dataset,
            the optimizer or the devices have no use for, get their defaults. None: nothing is
            trained, and all options are the user's.
          place: the run directory; None: that of the request, on a disk.
          watchdog: requests a stop, and bounds the time of each part.
          began: the ``time.perf_counter()`` at which this attempt started; None: now.

        Raises:
          UserError: the data cannot be opened, or options contradict each other.
        """
        found = jax.devices() if devices is None else devices
        given = request.given if request else None
        request = request or Request(None, Path())
        place, began = place or LocalPlace(request.workdir), began or time.perf_counter()

        def use(chosen: Config) -> "Run":
            splits, facts = _open_data(chosen, len(found))
            return cls(chosen, console, found, splits, facts, request, place, watchdog, began)

        _, run = settled(config, given, use, console.note)
        run._warn_of_data()
        return run

    def _warn_of_data(self) -> None:
        """Warn of training images in the order of their classes, and of a batch beyond all."""
        # All stages have the same examples.
        pairs = zip(stages_of(self.config), self.splits, strict=True)
        unshuffled = next((each.train for s, each in pairs if not s.config.data.shuffle), None)
        if unshuffled is not None and grouped_by_class(unshuffled):
            self.console.warn(
                "data.shuffle=false: the training images are in the order of their classes, so a "
                "batch has few of them; use data.shuffle=true, or shuffle the dataset"
            )
        largest = max(stage.samples_per_step for stage in self.plan.stages)
        if largest > self.facts.train_examples:
            self.console.warn(
                f"the global batch of {largest:,} images exceeds the "
                f"{self.facts.train_examples:,} training images, so a step repeats images"
            )

    def build(self, *, evaluated_step: int | None = None) -> "Run":
        """Choose the microbatch of each stage, which may compile, and set up its programs.

        Args:
          evaluated_step: a step whose state is evaluated, without training; then only the
            evaluation of its stage is compiled.

        Returns:
          This run.
        """
        options = xla_options.program_options(self.devices[0], self.config, self.console.warn)
        plans, trains = self.plan.stages, evaluated_step is None
        needed = plans if trains else (self.plan.stage_at(evaluated_step),)
        if trains:
            for index in range(len(plans)):
                stage = self._stage(index) if index else self._unbuilt
                stage.steps.objective.check_statistics()
        self.stages = tuple(
            self._largest(index, options, trains=trains)
            if plan in needed and plan.config.batch.microbatch == "auto"
            else self._stage(index, options=options)
            for index, plan in enumerate(plans)
        )
        self.plan = dataclasses.replace(self.plan, stages=tuple(s.plan for s in self.stages))
        return self

    def _largest(self, index: int, options: Mapping[str, str], *, trains: bool) -> Stage:
        """Return a stage with the largest microbatch that fits, which is found by compiling."""
        plan, count = self.plan.stages[index], len(self.plan.stages)
        candidates = microbatch_candidates(plan.config, self.facts)
        tried: list[Stage] = []

        @functools.cache
        def stage_of(microbatch: int) -> Stage:
            tried.append(self._stage(index, microbatch, options))
            return tried[-1]

        if len(candidates) == 1:
            return stage_of(candidates[0])
        what = "train steps" if trains else "evaluation"
        of = f" of stage {index + 1} of {count}" * (count > 1)
        with self.console.compiling(f"{what}{of}, to find the largest microbatch that fits"):
            found = stage_of(
                largest_microbatch(plan, candidates, stage_of, for_evaluation=not trains)
            )
        self._search_s += sum(stage.compile_s for stage in tried if stage is not found)
        return found

    @functools.cached_property
    def unreadable(self) -> Mapping[str, data.Unreadable]:
        """The examples that could not be decoded, by split.

        All stages read one source, so an id is the same example in each.
        """
        train, validation, further = self.splits[0]
        sets = {"train": train, "validation": validation, **further}
        most = self.config.data.max_unreadable
        return {name: data.Unreadable(name, len(source), most) for name, source in sets.items()}

    @property
    def checkpoint_shapes(self) -> PyTree:
        """Shapes and dtypes of the state as checkpoints hold it, the same for all stages."""
        return (self.stages[0] if self.stages else self._unbuilt).checkpoint_shapes

    @functools.cached_property
    def _unbuilt(self) -> Stage:
        """The first stage with the largest possible microbatch, of which only shapes are used."""
        return self._stage(0)

    def _stage(
        self, index: int, microbatch: int | None = None, options: Mapping[str, str] = {}
    ) -> Stage:
        """Return a stage, with the microbatch of the plan or another one."""
        plan = self.plan.stages[index]
        if microbatch is not None:
            plan = plan.with_microbatch(microbatch)
        mesh, splits = parallel.make_mesh(self.devices, plan.members), self.splits[index]
        return Stage(steps_of(plan, mesh, splits.train), options, splits, self.unreadable)

    # ---- Training

    def start(self, log: Log, progress: Progress) -> None:
        """Become an attempt at the training.

        Args:
          log: receives rows and events.
          progress: where training starts.
        """
        plan, stage = self.plan, self.first_stage
        self.log = log
        self.initial = progress
        """Where this attempt started."""
        self.step = progress.step
        """Steps known to be done."""
        self.pending: tuple[int, Metrics] | None = None
        """A step that has been dispatched and is not examined yet."""
        self.stop_reason = ""
        """Why the processes stop after the present step, once they have agreed to."""
        self.clock = Clock(
            progress.wall_s,
            self.began,
            train_s=progress.train_s,
            wait_s=progress.wait_s,
            evaluation_s=progress.evaluation_s,
            checkpoint_s=progress.checkpoint_s,
        )
        self.hosts = HostTimes(self.clock, self.step)
        """Compares the times of the hosts at intervals."""
        log.begin(self.clock, progress)
        self.health = Health(
            plan,
            memory=progress.memory.get("health")
            or {"skips": progress.skips, "rollbacks": progress.rollbacks},
            counts=data.class_counts(stage.splits.train.source),
            newest=self.checkpoints.newest_path,
            returns_to=self.checkpoints.rollback_path,
        )
        self.result: Result | None = None
        """The newest evaluation of this attempt."""
        self.columns: dict[str, float] = dict(progress.memory.get("evaluation", {}))
        """Loss and accuracies of the newest evaluation of all attempts, by name."""
        self._counts: Sequence[int] = ()
        """Number of validation images of each class; empty before the first evaluation."""
        self._sets = {name: data.identity(d.source) for name, d in stage.splits.further.items()}
        self.profiler: Profiler | None = None
        """Traces a few steps."""
        if plan.profile_steps and jax.process_index() == 0:
            folder = self.place.logs / "profile"
            self.profiler = Profiler(plan.profile_steps, folder, self.clock, self.console.note)

    @property
    def first_stage(self) -> Stage:
        """The first stage; most runs have only one."""
        return self.stages[0]

    def stage_at(self, step: int) -> Stage:
        """Return the stage of step number ``step``, from 1."""
        return stage_at(self.stages, step)

    @property
    def compile_s(self) -> float:
        """Seconds of compilation of all stages."""
        return self._search_s + sum(stage.compile_s for stage in self.stages)

    def warn_of_unreadable(self) -> None:
        """Warn of every example that cannot be decoded, without a list on disk."""
        for split in self.unreadable.values():
            split.connect(lambda n, reason: self.console.warn(f"{n} cannot be decoded: {reason}"))

    def prepare(self) -> None:
        """Compile all that training will call, so that no step waits for a compilation."""
        for stage in self.stages:
            stage.prepare()

    def waited(self, seconds: float) -> None:
        """Count the wait for a microbatch; note the end of the step before, if it has ended."""
        self.clock.waited(seconds)
        if self.pending is not None and self.pending[1].values.is_ready():
            self.log.ended(self.pending[0])

    # ---- Health

    def judge(self, step: int, metrics: Metrics) -> Verdict:
        """Check loss, gradient norm and accuracy of a step that has been computed.

        Args:
          step: its number, from 1.
          metrics: on the host.

        Raises:
          HealthError: the run must stop.
        """
        self.watchdog.alive()
        if metrics.stop is not None and metrics.stop > 0:
            self.stop_reason = self.watchdog.requested or "another process was asked to stop"
        stage = self.plan.stage_at(step)
        left_out = 0 if metrics.left_out is None else round(float(metrics.left_out))
        images = stage.samples_per_step - left_out * stage.local_images
        square = float(metrics.gradient_norm) ** 2
        self.log.noise.add(float(metrics.small_square), square, stage.local_images, images)
        try:
            verdict = self.health.look(
                step,
                float(metrics.loss),
                float(metrics.gradient_norm),
                top1=float(metrics.top1),
                images=images,
            )
        except HealthError as error:
            self.log.event("unhealthy", step, why=str(error))
            raise
        return self._reported(step, verdict)

    def judge_state(self, step: int, state: TrainState) -> Verdict:
        """Check that all numbers of the state after a step are finite; waits for the step.

        Raises:
          HealthError: the run must stop.
        """
        return self._reported(step, self.health.look_at_state(step, self.is_finite(step, state)))

    def is_finite(self, step: int, state: TrainState) -> bool:
        """Whether all numbers of the state after a step are finite, on all processes; waits."""
        finite = self.stage_at(step).steps.finite(state)
        # With faulty memory, the copies of the processes may differ.
        return bool(processes.agreed_minimum(int(finite)))

    def _reported(self, step: int, verdict: Verdict) -> Verdict:
        if verdict.text:
            self.console.warn(verdict.text)
        if verdict.action != "continue":
            self.log.event(verdict.action, step)
        return verdict

    # ---- Evaluation

    def evaluate(self, step: int, state: TrainState) -> TrainState:
        """Evaluate the state after ``step``; `result` has the result.

        Returns:
          The state with the BatchNorm statistics of the evaluation.

        Raises:
          Interrupted: the run must stop.
        """
        stage, position = self.stage_at(step), self.plan.position(step)
        state = with_final_statistics(stage, stage.placed(state), position, self.watchdog)
        counts = None if self._counts else np.zeros(stage.plan.facts.classes, np.int32)
        self.result = evaluate(stage, state, self.watchdog, counts)
        if counts is not None:
            self._counts = processes.gather(counts).sum(axis=0).tolist()
        self.columns = self.result.columns | self.result.set_columns
        return state

    def report_evaluation(self, step: int, seconds: float) -> dict[str, float]:
        """Print the newest result, which took some seconds; return its columns of the log."""
        result = self.result
        self.console.evaluation(
            step,
            epoch=self.log.epoch(step),
            loss=result.loss,
            top1=result.top1,
            top5=result.top5 if self.plan.facts.classes > 5 else None,
            ema_top1=result.ema and result.ema.top1,
            sets={name: other.top1 for name, other in result.sets.items()},
            seconds=seconds,
            target=self.target.look(step, self.clock.wall_s(), result.top1),
        )
        own = {f"validation/{name}": value for name, value in result.columns.items()}
        return own | result.set_columns

    def judge_evaluation(self, step: int) -> None:
        """Note the newest evaluation, of the state after a step, for later verdicts."""
        results = [self.result, *([self.result.ema] if self.result.ema else [])]
        self.health.look_at_evaluation(
            step,
            top1=max(each.top1 for each in results),
            loss=min(each.loss for each in results),
            counts=self._counts,
        )

    @property
    def target(self) -> Target:
        """What the evaluations of all attempts have reached."""
        return self.log.target

    # ---- Checkpoints

    def progress(self, step: int) -> Progress:
        """Return where the run is after ``step``, for a checkpoint or the summary."""
        return Progress(
            step=step,
            samples=self.plan.position(step),
            wall_s=self.clock.wall_s(),
            compile_s=self.initial.compile_s + self.compile_s,
            **self.clock.spent(),
            skips=self.health.skips,
            rollbacks=self.health.rollbacks,
            memory={
                "row": self.log.memory(),
                "noise": self.log.noise.memory(),
                "health": self.health.memory(),
                "evaluation": self.columns,
                "sets": self._sets,
            },
        )

    def save(
        self,
        step: int,
        state: TrainState,
        *,
        evaluation_due: Metrics | None = None,
        validation_top1: float = -1.0,
        for_stop: bool = False,
    ) -> None:
        """Start to save the state after ``step``.

        Args:
          step: its number.
          state: after it.
          evaluation_due: metrics of the step, on the host, if its evaluation was interrupted; the
            next attempt repeats the evaluation and reports them.
          validation_top1: accuracy of this state, a fraction; -1 if it was not evaluated.
          for_stop: whether an uninterrupted run has no checkpoint here.
        """
        self.watchdog.check()
        progress = dataclasses.replace(
            self.progress(step), validation_top1=validation_top1, for_stop=int(for_stop)
        )
        if evaluation_due is not None:
            numbers = {key: float(getattr(evaluation_due, key)) for key in MEASURED}
            progress = dataclasses.replace(progress, evaluation_due=1, **numbers)
        since = time.perf_counter()
        with self.watchdog.section("checkpoint"):
            self.log.flush()  # the log is never behind a checkpoint
            stored = self.first_stage.steps.to_checkpoint(state)
            # The checkpoint said that its evaluation was due; now it is done.
            replace = bool(self.initial.evaluation_due) and step == self.initial.step
            self.checkpoints.save(stored, progress, self.plan, replace=replace)
        self.log.event("checkpoint", step)
        self.clock.checkpoint_s += time.perf_counter() - since
        self.log.times(step, self.compile_s)

    def load(self, step: int, *, until: int) -> TrainState:
        """Return the state of the newest checkpoint of at most ``until`` steps, for a rollback.

        Args:
          step: the step that it becomes the state of; its stage gives the shardings.
          until: the last step before a failure.
        """
        with self.watchdog.section("checkpoint"):
            found = self.checkpoints.newest(self.plan, self.checkpoint_shapes, until=until)
            stored = on_devices(found.state, self.checkpoint_shapes)
            state = self.first_stage.steps.from_checkpoint(stored)
            return self.stage_at(step).placed(state)

    def wait_for_checkpoint(self) -> None:
        """Wait until process 0 has written the newest checkpoint."""
        since = time.perf_counter()
        with self.watchdog.section("checkpoint"):
            processes.first_process_does(self.checkpoints.wait)
        self.clock.checkpoint_s += time.perf_counter() - since

    def summary(self, status: Status) -> Summary:
        """Return the summary of the run, as this attempt leaves it.

        Args:
          status: how the attempt ended.
        """
        progress, target = self.progress(self.step), self.target
        evaluated = dict.fromkeys(("top1", "top5", "loss")) | self.columns
        return Summary(
            status=status,
            **{key: value for key, value in evaluated.items() if "/" not in key},
            steps=progress.step,
            samples=progress.samples,
            wall_s=progress.wall_s,
            compile_s=progress.compile_s,
            images_per_s=progress.samples / progress.train_s if progress.train_s > 0 else None,
            **self.clock.spent(),
            skips=progress.skips,
            rollbacks=progress.rollbacks,
            unreadable=sum(len(split.found) for split in self.unreadable.values()),
            target_top1=target.top1 or None,
            target_step=target.step,
            target_s=target.seconds,
            **self.log.noise.columns(),
            sets={key: value for key, value in evaluated.items() if "/" in key},
        )


def _open_data(config: Config, devices: int) -> tuple[Sequence[Splits], Facts]:
    """Open the data of each stage; return it with the facts of the first."""
    opener = functools.cache(data.open_dataset)  # most stages share one source
    splits = []
    for stage in stages_of(config):
        train, validation = (
            open_split(stage.config, split, opener) for split in ("train", "validation")
        )
        further = open_validation_sets(stage.config, validation, opener)
        splits.append(Splits(train, validation, further))
    facts = facts_of(splits[0].train, splits[0].validation, devices, jax.process_count())
    return splits, facts
