"""Everything once on made-up images, so that a clocked run meets nothing for the first time."""

import contextlib
from collections.abc import Generator

import jax
import numpy as np

from largebatch import data, parallel
from largebatch.optim import Rates
from largebatch.parallel.transfer import on_devices
from largebatch.training.evaluation import evaluate_batch
from largebatch.training.execution import run_step
from largebatch.training.setup import Run, StageRun
from largebatch.training.state import TrainState


def warm_up(run: Run) -> None:
    """Execute what training will call: initialisation and, of each stage, a step and evaluation.

    The first execution of a compiled program loads it, opens the connections of its collectives
    and takes memory; no example of the data set is read for it, and nothing of it is kept.
    """
    state = run.first_stage.programs.init(np.int32(run.plan.config.run.seed))
    for stage in run.stages:
        state = _stage_once(stage, stage.placed(state), run.plan.rates(1))


def _stage_once(stage: StageRun, state: TrainState, rates: Rates) -> TrainState:
    programs, plan = stage.programs, stage.plan
    with contextlib.closing(on_devices(stage.mesh, _microbatches(stage))) as feed:
        state, _ = run_step(programs, state, feed, rates)
    with contextlib.closing(on_devices(stage.mesh, _evaluation_batches(stage))) as batches:
        for batch in batches:
            jax.block_until_ready(evaluate_batch(programs, state.params, state.stats, batch))
    if plan.norm_statistics == "precise":
        with contextlib.closing(on_devices(stage.mesh, _microbatches(stage))) as feed:
            images = next(feed).images
        jax.block_until_ready(programs.measure_statistics(state.params, state.stats, images))
    return state


def _microbatches(stage: StageRun) -> Generator[data.Microbatch]:
    """Those of one step."""
    for _ in range(stage.plan.microbatches):
        images, labels, crops = _made_up(stage, stage.plan.facts.image_shape[:2])
        yield data.Microbatch(images, labels, 0, np.zeros(len(labels), np.int64), crops)


def _evaluation_batches(stage: StageRun) -> Generator[data.EvaluationBatch]:
    """One of each shape."""
    for view in stage.validation_views:
        images, labels, crops = _made_up(stage, view.shape)
        yield data.EvaluationBatch(
            images, labels, np.ones(len(labels), np.float32), view.shape, crops
        )


def _made_up(
    stage: StageRun, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Grey noise for this process's rows, class 0, and crops where devices cut them."""
    facts = stage.plan.facts
    start, stop = parallel.local_rows(stage.mesh, stage.plan.microbatch_samples)
    side, channels = facts.stored_size, facts.image_shape[2]
    height, width = (side, side) if side else shape
    # One image for all rows: gradients are none of the usual, and the noise costs no time.
    image = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    images = np.broadcast_to(image, (stop - start, *image.shape)).copy()
    crops = np.full((stop - start, 5), (0, 0, side, side, 0), np.int32) if side else None
    return images, np.zeros(stop - start, np.int32), crops
