"""What a run does after a step, decided from its plan alone.

The loop dispatches steps ahead of what the host knows of them. It waits for the device only where
something is due, and `after_step` says where.
"""

import dataclasses

from largebatch.config import Plan


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What follows a step."""

    evaluates: bool = False
    """The validation split is evaluated."""
    keeps_statistics: bool = False
    """Training continues with the BatchNorm statistics that the evaluation computed."""
    saves: bool = False
    """A checkpoint is saved."""
    checkpoint_is_due: bool = False
    """An uninterrupted run saves it too."""
    stops_early: bool = False
    """The run stops here before its end, since it was asked to."""

    @property
    def has_row(self) -> bool:
        """Whether the log has a row for this step, whatever ``run.log_every`` is."""
        return self.evaluates or self.checkpoint_is_due

    @property
    def row_is_due(self) -> bool:
        """Whether an uninterrupted run has this row too."""
        return self.keeps_statistics or self.checkpoint_is_due

    @property
    def synchronizes(self) -> bool:
        """Whether the host waits for the step, so that nothing is in flight."""
        return self.evaluates or self.saves


def after_step(plan: Plan, step: int, *, stop_requested: bool = False) -> Outcome:
    """Return what follows step number ``step``.

    Args:
      plan: of the run.
      step: the step that has been dispatched, from 1.
      stop_requested: the processes have agreed to stop.
    """
    is_last = step == plan.stop_after_step
    evaluation_due = plan.evaluates_at(step)
    checkpoint_due = plan.is_due(step, plan.stage_at(step).checkpoint_every)
    completes = step == plan.steps
    return Outcome(
        evaluates=is_last or evaluation_due,
        # A run that stops between its evaluations continues as if it had not been evaluated.
        keeps_statistics=evaluation_due or completes,
        saves=is_last or checkpoint_due or stop_requested,
        checkpoint_is_due=completes or checkpoint_due,
        stops_early=stop_requested and not is_last,
    )
