"""Small runs for tests: a plan on some fake devices, with its step functions and data."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from largebatch import parallel
from largebatch.checkpoint.checkpoints import manifest_of
from largebatch.checkpoint.file import by_path
from largebatch.checkpoint.place import LocalPlace
from largebatch.config import Config, Facts, freeze, override
from largebatch.config.resolution import resolve
from largebatch.parallel import from_local
from largebatch.parallel.transfer import Augmented, OnDevices
from largebatch.tracking import Console, Summary, read_rows
from largebatch.training import dispatch, session
from largebatch.training.rules import optimizer_of
from largebatch.training.run import Run
from largebatch.training.session import Request
from largebatch.training.stage import Stage
from largebatch.training.state import Metrics, TrainState
from largebatch.training.steps import Steps, model_of
from tests import reference

ROOT = Path(__file__).parents[2]
SHAPE = (16, 16, 2)
CLASSES = 7
SMALL = {"name": "tests.training.own_models:Small", "width": 64, "stem": "conv7"}
"""Options of the section ``model`` for runs on digits that need no ResNet."""
SMALL_TWO = SMALL | {"name": "tests.training.own_models:small_two"}
"""The same on images of two channels."""
RESNET = SMALL | {"name": "tests.training.own_models:resnet"}
"""A ResNet of two blocks on images of two channels."""
TIMES = {"images_per_s", "input_wait", "seconds"}
"""Columns of metrics.jsonl that differ from run to run."""
MEAN, STD = (120.0, 100.0), (50.0, 70.0)
RATES = (0.5, 0.3, 0.4)
EQUAL = 1e-10
"""Rounding in float64 leaves about 1e-15 of the largest value of an array; three steps through
seven layers amplify that to less than 5e-13. This is two hundred times that, and a million times
below the least mistake known: statistics of a wrong span move gradients by more than 1e-3."""


def config(**sections: Any) -> Config:
    """Eight workers of three small images; ``section={...}`` changes it."""
    base = {
        "model": {"name": "resnet10", "width": 4, "stem": "small"},
        "batch": {"workers": 8, "images_per_worker": 3},
        "schedule": {"length": "10 steps", "peak": 2.0, "warmup": "0 epochs"},
        "optimizer": {"trust_coefficient": 0.02, "weight_decay": 1e-3},
        "comm": {"bucket_mib": 0.05},
    }
    for section, options in sections.items():
        base[section] = {**base.get(section, {}), **options}
    return freeze(base)


def digits(steps: int, every: int, **sections: Any) -> Config:
    """A short run of a small network on digits, evaluated and saved every so many steps."""
    base = {
        "model": SMALL,
        "batch": {"workers": 8, "images_per_worker": 10, "microbatch": 1},
        "data": {"source": "digits"},
        "schedule": {"length": f"{steps} steps", "warmup": "2 steps", "peak": 1.0},
        "run": {
            "log_every": "1 steps",
            "evaluate_every": f"{every} steps",
            "checkpoint_every": f"{every} steps",
        },
    }
    for section, options in sections.items():
        base[section] = {**base.get(section, {}), **options}
    return config(**base)


def train(config: Config, workdir: Path, devices: int = 2, **request: Any) -> Summary | None:
    """Run a training in a directory on some of the fake devices."""
    request = Request(recipe=workdir, workdir=workdir, **request)
    return session.run(config, request, devices=jax.devices()[:devices])


def slow(*case: Any) -> Any:
    """A case of a table that only the complete test suite runs."""
    return pytest.param(*case, marks=pytest.mark.slow)


def changed(config: Config, **options: str) -> Config:
    """The configuration with ``section__option="text"`` as on the command line."""
    for key, text in options.items():
        config = override(config, key.replace("__", "."), text)
    return config


def rows(workdir: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without its times."""
    found = read_rows(workdir / "metrics.jsonl")
    return [{key: v for key, v in row.items() if key not in TIMES} for row in found]


