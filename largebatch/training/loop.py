"""The training loop: dispatch a step, examine the one before it, evaluate, save.

All processes make the same calls. The host waits for the devices only in `_examine_pending`, while
they compute the next step, and in `_settle`, where something is due.
"""

import contextlib
import time
from collections.abc import Iterator

import jax
import numpy as np

from largebatch.config.plan import Due
from largebatch.fault_tolerance import Interrupted
from largebatch.fault_tolerance.health import WELL, Verdict
from largebatch.parallel.transfer import OnDevices
from largebatch.training import checks
from largebatch.training.dispatch import run_step
from largebatch.training.run import Run
from largebatch.training.stage import Stage
from largebatch.training.state import MEASURED, Metrics, TrainState


def train(run: Run, state: TrainState) -> TrainState:
    """Train from where a run has started to its last step or ``run.stop_after``.

    Args:
      run: started.
      state: of its first step; donated.

    Returns:
      The state after the last step, which has been evaluated and saved.

    Raises:
      Interrupted: the run must stop; the state of the last step has been saved.
      HealthError: a loss or gradient is not finite, or the training has diverged.
    """
    plan, first = run.plan, run.initial.step
    last = max(first, plan.stop_after_step)
    if last > first:
        run.log.event("train_start", first)
    with run.console.progress(
        plan.steps, first, samples_per_step=plan.first_stage.samples_per_step
    ) as run.bar:
        if run.initial.evaluation_due:
            state = _repeat_evaluation(run, first, state)
        for stage in run.stages:
            begin, end = max(first, stage.plan.first_step), min(last, stage.plan.last_step)
            if begin < end:
                state = _train_stage(run, stage, stage.placed(state), begin, end)
    # Also where nothing was left to train: a kill may have come after the last checkpoint.
    run.log.event("train_stop", last)
    if run.result is None:
        with run.watchdog.section("evaluation"):
            state = run.evaluate(last, state)
    return state


def _train_stage(run: Run, stage: Stage, state: TrainState, first: int, last: int) -> TrainState:
    """Train the steps after ``first`` up to ``last``, all of one stage."""
    plan, clock = run.plan, run.clock
    feed = stage.train_microbatches(
        plan.position(first), plan.position(last), run.watchdog, run.waited
    )
    with (
        contextlib.closing(feed),
        contextlib.closing(run.profiler) if run.profiler else contextlib.nullcontext(),
        run.watchdog.section("step"),
    ):
        clock.start()
        for step in range(first + 1, last + 1):
            state, metrics = _dispatch(run, stage, step, state, feed, is_last=step == last)
            # Waits for the previous step while this one computes.
            verdict = _examine_pending(run)
            due = plan.due(step, stop_requested=bool(run.stop_reason))
            run.pending = step, metrics
            rolled_back = verdict.action == "rollback"
            if rolled_back:
                state = _discard_and_roll_back(run, step, metrics, verdict, due)
            if plan.is_due(step, stage.plan.layers_every):
                run.log.layers(step, state)
            if due.synchronizes:
                state = _settle(run, step, state, metrics)
            elif rolled_back:  # saved with the row of layers: the log is never behind
                clock.pause()
                run.save(step, state)
                clock.start()
        verdict = _examine_pending(run)
        if verdict.action == "rollback":
            state = _roll_back(run, verdict, last)
            clock.pause()
            run.save(last, state)
        clock.pause()
    return state


