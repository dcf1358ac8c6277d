"""What a training's own numbers say of it: not finite, diverged or stuck, and what then happens.

Judged on the host, from two scalars that the loop reads of every step anyway. They are the same on
all processes, and so is the verdict. What the device does by itself, to leave an update out, is
``kept``.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from largebatch.config import Plan
from largebatch.config.communication import WIRE_FORMATS
from largebatch.errors import HealthError

PyTree = Any

# Nats. Stuck is who gives the right class, in the geometric mean, less than 1 % more than a guess
# would. Who has learnt anything of the images gives more; who only knows how often each class
# occurs gains less: at most 0.004 where classes have 732 to 1,300 images, as those of ImageNet.
_MARGIN = 0.01
# Share of the run for which a training that has learnt may be no better than a guess: at the peak
# of the learning rate some are for a while, and recover as it falls.
_PATIENCE = 0.1


def kept(old: PyTree, new: PyTree, loss: jax.Array, gradient_norm: jax.Array) -> PyTree:
    """The state after a step: ``new``, or ``old`` to the bit where the step was not finite.

    Args:
      old: the state before the step.
      new: what the update made of it; a tree of the same shapes and types.
      loss: scalar, the same on all devices.
      gradient_norm: likewise.
    """
    fine = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    return jax.tree.map(lambda before, after: jnp.where(fine, after, before), old, new)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is to be done after a step."""

    action: Literal["continue", "skipped", "rollback"]
    """``skipped``: the device has left the update out already, there is nothing to do."""
    text: str = ""
    """What was seen and what follows, for people; empty where all is well."""
    good_step: int = 0
    """Of a rollback: the last step before trouble; a later checkpoint is of no use."""


WELL = Verdict("continue")
"""Nothing to be said or done."""


