"""Health checks of a training: not finite, diverged or stuck, and the reaction.

The host judges two scalars of each step, which the loop reads anyway. They are the same on all
processes, and so is the verdict. On the device, `kept` leaves out an update that is not finite.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from largebatch.config import Plan
from largebatch.config.registries import WIRE_FORMATS
from largebatch.errors import HealthError

PyTree = Any

# In nats. A network is stuck if its probability of the right class, in the geometric mean, exceeds
# that of a guess by less than 1 %. A network that has learned anything about the images exceeds it
# by more. One that knows only the class frequencies gains at most 0.004 on ImageNet, whose classes
# have 732 to 1,300 images.
_MARGIN = 0.01
# Share of the run for which a network that has learned may fall back to a guess: at the peak of the
# learning rate some do, and recover as the rate falls.
_PATIENCE = 0.1


def kept(old: PyTree, new: PyTree, loss: jax.Array, gradient_norm: jax.Array) -> PyTree:
    """Return ``new``, or ``old`` bitwise if the step is not finite.

    Args:
      old: the state before the step.
      new: the state after the update; a tree of the same shapes and dtypes.
      loss: scalar, the same on all devices.
      gradient_norm: scalar, the same on all devices.
    """
    is_finite = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    return jax.tree.map(lambda before, after: jnp.where(is_finite, after, before), old, new)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What follows from the numbers of a step."""

    action: Literal["continue", "skipped", "rollback"]
    """``skipped``: the device has already left out the update."""
    text: str = ""
    """The warning; empty for ``continue``."""
    good_step: int = 0
    """For a rollback: the last step before the failure; later checkpoints are unusable."""


WELL = Verdict("continue")
"""The verdict on a healthy step."""