def summary(workdir: Path) -> dict[str, Any]:
    """The summary that a run left."""
    return json.loads((workdir / "summary.json").read_text())


def manifest(workdir: Path, step: int) -> dict[str, Any]:
    """The manifest of a checkpoint."""
    return dataclasses.asdict(manifest_of(LocalPlace(workdir), step))


def digests(workdir: Path, step: int) -> dict[str, str]:
    """The digest of each array of a checkpoint: equal where the arrays are bitwise identical."""
    return manifest(workdir, step)["arrays"]


def printed_by_two(program: str, workdir: Path) -> list[str]:
    """The lines that a program prints as two processes, given the directory as its argument."""
    script = workdir / "two.py"
    script.write_text(program)
    command = ["scripts/launch_local.py", "--processes=2", "--", str(script), str(workdir)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def build(
    config: Config, console: Console | None = None, devices: Sequence[jax.Device] | None = None
) -> Run:
    """A run that is ready to train."""
    return Run.open(config, console or Console(quiet=True), devices).build()


@contextlib.contextmanager
def built_once() -> Iterator[None]:
    """Runs of the same configuration share their programs; others share what is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        made, original = {}, Run.build

        def built(run: Run, *, evaluated_step: int | None = None) -> Run:
            if evaluated_step is not None:
                return original(run, evaluated_step=evaluated_step)
            program = json.dumps(dataclasses.asdict(run.config), default=str)
            key = program, tuple(run.devices)
            if key not in made:
                made[key] = original(run)
            run.plan, run.stages = made[key].plan, made[key].stages
            return run

        patch.setattr(Run, "build", built)
        yield


def steps(
    made: Config, devices: int, microbatch: int | None = None, dtype: str = "float64"
) -> Steps:
    """The step functions of a configuration on some of the fake devices."""
    facts = Facts(1000, 100, CLASSES, SHAPE, devices=devices)
    plan = resolve(made, facts, microbatch=microbatch)
    mesh = parallel.make_mesh(jax.devices()[:devices], plan.first_stage.members)
    model = model_of(plan)
    rule = optimizer_of(made, model.kinds())
    return Steps(plan.first_stage, model, rule, mesh, MEAN, STD, dtype)


def batch(seed: int, images: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images, each with a brightness and contrast of its own, and labels."""
    draw = np.random.default_rng(seed)
    centre = draw.uniform(60, 200, (images, 1, 1, 1))
    spread = draw.uniform(5, 60, (images, 1, 1, 1))
    pixels = np.clip(draw.normal(centre, spread, (images, *SHAPE)), 0, 255).astype(np.uint8)
    return pixels, draw.integers(0, CLASSES, images).astype(np.int32)


def run_step(
    stage: Stage,
    state: TrainState,
    images: np.ndarray | Augmented,
    labels: np.ndarray,
    rate: float,
    step: int = 400,
) -> tuple[TrainState, Metrics]:
    """One step on a whole global batch, fed as the plan's microbatches.

    By default one of the many in which running statistics have their full memory.
    """
    count = stage.steps.plan.microbatches

    def part(index: int) -> OnDevices:
        def sent(array: np.ndarray) -> jax.Array:
            return from_local(stage.steps.mesh, np.split(array, count)[index])

        return OnDevices(*jax.tree.map(sent, (images, labels)))

    feed = map(part, range(count))
    plan = resolve(stage.steps.plan.config, stage.steps.plan.facts)
    rates = plan.rates(1)._replace(learning_rate=rate, step=step)
    return dispatch.run_step(stage, state, feed, rates)


def place(stage: Stage, state: TrainState) -> TrainState:
    """A copy of a state, as checkpoints hold it, on the devices of a program."""
    stored = jax.tree.map(
        lambda x, like: jax.device_put(np.asarray(x, like.dtype), like.sharding),
        state,
        stage.checkpoint_shapes,
    )
    return stage.steps.from_checkpoint(stored)


def trained(
    stage: Stage, begin: TrainState, rates: Sequence[float] = RATES, batch: Any = batch
) -> tuple[TrainState, list[Metrics]]:
    """The state after a step at each rate, as checkpoints hold it, and the metrics of each.

    Without the noise, which is a property of the microbatches.
    """
    state, seen = place(stage, begin), []
    for step, rate in enumerate(rates):
        images, labels = batch(step, stage.plan.samples_per_step)
        state, metrics = run_step(stage, state, images, labels, rate)
        seen.append(Metrics(jax.device_get(metrics.values.at[4].set(0))))
    return jax.device_get(stage.steps.to_checkpoint(state)), seen


def errors(found: Any, expected: Any) -> dict[str, float]:
    """By path, the largest difference as a share of the largest value of the array."""
    ours, theirs = by_path(found), by_path(expected)
    assert ours.keys() == theirs.keys()
    return {
        # What has no gradient, such as the bias of a key, has rounding alone.
        path: float(np.abs(ours[path] - value).max(initial=0))
        / max(np.abs(value).max(initial=0), 1e-6)
        for path, value in theirs.items()
    }


def assert_equal(found: Any, expected: Any, tolerance: float = EQUAL) -> None:
    """Two trees are equal but for rounding; an integer must be the same."""
    wrong = {path: error for path, error in errors(found, expected).items() if error > tolerance}
    assert not wrong


def random_state(stage: Stage) -> TrainState:
    """The state of a stage with the parameters and statistics of the reference's network."""
    params, stats = reference.random_params(
        5, depth=6, width=4, channels=2, classes=CLASSES, dtype="float64"
    )
    fresh = jax.device_get(stage.steps.to_checkpoint(stage.init(np.int32(0))))
    ema = fresh.ema and fresh.ema._replace(params=params, stats=stats)
    return fresh._replace(params=params, stats=stats, ema=ema)


def assert_equal_to_reference(
    stage: Stage, rule: str, norm_momentum: float = 0.9, step: int = 400, **more: Any
) -> TrainState:
    """Steps equal those of the reference, which loops over workers; return the state after them."""
    plan, options = stage.plan, stage.plan.config
    start = random_state(stage)
    state, params, stats = place(stage, start), start.params, start.stats
    velocity = jax.tree.map(np.zeros_like, params)
    for index, rate in enumerate(RATES if step == 400 else RATES[:1]):
        images, labels = batch(index, plan.samples_per_step)
        state, metrics = run_step(stage, state, images, labels, rate, step + index)
        expected = reference.step(
            *(params, stats, velocity, images, labels),
            workers=plan.workers,
            span=plan.span,
            depth=6,
            mean=MEAN,
            std=STD,
            epsilon=options.norm.epsilon,
            norm_momentum=norm_momentum,
            unbiased=options.norm.running_variance == "unbiased",
            label_smoothing=options.loss.label_smoothing,
            optimizer=rule,
            learning_rate=rate,
            trust_coefficient=options.optimizer.trust_coefficient,
            lars_epsilon=options.optimizer.epsilon,
            momentum=options.optimizer.momentum,
            weight_decay=options.optimizer.weight_decay,
            nesterov=options.optimizer.nesterov,
            **more,
        )
        params, stats, velocity = expected.params, expected.stats, expected.velocity
        np.testing.assert_allclose(metrics.loss, expected.loss, rtol=EQUAL)
        assert round(float(metrics.top1) * plan.samples_per_step) == expected.correct
        norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(expected.gradients)))
        np.testing.assert_allclose(metrics.gradient_norm, norm, rtol=EQUAL)
    found = jax.device_get(state)
    assert_equal(found.params, params)
    assert_equal(found.stats, stats)
    if not stage.steps.frozen:
        assert_equal(found.optimizer.momentum, velocity)
    return found
