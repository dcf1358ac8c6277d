"""The main thread's CPU time in a training step: what the host adds if the device is fast.

    host --json records/host.json
    host --json records/host.json --before EARLIER.json

The trainer's loop runs a ResNet-50 with its data feed, its checks, its log and its trackers, on the
CPU. The compiled train step is replaced by a program with the same arguments and results that
computes nothing, because the number of arrays decides the time of a call, not their size. Figures
are CPU time of one thread, so that other programs on the machine matter little.
"""

import argparse
import contextlib
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import training
from benchmarks.competitor import Competitor, Figures, Race
from benchmarks.measure import Result, read_record, require_positive
from benchmarks.training import StepWork
from largebatch.checkpoint.checkpoints import Checkpoints
from largebatch.checkpoint.file import Progress
from largebatch.checkpoint.place import LocalPlace
from largebatch.errors import ConfigError
from largebatch.parallel import REPLICATED, SPLIT, map_over
from largebatch.training.dispatch import run_step
from largebatch.training.log import Log
from largebatch.training.loop import train
from largebatch.training.run import Run
from largebatch.training.stage import Stage

OVERRIDES = True
_ROW, _LAYERS = 10, 50  # steps between two rows of metrics.jsonl and of layers.jsonl
_CALLS = 200
_NAME = "main thread"