class Health:
    """Looks at the steps of a run, one after the other."""

    def __init__(
        self,
        plan: Plan,
        *,
        skips: int = 0,
        rollbacks: int = 0,
        newest: Callable[[int], object | None] = lambda step: None,
    ) -> None:
        """Starts with an empty window, also in the middle of a run.

        Args:
          plan: of the whole run.
          skips: steps that the run has skipped before.
          rollbacks: how often it has rolled back.
          newest: number of steps → path of the newest checkpoint of at most so many, or None.
        """
        self.skips = skips
        self.rollbacks = rollbacks
        self._plan = plan
        self._options = plan.config.health
        self._newest = newest
        # A guess gives each class 1 / classes. Smoothing shares an image's target out among the
        # classes, but its weights add up to 1 and each meets the same ln(classes).
        self._guess = math.log(plan.facts.classes)
        self._window: collections.deque[tuple[int, float]] = collections.deque(
            maxlen=self._options.window
        )
        self._learnt = 0
        """The last step whose window was better than a guess; 0: none yet."""

    def look(self, step: int, loss: float, gradient_norm: float) -> Verdict:
        """Judge a step that has been computed.

        Args:
          step: its number, from 1.
          loss: mean over its global batch.
          gradient_norm: of its mean gradient, before the update.

        Raises:
          HealthError: the run is to stop; the message says why, where and what helps.
        """
        for name, value in (("loss", loss), ("gradient norm", gradient_norm)):
            if not math.isfinite(value):
                return self._not_finite(step, f"the {name} of step {step} is {value}")
        if self._window and step <= self._window[-1][0]:
            self._window.clear()  # the run went back
        self._window.append((step, loss))
        if len(self._window) < self._options.window:
            return WELL
        first, losses = self._window[0][0], [value for _, value in self._window]
        if self._options.divergence and first > self._plan.warmup_steps:
            limit = self._guess + self._options.divergence
            if min(losses) > limit:
                return self._diverged(step, first, loss, limit)
        # Also from above: whoever is sure of wrong classes has learnt nothing either. The median,
        # because at a high learning rate a small batch has a loss of 5 now and then, and a mean
        # over 20 steps of a network that is right 8 times in 10 is then above that of a guess.
        stuck_after, median = self._plan.stuck_after_step, statistics.median(losses)
        if median <= self._guess - _MARGIN:
            self._learnt = step
        elif stuck_after and first > stuck_after:
            patience = math.ceil(_PATIENCE * self._plan.steps) if self._learnt else 0
            if step - self._learnt > patience:
                raise self._stuck(step, first, median)
        return WELL

    def look_at_state(self, step: int, finite: bool) -> Verdict:
        """Judge what a step has led to, before it is saved.

        Loss and gradient of a step are those of the state before it: what its update makes of that
        shows in the next step only, when a checkpoint that cannot be gone on with is there already.

        Args:
          step: which.
          finite: whether all numbers of the state after it are.

        Raises:
          HealthError: the run is to stop.
        """
        if finite:
            return WELL
        seen = f"the update of step {step} led to numbers that are not finite"
        if verdict := self._rollback(seen, step - 1):
            return verdict
        raise self._stop(step, step - 1, seen, [*self._calmer(), self._going_on])

    def _not_finite(self, step: int, seen: str) -> Verdict:
        options = self._options
        if options.policy == "skip" and self.skips < options.max_skips:
            self.skips += 1
            what = f"its update is left out ({self.skips} of at most {options.max_skips})"
            return Verdict("skipped", f"{seen}; {what}")
        if verdict := self._rollback(seen, step - 1):
            return verdict
        policy = {
            "stop": "or go on with health.policy=skip or, behind a checkpoint, rollback",
            "skip": f"raise health.max_skips={options.max_skips}",
            "rollback": self._more_rollbacks,
        }[options.policy]
        raise self._stop(step, step - 1, seen, [*self._calmer(), *self._wider(), policy])

    def _diverged(self, step: int, first: int, loss: float, limit: float) -> Verdict:
        seen = (
            f"in each of the steps {first} to {step} the loss is above ln({self._classes}) + "
            f"{self._options.divergence:g} = {limit:.3f}, in the last it is {loss:.4g}"
        )
        if verdict := self._rollback(seen, first - 1):
            return verdict
        raise self._stop(step, first - 1, seen, [*self._calmer(), self._going_on])

    def _stuck(self, step: int, first: int, median: float) -> HealthError:
        """No rollback here: no earlier state has learnt more."""
        seen = (
            f"the median loss of the steps {first} to {step} is {median:.4f}, no better than that "
            f"of a guess, ln({self._classes}) = {self._guess:.4f}"
        )
        knobs = [
            f"change {self._rate}",
            "look at labels and images",
            "an empty health.stuck_after goes on",
        ]
        return self._stop(step, step, seen, knobs)

    def _rollback(self, seen: str, good_step: int) -> Verdict | None:
        """The verdict, if the options still allow it and there is a checkpoint."""
        most, path = self._options.max_rollbacks, self._newest(good_step)
        if self._options.policy != "rollback" or self.rollbacks >= most or path is None:
            return None
        self.rollbacks += 1
        self._window.clear()
        what = f"back to checkpoint {path} ({self.rollbacks} of at most {most} times)"
        return Verdict("rollback", f"{seen}; {what}", good_step)

    def _stop(self, step: int, good_step: int, seen: str, knobs: Sequence[str]) -> HealthError:
        """The error, in one line.

        Args:
          step: where it was seen.
          good_step: the last one before trouble.
          seen: what.
          knobs: what helps; empty ones are left out.
        """
        path, rate = self._newest(good_step), self._plan.rates(step).learning_rate
        where = f"sample position {self._plan.position(step)}, learning rate {rate:.4g}"
        checkpoint = f"newest checkpoint before: {path}" if path else "no checkpoint before"
        return HealthError(f"{seen} ({where}); {', '.join(filter(None, knobs))}; {checkpoint}")

    @property
    def _going_on(self) -> str:
        """What helps where no update can be left out."""
        rolls = self._options.policy == "rollback"
        return self._more_rollbacks if rolls else "health.policy=rollback goes on"

    @property
    def _more_rollbacks(self) -> str:
        most = self._options.max_rollbacks
        return f"raise health.max_rollbacks={most}" if self.rollbacks >= most else ""

    def _calmer(self) -> list[str]:
        """What makes the steps smaller."""
        warmup = self._plan.config.schedule.warmup
        return [f"lower {self._rate}", f"lengthen schedule.warmup={warmup!r}"]

    def _wider(self) -> list[str]:
        """What keeps large numbers from being infinite, where a format of small range is in use."""
        config, scale = self._plan.config, self._plan.first_stage.loss_scale
        wire, dtype = WIRE_FORMATS[config.comm.wire].narrow, config.model.dtype == "float16"
        return [
            *(["set comm.wire=bfloat16"] if wire else []),
            *(["set model.dtype=bfloat16"] if dtype else []),
            *([f"lower loss.scale, which is {scale:g}"] if (wire or dtype) and scale > 1 else []),
        ]

    @property
    def _rate(self) -> str:
        """The option that the learning rate comes from, with its value."""
        schedule = self._plan.config.schedule
        name = "peak" if schedule.peak else "per_256"
        return f"schedule.{name}={getattr(schedule, name):g}"

    @property
    def _classes(self) -> int:
        return self._plan.facts.classes
