"""Health checks of a training: not finite, diverged or stuck, and the reaction.

The host judges loss, gradient norm and right images of each step, which the loop reads anyway, and
the evaluations. They are the same on all processes, and so is the verdict. On the device, `kept`
leaves out an update that is not finite.

A run that learns is never ended: `chance` states the tests and their error rates.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from largebatch.config import Plan
from largebatch.config.registries import WIRE_FORMATS
from largebatch.errors import HealthError
from largebatch.fault_tolerance import chance
from largebatch.fault_tolerance.chance import Span, best_guess

PyTree = Any

MAX_SKIPS = 10
"""Greatest number of skipped updates in a run, with ``health.policy=skip``."""
MAX_ROLLBACKS = 2
"""Greatest number of rollbacks in a run, with ``health.policy=rollback``."""
_SHARE = 0.1
"""Least share of the run that a network must be no better than a guess to be stuck."""
_EVALUATIONS = 2
"""Number of evaluations that must show it where the training images alone do not prove it."""


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
    """The warning; mostly empty for ``continue``."""
    good_step: int = 0
    """For a rollback: the last step before the failure; later checkpoints are unusable."""


WELL = Verdict("continue")
"""The verdict on a healthy step."""


@dataclasses.dataclass
class _Memory:
    """All that later verdicts depend on."""

    skips: int = 0
    rollbacks: int = 0
    learnt: int = 0
    """The first step at which training or an evaluation was better than a guess; 0: none was."""
    evaluations: int = 0
    """Number of consecutive evaluations, up to the newest one, that were no better than a guess
    where it is looked for; −1 if the newest one was more than one deviation better."""
    warned: int = 0
    """1 after the warning."""
    lowest: float = -1.0
    """Least loss of the first ``health.window`` steps; below 0: unknown."""
    high: Span = dataclasses.field(default_factory=Span)
    """The newest steps, as far as all of them have a high loss."""
    earlier: Span = dataclasses.field(default_factory=Span)
    """The span of steps before ``newest``."""
    newest: Span = dataclasses.field(default_factory=Span)
    """The span that the newest step belongs to."""

    def forget(self) -> None:
        """Forget the newest steps, whose result is discarded."""
        self.evaluations, self.high, self.earlier, self.newest = 0, Span(), Span(), Span()


class Health:
    """Judges the steps of a run, one after the other."""

    def __init__(
        self,
        plan: Plan,
        *,
        memory: Mapping[str, Any] | None = None,
        counts: Sequence[int] | None = None,
        newest: Callable[[int], object | None] = lambda step: None,
        returns_to: Callable[[int], object | None] | None = None,
    ) -> None:
        """Start, or continue where an earlier attempt stopped.

        Args:
          plan: of the run.
          memory: what `memory` returned after the last step of the earlier attempt; entries that
            are absent are those of a new run.
          counts: number of training images of each class; None if unknown: then classes count as
            equal, and a network that knows only an unequal frequency of them is not ended.
          newest: step → path of the newest checkpoint of at most this step, or None.
          returns_to: step → path of the checkpoint that a rollback from there loads, or None; the
            default is ``newest``.
        """
        self._plan = plan
        self._options = options = plan.config.health
        self._newest = newest
        self._returns_to = returns_to or newest
        self._memory = _Memory(
            **{
                name: Span(*value) if isinstance(value, Sequence) else value
                for name, value in (memory or {}).items()
            }
        )
        loss = plan.config.loss
        sigmoid = loss.kind == "sigmoid"
        # Nats of an image for one unit of the loss, which for sigmoids is a mean over the classes.
        self._nats = plan.facts.classes if sigmoid else 1
        # Sigmoids begin far above a guess, at a probability of 1/2 for each class.
        self._worst = max(plan.guess, math.log(2)) if sigmoid else plan.guess
        augments = [stage.config.augment for stage in plan.stages]
        mixes = any(each.mixes for each in augments)
        self._is_altered = mixes or any(a.policy != "none" or a.erase > 0 for a in augments)
        """Whether training images are so altered that they alone prove nothing."""
        self._guess = best_guess(counts or [1] * plan.facts.classes, loss, mixes=mixes)
        self._looks_after = max(plan.stuck_after_step, plan.warmup_steps)
        self._span_steps = max(options.window, math.ceil(_SHARE * plan.steps)) / 2

    @property
    def skips(self) -> int:
        """Number of steps whose update was skipped."""
        return self._memory.skips

    @property
    def rollbacks(self) -> int:
        """Number of rollbacks."""
        return self._memory.rollbacks

    def memory(self) -> dict[str, Any]:
        """Return all that later verdicts depend on: numbers, and lists of numbers.

        JSON holds them, and they are read back bitwise identical.
        """
        held = vars(self._memory)
        return {
            name: list(dataclasses.astuple(value)) if isinstance(value, Span) else value
            for name, value in held.items()
        }

    def look(
        self, step: int, loss: float, gradient_norm: float, top1: float, images: int
    ) -> Verdict:
        """Judge a step that has been computed.

        Args:
          step: its number, from 1.
          loss: mean over its global batch.
          gradient_norm: norm of its mean gradient, before the update.
          top1: share of its images that the network got right, before the update.
          images: number of images.

        Raises:
          HealthError: the run must stop; the message gives the reason, the place and the fix.
        """
        for name, value in (("loss", loss), ("gradient norm", gradient_norm)):
            if not math.isfinite(value):
                return self._not_finite(step, f"the {name} of step {step} is {value}")
        right = round(top1 * images)
        if verdict := self._look_for_divergence(step, loss, right, images):
            return verdict
        return self._look_for_learning(step, loss, right, images)

    def _look_for_divergence(
        self, step: int, loss: float, right: int, images: int
    ) -> Verdict | None:
        memory, options = self._memory, self._options
        if step <= options.window:
            memory.lowest = loss if memory.lowest < 0 else min(memory.lowest, loss)
        if not options.divergence:
            return None
        # A loss that is high from the start, as in fine-tuning, has not diverged.
        limit = max(self._worst, memory.lowest) + options.divergence / self._nats
        if step <= self._plan.warmup_steps or loss <= limit:
            memory.high = Span()
            return None
        high = memory.high
        high.add(step, loss, right, images)
        if high.steps < options.window:
            return None
        # A network that is sure of itself may have a high loss although it is mostly right.
        evidence = chance.STUCK if self._is_altered else chance.DIVERGED
        if not self._guess.is_matched(high.right, high.images, evidence):
            return None
        return self._diverged(step, high, loss, limit)

    def _look_for_learning(self, step: int, loss: float, right: int, images: int) -> Verdict:
        memory = self._memory
        begun = (memory.newest if memory.newest.steps else memory.earlier).first
        if 0 < begun <= self._looks_after < step:  # a span lies on one side of it
            self._note_learning(memory.newest)
            memory.earlier, memory.newest = Span(), Span()
        newest = memory.newest
        newest.add(step, loss, right, images)
        variance = self._guess.variance(newest.images)
        if newest.steps < self._span_steps or variance < chance.STUCK / 2:
            return WELL
        earlier, both = memory.earlier, memory.earlier.joined(newest)
        self._note_learning(newest)
        learns = self._note_learning(both)
        memory.earlier, memory.newest = newest, Span()
        is_judged = self._options.stuck_after and self._looks_after < earlier.first
        if not is_judged or not self._guess.is_matched(both.right, both.images, chance.STUCK):
            return WELL
        if learns or memory.evaluations < 0:
            return WELL
        if earlier.falls_to(newest, self._guess, self._nats):
            return WELL
        if memory.learnt:
            return self._warning(both, f"although it was better at step {memory.learnt}")
        if self._is_altered and memory.evaluations < _EVALUATIONS:
            return self._warning(both, "and evaluations have not shown yet whether it learns")
        raise self._stuck(step, both)

    def _note_learning(self, span: Span) -> bool:
        """Return whether a span is better than a guess, and keep the first such step."""
        learns = span.has_learnt(self._guess, self._nats)
        if learns and not self._memory.learnt:
            self._memory.learnt = span.first
        return learns

    def look_at_evaluation(
        self, step: int, top1: float, loss: float, counts: Sequence[int]
    ) -> None:
        """Note an evaluation of the state after a step; the next step is judged by it.

        Args:
          step: number of the step.
          top1: accuracy, a fraction; the better one if averaged weights are evaluated too.
          loss: validation loss, the lower one likewise.
          counts: number of validation images of each class.
        """
        memory, images = self._memory, sum(counts)
        guess = best_guess(counts, self._plan.config.loss)
        right = round(top1 * images)
        above = guess.deviations(right, images)
        if above > chance.LEARNT_IN_EVALUATION or loss < guess.loss - chance.MARGIN / self._nats:
            memory.learnt = memory.learnt or step
        if above > 1:
            memory.evaluations = -1
        elif step > self._looks_after and guess.is_matched(right, images, chance.EVALUATION):
            memory.evaluations = max(0, memory.evaluations) + 1
        else:
            memory.evaluations = 0

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
        raise self._stop(step, step - 1, seen, [*self._calmer(), self._continuing(step - 1)])

    def _not_finite(self, step: int, seen: str) -> Verdict:
        options = self._options
        if options.policy == "skip" and self.skips < MAX_SKIPS:
            self._memory.skips += 1
            what = f"its update is skipped ({self.skips} of at most {MAX_SKIPS})"
            return Verdict("skipped", f"{seen}; {what}")
        if verdict := self._rollback(seen, step - 1):
            return verdict
        policy = {
            "stop": "or continue with health.policy=skip or, after a checkpoint, rollback",
            "skip": self._continuing(step - 1),
            "rollback": self._continuing(step - 1),
        }[options.policy]
        raise self._stop(step, step - 1, seen, [*self._calmer(), *self._wider(), policy])

    def _diverged(self, step: int, high: Span, loss: float, limit: float) -> Verdict:
        seen = (
            f"the loss of each of the steps {high.first} to {step} is above {limit:.3f} "
            f"(health.divergence={self._options.divergence:g}), the last one is {loss:.4g}, and "
            f"{self._accuracy(high)}"
        )
        if verdict := self._rollback(seen, high.first - 1):
            return verdict
        good_step = high.first - 1
        raise self._stop(step, good_step, seen, [*self._calmer(), self._continuing(good_step)])

    def _warning(self, span: Span, why: str) -> Verdict:
        """Return the verdict on a network that may be stuck, with a warning the first time."""
        if self._memory.warned:
            return WELL
        self._memory.warned = 1
        text = (
            f"in the steps {span.first} to {span.first + span.steps - 1} the network is no better "
            f"than a guess ({self._accuracy(span)}), {why}; change {self._rate} if it stays so"
        )
        return Verdict("continue", text)

    def _stuck(self, step: int, span: Span) -> HealthError:
        """Return the error; a rollback would not help, since no earlier state has learned more."""
        evaluations = ", nor was any evaluation better" if self._memory.evaluations else ""
        seen = (
            f"the network has learned nothing: {self._accuracy(span)} in the steps {span.first} to "
            f"{step}{evaluations}"
        )
        knobs = [
            f"change {self._rate}",
            "check labels and images",
            "continue with health.stuck_after=''",
        ]
        return self._stop(step, step, seen, knobs)

    def _accuracy(self, span: Span) -> str:
        """Describe the accuracy of a span beside that of a guess."""
        return (
            f"{span.right / span.images:.2%} of {span.images:,} images are right, a guess has "
            f"{self._guess.share:.2%}"
        )

    def _rollback(self, seen: str, good_step: int) -> Verdict | None:
        """Return the verdict, if the options still allow it and there is a checkpoint."""
        path = self._returns_to(good_step)
        exhausted = self.rollbacks >= MAX_ROLLBACKS
        if self._options.policy != "rollback" or exhausted or path is None:
            return None
        self._memory.rollbacks += 1
        self._memory.forget()
        what = f"rolled back to checkpoint {path} ({self.rollbacks} of at most {MAX_ROLLBACKS})"
        return Verdict("rollback", f"{seen}; {what}", good_step)

    def _stop(self, step: int, good_step: int, seen: str, knobs: Sequence[str]) -> HealthError:
        """Return the error, in one line.

        Args:
          step: where the failure was seen.
          good_step: the last step before the failure.
          seen: what was seen.
          knobs: possible fixes; empty ones are left out.
        """
        rate = self._plan.rates(step).learning_rate
        where = f"sample position {self._plan.position(step)}, learning rate {rate:.4g}"
        policy = self._options.policy
        if policy == "skip" and self.skips >= MAX_SKIPS:
            where += f", after {self.skips} skipped updates"
        if policy == "rollback" and self.rollbacks >= MAX_ROLLBACKS:
            where += f", after {self.rollbacks} rollbacks"
        if path := self._newest(good_step):
            checkpoint = f"newest checkpoint before: {path}"
        elif path := self._newest(self._plan.steps):
            checkpoint = (
                f"no checkpoint is from before step {good_step + 1}, the newest is {path}; start "
                "again with --resume=never"
            )
        else:
            checkpoint = "no checkpoint yet"
        return HealthError(f"{seen} ({where}); {', '.join(filter(None, knobs))}; {checkpoint}")

    def _continuing(self, good_step: int) -> str:
        """Return the fix where no update can be skipped; empty if there is none."""
        options, exists = self._options, self._returns_to(good_step) is not None
        if options.policy != "rollback":
            return "continue with health.policy=rollback" if exists else ""
        if not exists:
            return f"shorten run.checkpoint_every={self._plan.config.run.checkpoint_every!r}"
        return ""

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