def _dispatch(
    run: Run,
    stage: Stage,
    step: int,
    state: TrainState,
    feed: Iterator[OnDevices],
    *,
    is_last: bool,
) -> tuple[TrainState, Metrics]:
    """Dispatch a step; trace, time or repeat it where that is due.

    Raises:
      Interrupted: the run must stop; the state before the step has been saved.
    """
    # All rates follow from the sample position, the only clock of the schedules.
    rates = run.plan.rates(step)
    copy = stage.steps.copy(state) if run.plan.is_due(step, stage.plan.replay_every) else None
    several = run.plan.facts.processes > 1
    note = run.hosts.note if several and run.plan.is_due(step, stage.plan.hosts_every) else None
    if run.profiler:
        run.profiler.before(step, state)
    try:
        state, metrics = run_step(stage, state, feed, rates, run.watchdog, note)
    except Interrupted:  # the state is unchanged
        run.clock.pause()
        _save_for_stop(run, step - 1, state, _examine_pending(run))
        raise
    if copy is not None:
        _replay(run, stage, step, copy, (state, metrics))
    if note:
        row = run.hosts.compare(step)
        run.log.event("hosts", step, **row)
        if line := run.hosts.news(row):
            run.console.warn(line)
    if run.profiler:
        run.profiler.after(step, state, last=is_last)
    return state, metrics


def _replay(
    run: Run, stage: Stage, step: int, copy: TrainState, first: tuple[TrainState, Metrics]
) -> None:
    """Compute a step once more from a copy of the state before it, and compare the results."""
    # The copy is ready at once: without this, microbatches of both would be in flight.
    jax.block_until_ready(first)
    plan = run.plan
    # Without the watchdog: a request to stop waits for the end of the step.
    feed = stage.train_microbatches(
        plan.position(step - 1), plan.position(step), waited=lambda _: run.watchdog.alive()
    )
    with contextlib.closing(feed):
        second = run_step(stage, copy, feed, plan.rates(step))
    row = checks.differences(stage, first, second, run.hosts.names)
    run.log.event("replay", step, **(row or {}))
    if row:
        on_gpu = stage.mesh.devices.flat[0].platform == "gpu"
        harmless = on_gpu and not plan.config.run.deterministic
        line = checks.corruption_line(row, plan.facts.processes, may_be_harmless=harmless)
        run.console.warn(f"silent data corruption at step {step}: {line}")


def _examine_pending(run: Run) -> Verdict:
    """Wait for the step that was dispatched last, judge and report it."""
    run.log.write_layers()
    if run.pending is None:  # the first step, or one whose state was discarded
        return WELL
    (step, metrics), run.pending = run.pending, None
    metrics = jax.device_get(metrics)
    verdict = run.judge(step, metrics)
    _report(run, step, metrics)
    run.log.event("step", step)
    return verdict


def _settle(
    run: Run, step: int, state: TrainState, metrics: Metrics, *, repeats: bool = False
) -> TrainState:
    """Wait for a step; evaluate, log and save if due.

    Args:
      run: the run.
      step: its number.
      state: after it.
      metrics: of it, not yet on the host.
      repeats: whether only its evaluation is repeated, which was interrupted.

    Returns:
      The state to continue with: after a rollback that of a checkpoint, after an evaluation with
      its statistics.

    Raises:
      Interrupted: the run stops here; the state has been saved.
    """
    if run.profiler:
        run.profiler.after(step, state, last=True)
    metrics = jax.device_get(metrics)
    run.log.write_layers()
    run.clock.pause()
    # A step that started from a discarded state is not judged.
    is_judged, run.pending = run.pending is not None, None
    verdict = run.judge(step, metrics) if is_judged else WELL
    # Computed a second time: this step may have brought a request to stop.
    due = run.plan.due(step, stop_requested=bool(run.stop_reason))
    if is_judged and due.stops_early and not due.has_row:
        _report(run, step, metrics)
        _save_for_stop(run, step, state, verdict)
        raise Interrupted(run.stop_reason)
    if verdict.action != "rollback":
        verdict = run.judge_state(step, state)
    rolled_back = verdict.action == "rollback"
    if rolled_back:
        state = _roll_back(run, verdict, step)
        run.clock.pause()
    replaced = rolled_back or not (is_judged or (repeats and run.initial.for_stop))
    columns: dict[str, float] | None = {} if due.has_row else None
    top1 = -1.0
    if due.evaluates:
        for_stop = not (due.checkpoint_is_due or replaced)
        final, columns = _evaluate(run, step, state, metrics, for_stop=for_stop)
        if due.keeps_statistics:  # an uninterrupted run has this evaluation too
            state, top1 = final, run.result.score
            run.judge_evaluation(step)
    _report(run, step, metrics, columns, is_due=due.row_is_due)
    if due.stops_early:
        run.log.event("preempted", step)
    is_best = top1 >= 0 and run.checkpoints.exceeds_best(top1)
    if due.saves or replaced or is_best or repeats:
        regular = due.checkpoint_is_due or replaced or is_best
        run.save(step, state, validation_top1=top1, for_stop=not regular)
    if due.stops_early:
        raise Interrupted(run.stop_reason)
    run.log.event("step", step)
    run.clock.start()
    return state