PyTree = Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--steps", type=int, default=200, help="steps of a repeat (200)")
    add("--repeats", type=int, default=5, help="repeats, after one to warm up (5)")
    add("--before", type=Path, metavar="FILE", help="record of an earlier commit, as the peer")
    add("--network", default="resnet50", choices=training.DEPTHS, help="network (resnet50)")
    add("--width", type=int, default=1, help="channels of the first stage (1)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Measure a whole loop, then its calls alone.

    Raises:
        ConfigError: A number below 1, options that do not fit each other, or no such record.
    """
    require_positive(flags, "steps", "repeats", "width")
    earlier = _earlier(flags.before, flags.repeats) if flags.before else None
    long = f"{10 * flags.steps} steps"  # a checkpoint or an evaluation would be no part of a step
    own = {
        "schedule.length": long,
        "run.evaluate_every": long,
        "run.checkpoint_every": long,
        "run.log_every": f"{_ROW} steps",
        "run.layers_every": f"{_LAYERS} steps",
    }
    overrides = (*own.items(), *flags.overrides)
    shape = {"batch": 2, "image_size": 32, "seconds": float(flags.steps), "classes": 10}
    work = StepWork.of(flags, overrides=overrides, **shape)
    with Competitor(ours, work) as competitor:
        competitor.repeat()
        figures = [competitor.repeat() for _ in range(flags.repeats)]
    race = Race({"ours": figures}, about={"ours": competitor.about})
    results = race.results(_NAME)
    return beside(results, earlier) if earlier else results


def _earlier(path: Path, repeats: int) -> Mapping[str, Any]:
    """Read the record of an earlier commit.

    Raises:
        ConfigError: It is not of this benchmark, or of another number of repeats.
    """
    kept = read_record("--before", path, "results", "environment.commit")
    found = [Result.from_json(each) for each in kept["results"] if each.get("name") == _NAME]
    if not found:
        raise ConfigError(f"--before: {path} is no record of benchmark.py host; use one of its own")
    if (before := len(found[0].ours)) != repeats:
        raise ConfigError(f"--repeats={repeats}: {path} has {before}; use --repeats={before}")
    return kept


def beside(results: list[Result], earlier: Mapping[str, Any]) -> list[Result]:
    """The results beside those of an earlier record of the same parts."""
    found = {each["unit"]: Result.from_json(each).ours for each in earlier["results"]}
    name = f"commit {str(earlier['environment']['commit'])[:7]}"
    return [
        dataclasses.replace(each, peer=found[each.unit], peer_name=name)
        if each.unit in found
        else each
        for each in results
    ]


def ours(work: StepWork) -> tuple[Callable[[], Figures], str]:
    """The repeat is a loop of `work.seconds` steps, and its calls alone."""
    run = training.build_run(training.config(work))
    stage, steps = run.first_stage, int(work.seconds)
    leaves = [len(jax.tree.leaves(x)) for x in (stage.state, _results(stage))]
    stage.finish = _without_arithmetic(stage)

    def repeat() -> Figures:
        return _of_loop(run, steps) | _of_calls(run, work)

    return repeat, f"{leaves[0]} arrays of state, {leaves[1]} results of a step"


def _results(stage: Stage) -> PyTree:
    """Shapes of what the train step returns."""
    return jax.eval_shape(stage.steps.finish, *stage.finish_arguments)


def _without_arithmetic(stage: Stage) -> jax.stages.Compiled:
    """A program with the arguments and results of the train step; the state stays as it is."""
    steps, (_, metrics) = stage.steps, _results(stage)

    def finish(state: PyTree, carry: None, images: PyTree, labels: PyTree, rates: PyTree) -> PyTree:
        del carry, images, labels
        rate = jax.tree.leaves(rates)[0].ravel()[0]
        return state, jax.tree.map(lambda x: jnp.full(x.shape, rate, x.dtype), metrics)

    specs = steps.specs, SPLIT, SPLIT, SPLIT, REPLICATED
    mapped = map_over(steps.mesh, finish, specs, (steps.specs, REPLICATED))
    compiled = jax.jit(mapped, donate_argnums=0).lower(*stage.finish_arguments[:5]).compile()
    return lambda *arguments: compiled(*arguments[:5])


def _state(stage: Stage) -> PyTree:
    return jax.tree.map(
        lambda x: jax.device_put(np.ones(x.shape, x.dtype), x.sharding), stage.state
    )


def _of_loop(run: Run, steps: int) -> Figures:
    """Microseconds of a step, and of what is due at intervals, in the trainer's own loop."""
    recorder = _Recorder(steps)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        log = Log(run.plan, run.stages, print)
        log.open(where, {}, Progress(), began, callbacks=recorder)
        log.files.layers = recorder.noting(log.files.layers)
        run.checkpoints = Checkpoints(LocalPlace(where), keep=1, warn=print)
        with (
            contextlib.closing(run.checkpoints),
            contextlib.closing(log),
            contextlib.suppress(_EnoughError),
        ):
            run.start(log, Progress())
            train(run, _state(run.first_stage))
    return recorder.figures()


class _EnoughError(Exception):
    """Ends a loop after the steps to be measured, before its evaluation and checkpoint."""


class _Recorder:
    """Measures the CPU time of its thread from each step to the next, by what they wrote."""

    def __init__(self, steps: int) -> None:
        """Record ``steps`` steps after one interval of rows to warm up."""
        self._last = _LAYERS + steps
        self._written = ""
        self._since = 0.0
        self._spent: dict[str, list[float]] = {}

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        self._written = self._written or "row"

    def noting(self, layers: Callable[..., None]) -> Callable[..., None]:
        """Return the function that writes a row of layers and notes it."""

        def noted(*arguments: object) -> None:
            self._written = "layers"
            layers(*arguments)

        return noted

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        if name != "step":
            return
        now = time.thread_time()
        if step > _LAYERS:
            self._spent.setdefault(self._written or "step", []).append(now - self._since)
        self._written, self._since = "", now
        if step >= self._last:
            raise _EnoughError

    def close(self) -> None:
        """Do nothing: it has no files."""

    def figures(self) -> Figures:
        """Microseconds of a step, and what a row of each kind adds."""
        step, row, layers = (1e6 * _fast_s(self._spent[name]) for name in ("step", "row", "layers"))
        mean = step + (row - step) / _ROW + (layers - row) / _LAYERS
        return {
            "µs a step": step,
            "µs more with a row of metrics.jsonl": row - step,
            "µs more with a row of layers.jsonl": layers - row,
            f"µs a step, with rows each {_ROW} and {_LAYERS} steps": mean,
        }


def _of_calls(run: Run, work: StepWork) -> Figures:
    """Microseconds of the calls of a step alone."""
    stage = run.first_stage
    batches = list(training.placed_batches(run, work))
    feed, rates, state = itertools.cycle(batches), run.plan.rates(1), _state(stage)
    state, metrics = run_step(stage, state, feed, rates)
    given = np.float32(rates)

    def call() -> None:
        nonlocal state
        state, _ = stage.finish(state, None, *batches[0][:2], given, None)

    def step() -> None:
        nonlocal state, metrics
        state, metrics = run_step(stage, state, feed, run.plan.rates(50))

    parts = {
        "µs of the compiled call": _spent_s(call),
        "µs of run_step": _spent_s(step),
        "µs to fetch the metrics": _spent_s(lambda: jax.device_get(metrics), before=step),
    }
    return {name: 1e6 * _fast_s(spent) for name, spent in parts.items()}


def _spent_s(
    function: Callable[[], object], before: Callable[[], object] = lambda: None
) -> list[float]:
    """Return the CPU seconds of this thread in each of some calls; ``before`` is not measured."""
    spent = []
    for _ in range(_CALLS):
        before()
        since = time.thread_time()
        function()
        spent.append(time.thread_time() - since)
    return spent


def _fast_s(seconds: list[float]) -> float:
    """Return the lowest decile: what else runs on the machine only adds, by cold caches."""
    return sorted(seconds)[len(seconds) // 10]
