"""Run every program once: the warm-up of a clocked run, and ``--dry_run``."""

import contextlib
import shutil
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from largebatch import data, parallel
from largebatch.checkpoint import run_directory as directory
from largebatch.checkpoint.checkpoints import Checkpoints, steps_in
from largebatch.checkpoint.file import Progress
from largebatch.checkpoint.place import LocalPlace, is_own, remove_if_empty
from largebatch.errors import CheckpointError, UserError, counted
from largebatch.optim import Rates
from largebatch.parallel import processes
from largebatch.parallel.transfer import on_devices
from largebatch.training import description
from largebatch.training.dispatch import run_step
from largebatch.training.evaluation import evaluate_batch
from largebatch.training.initialization import initial_state
from largebatch.training.memory import GIB
from largebatch.training.run import Run
from largebatch.training.stage import Stage
from largebatch.training.state import TrainState
from largebatch.training.timing import Clock

if TYPE_CHECKING:  # few runs begin with weights
    from largebatch.weights import Weights

STEPS = 2


def warm_up(run: Run) -> None:
    """Execute the initialization and, for each stage, a step and an evaluation batch.

    The first execution of a compiled program loads it, opens the connections of its collectives and
    allocates memory. No example of the dataset is read, and no result is kept.
    """
    state = run.first_stage.init(np.int32(run.plan.config.run.seed))
    for stage in run.stages:
        state = _stage_once(stage, stage.placed(state), run.plan.rates(1))


def _stage_once(stage: Stage, state: TrainState, rates: Rates) -> TrainState:
    plan = stage.plan
    with contextlib.closing(on_devices(stage.mesh, _microbatches(stage))) as feed:
        state, _ = run_step(stage, state, feed, rates)
    with contextlib.closing(on_devices(stage.mesh, _evaluation_batches(stage))) as batches:
        for batch in batches:
            jax.block_until_ready(evaluate_batch(stage, state.params, state.stats, batch))
    if plan.norm_statistics == "precise":
        with contextlib.closing(on_devices(stage.mesh, _microbatches(stage))) as feed:
            images = next(feed).images
        jax.block_until_ready(stage.measure_statistics(state.params, state.stats, images))
    return state


def _microbatches(stage: Stage) -> Generator[data.Microbatch]:
    """Yield the microbatches of one step, of synthetic images."""
    for _ in range(stage.plan.microbatches):
        images, labels = _made_up(stage, stage.plan.facts.image_shape[:2])
        ids, options = np.zeros(len(labels), np.int64), stage.plan.config.augment
        erased = np.zeros((len(labels), 4), np.int32) if options.erase else None
        mixtures = np.zeros((len(labels), 6), np.float32) if options.mixes else None
        yield data.Microbatch(images, labels, 0, ids, erased, mixtures)


def _evaluation_batches(stage: Stage) -> Generator[data.EvaluationBatch]:
    """Yield one batch of each shape, of synthetic images."""
    for view in stage.views_of_sets["validation"]:
        images, labels = _made_up(stage, view.shape)
        yield data.EvaluationBatch(images, labels, np.ones(len(labels), np.float32))