def _repeat_evaluation(run: Run, step: int, state: TrainState) -> TrainState:
    """Repeat the evaluation in which the previous attempt was interrupted."""
    # 0 is that of ``small_square``, whose part in the noise scale the checkpoint already has.
    metrics = Metrics(np.array([*(getattr(run.initial, key) for key in MEASURED), 0.0]))
    return _settle(run, step, run.stage_at(step).placed(state), metrics, repeats=True)


def _evaluate(
    run: Run, step: int, state: TrainState, metrics: Metrics, *, for_stop: bool
) -> tuple[TrainState, dict[str, float]]:
    """Evaluate the state after a step, and report the result.

    Returns:
      The state with the statistics of its evaluation; the columns of the result.

    Raises:
      Interrupted: the run must stop; the state is saved, and the evaluation is due.
    """
    run.log.event("eval_start", step)
    since = time.perf_counter()
    try:
        with run.watchdog.section("evaluation"):
            final = run.evaluate(step, state)
    except Interrupted:
        run.save(step, state, evaluation_due=metrics, for_stop=for_stop)
        raise
    run.log.event("eval_stop", step, top1=run.result.top1)
    seconds = time.perf_counter() - since  # including the statistics
    run.clock.evaluation_s += seconds
    run.log.times(step, run.compile_s)
    return final, run.report_evaluation(step, seconds)


def _save_for_stop(run: Run, step: int, state: TrainState, verdict: Verdict) -> None:
    """Save the state after a judged step, where the run stops between its checkpoints.

    Unless the run is to roll back: the next attempt starts from the newest checkpoint, meets the
    same fault, and rolls back where an uninterrupted run does.
    """
    run.log.event("preempted", step)
    if verdict.action != "rollback" and run.is_finite(step, state):
        run.save(step, state, for_stop=True)


def _discard_and_roll_back(
    run: Run, step: int, metrics: Metrics, verdict: Verdict, due: Due
) -> TrainState:
    """Roll back when a step has been dispatched from a state that is discarded."""
    run.pending = None
    if not due.synchronizes:
        _report(run, step, jax.device_get(metrics))
        run.log.event("step", step)
    return _roll_back(run, verdict, step)


def _roll_back(run: Run, verdict: Verdict, step: int) -> TrainState:
    """Load the newest checkpoint before the failure; it becomes the state of ``step``.

    The sample position advances, so the samples of the failed steps are not consumed a second
    time. The caller saves the state.

    Args:
      run: the run.
      verdict: requests the rollback.
      step: the newest step that has been dispatched.
    """
    run.clock.pause()
    state = run.load(step, until=verdict.good_step)
    run.step = step
    run.clock.start()
    return state


def _report(
    run: Run,
    step: int,
    metrics: Metrics,
    extra: dict[str, float] | None = None,
    *,
    is_due: bool = True,
) -> None:
    run.step = step
    has_row = run.log.step(step, metrics, extra, is_due=is_due)
    run.bar.update(
        step,
        loss=run.log.loss,
        images_per_s=run.log.pace.get("images_per_s"),
        epoch=run.log.epoch(step),
        wait=run.log.pace.get("input_wait"),
        has_row=has_row,
    )