class Health:
    """Judges the steps of a run, one after the other."""

    def __init__(
        self,
        plan: Plan,
        *,
        skips: int = 0,
        rollbacks: int = 0,
        memory: Mapping[str, Any] | None = None,
        newest: Callable[[int], object | None] = lambda step: None,
        returns_to: Callable[[int], object | None] | None = None,
    ) -> None:
        """Start a run, or continue it.

        Args:
          plan: of the run.
          skips: number of steps skipped so far.
          rollbacks: number of rollbacks so far.
          memory: result of `memory` in the attempt before this one; None for a new run.
          newest: step → path of the newest checkpoint of at most this step, or None.
          returns_to: step → path of the checkpoint that a rollback from there loads, or None;
            the default is ``newest``.
        """
        self.skips = skips
        self.rollbacks = rollbacks
        self._plan = plan
        self._options = plan.config.health
        self._newest = newest
        self._returns_to = returns_to or newest
        sigmoid = plan.config.loss.kind == "sigmoid"
        # Nats of an image for one unit of the loss, which for sigmoids is a mean over the classes.
        self._nats = plan.facts.classes if sigmoid else 1
        self._guess = plan.guess
        # Sigmoids begin far above a guess, at a probability of 1/2 for each class.
        self._worst = max(self._guess, math.log(2)) if sigmoid else self._guess
        self._window: collections.deque[tuple[int, float]] = collections.deque(
            maxlen=self._options.window
        )
        self._learnt = 0
        """The last step whose window was better than a guess; 0 if none was."""
        if memory:
            self._window.extend((step, loss) for step, loss in memory["window"])
            self._learnt = memory["learnt"]

    def memory(self) -> dict[str, Any]:
        """Return what later verdicts depend on, for a checkpoint."""
        return {"window": [list(each) for each in self._window], "learnt": self._learnt}

    def look(self, step: int, loss: float, gradient_norm: float) -> Verdict:
        """Judge a step that has been computed.

        Args:
          step: its number, from 1.
          loss: mean over its global batch.
          gradient_norm: norm of its mean gradient, before the update.

        Raises:
          HealthError: the run must stop; the message gives the reason, the place and the fix.
        """
        for name, value in (("loss", loss), ("gradient norm", gradient_norm)):
            if not math.isfinite(value):
                return self._not_finite(step, f"the {name} of step {step} is {value}")
        if self._window and step <= self._window[-1][0]:
            self._window.clear()  # the run was rolled back
        self._window.append((step, loss))
        if len(self._window) < self._options.window:
            return WELL
        first, losses = self._window[0][0], [value for _, value in self._window]
        if self._options.divergence and first > self._plan.warmup_steps:
            limit = self._worst + self._options.divergence / self._nats
            if min(losses) > limit:
                return self._diverged(step, first, loss, limit)
        # A loss above that of a guess counts as stuck too. The median is used because at a high
        # learning rate a small batch sometimes has a loss of 5, so that the mean over 20 steps of a
        # network that is right 8 times in 10 may exceed that of a guess.
        stuck_after, median = self._plan.stuck_after_step, statistics.median(losses)
        if median <= self._guess - _MARGIN / self._nats:
            self._learnt = step
        elif stuck_after and first > stuck_after:
            patience = math.ceil(_PATIENCE * self._plan.steps) if self._learnt else 0
            if step - self._learnt > patience:
                raise self._stuck(step, first, median)
        return WELL

    def look_at_state(self, step: int, finite: bool) -> Verdict:
        """Judge the state after a step, before it is saved.

        Loss and gradient of a step belong to the state before it. A bad update shows only in the
        next step, when a checkpoint of it might exist already.

        Args:
          step: number of the step.
          finite: whether all numbers of the state after it are finite.

        Raises:
          HealthError: the run must stop.
        """
        if finite:
            return WELL
        seen = f"the state after the update of step {step} is not finite"
        if verdict := self._rollback(seen, step - 1):
            return verdict
        raise self._stop(step, step - 1, seen, [*self._calmer(), self._continuing])

    def _not_finite(self, step: int, seen: str) -> Verdict:
        options = self._options
        if options.policy == "skip" and self.skips < options.max_skips:
            self.skips += 1
            what = f"its update is skipped ({self.skips} of at most {options.max_skips})"
            return Verdict("skipped", f"{seen}; {what}")
        if verdict := self._rollback(seen, step - 1):
            return verdict
        policy = {
            "stop": "or continue with health.policy=skip or, after a checkpoint, rollback",
            "skip": f"raise health.max_skips={options.max_skips}",
            "rollback": self._more_rollbacks,
        }[options.policy]
        raise self._stop(step, step - 1, seen, [*self._calmer(), *self._wider(), policy])

    def _diverged(self, step: int, first: int, loss: float, limit: float) -> Verdict:
        seen = (
            f"the loss of each of the steps {first} to {step} is above {limit:.3f}, which "
            f"follows from {self._classes:,} classes and health.divergence="
            f"{self._options.divergence:g}; the last one is {loss:.4g}"
        )
        if verdict := self._rollback(seen, first - 1):
            return verdict
        raise self._stop(step, first - 1, seen, [*self._calmer(), self._continuing])

    def _stuck(self, step: int, first: int, median: float) -> HealthError:
        """Return the error; a rollback would not help, since no earlier state has learned more."""
        seen = (
            f"the median loss of the steps {first} to {step} is {median:.4f}, no better than that "
            f"of a guess among {self._classes:,} classes, {self._guess:.4f}"
        )
        knobs = [
            f"change {self._rate}",
            "check labels and images",
            "continue with health.stuck_after=''",
        ]
        return self._stop(step, step, seen, knobs)

    def _rollback(self, seen: str, good_step: int) -> Verdict | None:
        """Return the verdict, if the options still allow it and there is a checkpoint."""
        most, path = self._options.max_rollbacks, self._returns_to(good_step)
        if self._options.policy != "rollback" or self.rollbacks >= most or path is None:
            return None
        self.rollbacks += 1
        self._window.clear()
        what = f"rolled back to checkpoint {path} ({self.rollbacks} of at most {most})"
        return Verdict("rollback", f"{seen}; {what}", good_step)

    def _stop(self, step: int, good_step: int, seen: str, knobs: Sequence[str]) -> HealthError:
        """Return the error, in one line.

        Args:
          step: where the failure was seen.
          good_step: the last step before the failure.
          seen: what was seen.
          knobs: possible fixes; empty ones are left out.
        """
        path, rate = self._newest(good_step), self._plan.rates(step).learning_rate
        where = f"sample position {self._plan.position(step)}, learning rate {rate:.4g}"
        checkpoint = f"newest checkpoint before: {path}" if path else "no checkpoint before"
        return HealthError(f"{seen} ({where}); {', '.join(filter(None, knobs))}; {checkpoint}")

    @property
    def _continuing(self) -> str:
        """The fix where no update can be skipped."""
        rolls = self._options.policy == "rollback"
        return self._more_rollbacks if rolls else "continue with health.policy=rollback"

    @property
    def _more_rollbacks(self) -> str:
        most = self._options.max_rollbacks
        return f"raise health.max_rollbacks={most}" if self.rollbacks >= most else ""

    def _calmer(self) -> list[str]:
        """Return options that make the steps smaller."""
        warmup = self._plan.config.schedule.warmup
        return [f"lower {self._rate}", f"lengthen schedule.warmup={warmup!r}"]

    def _wider(self) -> list[str]:
        """Return options that avoid overflow, if a format of small range is in use."""
        config, scale = self._plan.config, self._plan.first_stage.loss_scale
        wire, dtype = WIRE_FORMATS[config.comm.wire].narrow, config.model.dtype == "float16"
        return [
            *(["set comm.wire=bfloat16"] if wire else []),
            *(["set model.dtype=bfloat16"] if dtype else []),
            *([f"lower loss.scale, which is {scale:g}"] if (wire or dtype) and scale > 1 else []),
        ]

    @property
    def _rate(self) -> str:
        """The option of the learning rate, with its value."""
        schedule = self._plan.config.schedule
        name = "peak" if schedule.peak else "per_256"
        return f"schedule.{name}={getattr(schedule, name):g}"

    @property
    def _classes(self) -> int:
        return self._plan.facts.classes