def _made_up(stage: Stage, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return grey noise of a height and width for this process's rows, and class 0."""
    start, stop = parallel.local_rows(stage.mesh, stage.plan.microbatch_samples)
    channels = stage.plan.facts.image_shape[2]
    # One image for all rows: generating noise for each would take time.
    image = np.random.default_rng(0).integers(0, 256, (*shape, channels), np.uint8)
    images = np.broadcast_to(image, (stop - start, *image.shape)).copy()
    return images, np.zeros(stop - start, np.int32)


def dry_run(run: Run, weights: "Weights | None" = None) -> None:
    """Compile, train two steps, evaluate one batch, save and restore; a line for each part.

    All processes have compared their programs, options and data by then.

    Args:
      run: ready to start; what is written into its directory is removed.
      weights: those of ``model.init_from``, if they have been read already.

    Raises:
      UserError: what would stop the run too.
    """
    place = run.place.logs / ".dry_run"
    processes.first_process_does(lambda: _check_left_behind(place))
    first = jax.process_index() == 0
    with remove_if_empty(place) if first else contextlib.nullcontext():
        try:
            if jax.process_index() == 0:
                run.watchdog.finally_do(
                    "dry run", lambda *_: shutil.rmtree(place, ignore_errors=True)
                )
            processes.first_process_does(
                lambda: directory.prepare(LocalPlace(place), archive=False)
            )
            _rehearse(run, place, weights)
        finally:
            if jax.process_index() == 0:
                shutil.rmtree(place, ignore_errors=True)


def _check_left_behind(place: Path) -> None:
    """Raise a UserError unless a killed dry run has left this directory, which is deleted."""
    paths = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
    if place.is_symlink() or not all(map(is_own, paths)):
        raise UserError(f"{place} is not of a dry run, which would delete it; rename it")


def _rehearse(run: Run, place: Path, weights: "Weights | None") -> None:
    plan, console, request, watchdog = run.plan, run.console, run.request, run.watchdog
    run.warn_of_unreadable()
    with (
        watchdog.section("compile"),
        console.compiling("initialisation, train step and evaluation"),
    ):
        run.prepare()
        state = initial_state(run, weights)
    eta, evaluations = run.compile_s, 0
    for stage in run.stages:
        with watchdog.section("step"):
            state, step_s, evaluation_s = _rehearse_stage(run, stage, stage.placed(state))
        steps = range(stage.plan.first_step + 1, stage.plan.last_step + 1)
        count = sum(plan.evaluates_at(step) or step == plan.steps for step in steps)
        eta += len(steps) * step_s + count * evaluation_s
        evaluations += count

    with watchdog.section("checkpoint"):
        saved_s, disk = _save_and_restore(run, state, place)
    rounds, hosts = counted(evaluations, "evaluation"), plan.facts.processes
    console.closing(
        [
            (
                "processes",
                f"{hosts:,}, alike in program, versions, options, environment and data"
                if hosts > 1
                else "one",
            ),
            ("run directory", f"{request.place}: {_state_of(run)}"),
            ("disk", disk),
            ("compile", f"{run.compile_s:.1f} s"),
            ("memory", description.memory(run)),
            ("checkpoint", f"saved and restored in {saved_s:.1f} s, bitwise identical"),
            ("ETA", f"{eta:,.0f} s for {plan.steps:,} steps and {rounds}"),
        ],
        "dry run succeeded; nothing was kept",
    )


def _state_of(run: Run) -> str:
    """Return whether a training may start in the run directory, and from where."""
    if (who := run.place.holder()) is not None:
        return f"in use by {who}; a training is refused until it ends, use another --workdir"
    step = max(steps_in(run.place), default=None)
    if step is None:
        return "free"
    if run.request.resume == "never":
        return "free; a training moves the earlier run to previous/"
    return f"free; a training resumes from step {step:,}"


def _rehearse_stage(run: Run, stage: Stage, state: TrainState) -> tuple[TrainState, float, float]:
    """Run the first steps of a stage and evaluate one batch.

    Returns:
      The state; the seconds of a step, and of an evaluation.
    """
    plan, console = stage.plan, run.console
    seconds, clock = [], Clock()
    begin = plan.first_sample
    stop = begin + STEPS * plan.samples_per_step + plan.microbatch_samples
    with contextlib.closing(stage.train_microbatches(begin, stop, waited=clock.waited)) as feed:
        for step in range(plan.first_step + 1, plan.first_step + 1 + STEPS):
            start, waited = time.perf_counter(), clock.wait_s
            state, metrics = run_step(stage, state, feed, run.plan.rates(step), run.watchdog)
            loss = float(metrics.loss)
            seconds.append(time.perf_counter() - start)
            console.note(
                f"step {step}  loss {loss:.4f}  {seconds[-1]:.2f} s, "
                f"{plan.samples_per_step / seconds[-1]:,.0f} images/s, "
                f"{(clock.wait_s - waited) / seconds[-1]:.0%} of it waiting for data"
            )
        if plan.norm_statistics == "precise":
            images = next(feed).images
            jax.block_until_ready(stage.measure_statistics(state.params, state.stats, images))

    run.watchdog.alive()
    start = time.perf_counter()
    with contextlib.closing(stage.validation_batches()) as batches:
        batch = next(batches)
    sums, _ = jax.device_get(evaluate_batch(stage, state.params, state.stats, batch))
    evaluation_s = time.perf_counter() - start
    console.note(
        f"evaluation of {sums.count:.0f} images  loss {sums.loss / sums.count:.4f}  "
        f"{evaluation_s:.2f} s"
    )
    count = -(-plan.facts.validation_examples // plan.microbatch_samples)
    return state, seconds[-1], count * evaluation_s


def _save_and_restore(run: Run, state: TrainState, place: Path) -> tuple[float, str]:
    """Return the seconds that a save and a restore take, and the disk space of all checkpoints.

    Raises:
      CheckpointError: the restored state is not bitwise identical to the saved one.
    """
    start = time.perf_counter()
    progress = Progress(step=STEPS, samples=run.plan.position(STEPS))
    options, like = run.plan.config.run, run.checkpoint_shapes
    opened = Checkpoints(
        LocalPlace(place),
        keep=options.keep_checkpoints,
        keep_best=options.keep_best,
        warn=run.console.warn,
    )
    with contextlib.closing(opened) as checkpoints:
        checkpoints.check_space(like)
        needed, free = checkpoints.space(like)
        state = run.stages[-1].steps.to_checkpoint(state)
        checkpoints.save(state, progress, run.plan)
        checkpoints.wait()
        if isinstance(run.place, LocalPlace):
            restored = checkpoints.newest(run.plan, like)
        else:
            restored = processes.first_process_does(lambda: checkpoints.read(STEPS, run.plan, like))
    saved = jax.device_get(jax.tree.leaves(state))
    stored = saved if restored is None else jax.tree.leaves(restored.state)
    if [a.tobytes() for a in saved] != [b.tobytes() for b in stored]:
        raise CheckpointError(
            f"the checkpoint restored from {place} differs from what was saved; check the disk"
        )
    processes.wait_for_all("dry run restored")
    disk = f"{needed / GIB:,.2f} GiB needed for checkpoints"
    if isinstance(run.place, LocalPlace):
        disk += f", {free / GIB:,.1f} GiB free"
    return time.perf_counter() - start, disk
