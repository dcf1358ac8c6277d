"""Health checks of a training: not finite, diverged or stuck, and the reaction.

The host judges loss, gradient norm and right images of each step, which the loop reads anyway, and
the evaluations. They are the same on all processes, and so is the verdict. On the device, `kept`
leaves out an update that is not finite.

A run that learns is never ended. The tests are on the number of images that the network gets right.
The null hypothesis is a network whose prediction does not depend on the image. The best one names
the largest class, so its accuracy on n images is at most p, the share of that class, and its number
of right images has a standard deviation of at most σ = √(n·p·(1 − p)), here called a deviation.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from largebatch.config.plan import Plan
from largebatch.config.registries import WIRE_FORMATS
from largebatch.config.sections import Loss
from largebatch.errors import HealthError

PyTree = Any

MAX_SKIPS = 10
"""Greatest number of skipped updates in a run, with ``health.policy=skip``."""
MAX_ROLLBACKS = 2
"""Greatest number of rollbacks in a run, with ``health.policy=rollback``."""
STUCK = 600.0
"""The least n·p·(1 − p) of the training images that prove a network to be no better than a guess.

A network that is right in p + p·(1 − p)/4 of them (2 classes: 56 %, 10: 12.3 %, 1,000: 0.125 %)
stays within one deviation of a guess with a probability below 10⁻⁵."""
DIVERGED = 100.0
"""The same where all losses are high: the probability is below 10⁻⁵ at p + 0.7·p·(1 − p)
(2 classes: 68 %, 10: 16.3 %, 1,000: 0.17 %)."""
EVALUATION = 30.0
"""The same for an evaluation beside training: below 10⁻⁵ at p + 1.5·p·(1 − p) (2 classes: 88 %,
10: 23.5 %, 1,000: 0.25 %)."""
LEARNT = 5.0
"""Deviations above a guess from which training shows that a network has learned: exceeded once in
10⁵ tests of a guess, where a run has some hundred tests."""
LEARNT_IN_EVALUATION = 3.0
"""The same in an evaluation. A prediction that does not depend on the image never exceeds 0 there,
since p is counted on the same images."""
_MARGIN = 0.01
"""Nats of an image by which a loss must be below that of the best guess to count as learned."""
_FALLING = 3.0
"""Standard errors by which a mean loss must be below the one before to count as falling."""
_LEAST_STEPS = 10
"""Steps from which the standard error of their mean loss is known."""
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
class Guess:
    """The best prediction that does not depend on the image."""

    share: float
    """Its accuracy p: the share of the largest class."""
    loss: float
    """Its loss, the least of all such predictions; −inf if it is not known."""
    margin: float = _MARGIN
    """Difference of losses that counts, in the units of the loss: for sigmoids, that is a mean
    over the classes."""

    def variance(self, images: int) -> float:
        """Return n·p·(1 − p), which measures how much ``images`` images prove."""
        return images * self.share * (1 - self.share)

    def deviations(self, right: int, images: int) -> float:
        """Return by how many deviations ``right`` of ``images`` exceeds the guess."""
        variance = self.variance(images)
        return (right - images * self.share) / math.sqrt(variance) if variance else 0.0

    def is_matched(self, right: int, images: int, evidence: float) -> bool:
        """Return whether a network is proven to be no better.

        Args:
          right: number of images that it gets right.
          images: number of images.
          evidence: `STUCK`, `DIVERGED` or `EVALUATION`.
        """
        return self.variance(images) >= evidence and self.deviations(right, images) <= 1


def best_guess(counts: Sequence[int], loss: Loss, *, mixes: bool = False) -> Guess:
    """Return the best guess on a dataset.

    Args:
      counts: number of images of each class; equal ones if they are not known, which makes the
        share a lower bound.
      loss: its options decide the targets.
      mixes: whether pairs of images are mixed.
    """
    total, classes = sum(counts), len(counts)
    share, margin = max(counts) / total, _MARGIN / _units(loss, classes)
    of_label = 1 - loss.label_smoothing + loss.label_smoothing / classes
    of_others = loss.label_smoothing / classes
    if loss.kind == "sigmoid" and loss.target_threshold:
        if mixes:  # the targets depend on each mixture
            return Guess(share, -math.inf, margin)
        of_label = float(of_label > loss.target_threshold)
        of_others = float(of_others > loss.target_threshold)
    # The mean target of a class is the best guess; mixing pairs does not change it.
    targets = [n / total * of_label + (1 - n / total) * of_others for n in counts]
    if loss.kind == "sigmoid":
        targets = [part for t in targets for part in (t, 1 - t)]
    least = -sum(t * math.log(t) for t in targets if t > 0) / _units(loss, classes)
    return Guess(share, least, margin)


def _units(loss: Loss, classes: int) -> int:
    """Return the nats of an image for one unit of the loss, of sigmoids a mean over the classes."""
    return classes if loss.kind == "sigmoid" else 1


@dataclasses.dataclass
class Span:
    """Sums over consecutive steps."""

    first: int = 0
    """Number of the first step; 0: no step yet."""
    steps: int = 0
    images: int = 0
    right: int = 0
    """Number of images that the network got right."""
    loss: float = 0.0
    """Sum over the steps."""
    squares: float = 0.0
    """Sum of the squared losses."""

    def add(self, step: int, loss: float, right: int, images: int) -> None:
        """Add a step of finite loss."""
        loss = min(loss, 1e100)  # its square is finite, as the JSON of a checkpoint requires
        self.first = self.first or step
        self.steps += 1
        self.images += images
        self.right += right
        self.loss += loss
        self.squares += loss * loss

    def joined(self, later: "Span") -> "Span":
        """Return the sums over this span and the following one."""
        (first, *sums), (other, *more) = map(dataclasses.astuple, (self, later))
        return Span(first or other, *(a + b for a, b in zip(sums, more, strict=True)))

    @property
    def mean(self) -> float:
        """Mean loss."""
        return self.loss / self.steps

    @property
    def error(self) -> float:
        """Standard error of the mean loss; infinite for a single step."""
        if self.steps < 2:
            return math.inf
        variance = max(0.0, self.squares - self.steps * self.mean**2) / (self.steps - 1)
        return math.sqrt(variance / self.steps)

    def has_learnt(self, guess: Guess) -> bool:
        """Return whether accuracy or loss are better than those of a guess on these images."""
        enough = guess.variance(self.images) >= EVALUATION  # below, a deviation is skewed
        if enough and guess.deviations(self.right, self.images) > LEARNT:
            return True
        least = guess.loss - guess.margin
        return self.steps >= _LEAST_STEPS and self.mean + LEARNT * self.error < least

    def falls_to(self, later: "Span", guess: Guess) -> bool:
        """Return whether the mean loss of the following span is lower beyond noise.

        Near the loss of a guess, a network that learns nothing falls a little as its learning rate
        does; there, the loss must fall by the margin.
        """
        noise = _FALLING * math.hypot(self.error, later.error)
        is_near = later.mean < guess.loss + 5 * guess.margin
        return self.mean - later.mean > (max(noise, guess.margin) if is_near else noise)


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
        held = (memory or {}).items()
        self._memory = _Memory(**{k: Span(*v) if isinstance(v, Sequence) else v for k, v in held})
        loss, classes = plan.config.loss, plan.facts.classes
        # Sigmoids begin far above a guess, at a probability of 1/2 for each class.
        self._worst = max(plan.guess, math.log(2) if loss.kind == "sigmoid" else 0.0)
        self._divergence = options.divergence / _units(loss, classes)
        augments = [stage.config.augment for stage in plan.stages]
        mixes = any(each.mixes for each in augments)
        self._is_altered = mixes or any(a.policy != "none" or a.erase > 0 for a in augments)
        """Whether training images are so altered that they alone prove nothing."""
        self._guess = best_guess(counts or [1] * classes, loss, mixes=mixes)
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
        held = vars(self._memory).items()
        return {k: list(dataclasses.astuple(v)) if isinstance(v, Span) else v for k, v in held}

    def look(
        self, step: int, loss: float, gradient_norm: float, top1: float, images: int
    ) -> Verdict:
        """Judge a step that has been computed.

        Args:
          step: its number, from 1.
          loss: mean over its global batch.
          gradient_norm: norm of its mean gradient with the term of ``loss.l2``, before clipping.
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
        return self._returned(step, step - 1, seen, self._smaller_steps())

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
        if above > LEARNT_IN_EVALUATION or loss < guess.loss - guess.margin:
            memory.learnt = memory.learnt or step
        if above > 1:
            memory.evaluations = -1
        elif step > self._looks_after and guess.is_matched(right, images, EVALUATION):
            memory.evaluations = max(0, memory.evaluations) + 1
        else:
            memory.evaluations = 0

    def _not_finite(self, step: int, seen: str) -> Verdict:
        policy, memory, fixes = self._options.policy, self._memory, [self._smaller_steps()]
        if policy == "skip" and memory.skips < MAX_SKIPS:
            memory.skips += 1
            what = f"its update is skipped ({memory.skips} of at most {MAX_SKIPS})"
            return Verdict("skipped", f"{seen}; {what}")
        config, scale = self._plan.config, self._plan.first_stage.loss_scale
        narrow = []  # formats of small range
        if WIRE_FORMATS[config.comm.wire].narrow:
            narrow.append("set comm.wire=bfloat16")
        if config.model.dtype == "float16":
            narrow.append("set model.dtype=bfloat16")
        if narrow and scale > 1:
            narrow.append(f"lower loss.scale, which is {scale:g}")
        fixes += narrow
        if policy == "stop":
            fixes.append("continue with health.policy=skip")
        return self._returned(step, step - 1, seen, *fixes)

    def _look_for_divergence(
        self, step: int, loss: float, right: int, images: int
    ) -> Verdict | None:
        memory, options = self._memory, self._options
        if step <= options.window:
            memory.lowest = loss if memory.lowest < 0 else min(memory.lowest, loss)
        if not options.divergence:
            return None
        # A loss that is high from the start, as in fine-tuning, has not diverged.
        limit = max(self._worst, memory.lowest) + self._divergence
        if step <= self._plan.warmup_steps or loss <= limit:
            memory.high = Span()
            return None
        high = memory.high
        high.add(step, loss, right, images)
        # A network that is sure of itself may have a high loss although it is mostly right.
        evidence = STUCK if self._is_altered else DIVERGED
        if high.steps < options.window or not self._guess.is_matched(
            high.right, high.images, evidence
        ):
            return None
        seen = (
            f"the loss of each of the steps {high.first} to {step} is above {limit:.3f} "
            f"(health.divergence={options.divergence:g}), the last one is {loss:.4g}, and "
            f"{self._accuracy(high)}"
        )
        return self._returned(step, high.first - 1, seen, self._smaller_steps())

    def _look_for_learning(self, step: int, loss: float, right: int, images: int) -> Verdict:
        memory, guess = self._memory, self._guess
        begun = (memory.newest if memory.newest.steps else memory.earlier).first
        if 0 < begun <= self._looks_after < step:  # a span lies on one side of it
            self._note_learning(memory.newest)
            memory.earlier, memory.newest = Span(), Span()
        newest = memory.newest
        newest.add(step, loss, right, images)
        if newest.steps < self._span_steps or guess.variance(newest.images) < STUCK / 2:
            return WELL
        earlier, both = memory.earlier, memory.earlier.joined(newest)
        self._note_learning(newest)
        learns = self._note_learning(both)
        memory.earlier, memory.newest = newest, Span()
        is_judged = self._options.stuck_after and self._looks_after < earlier.first
        if (
            not is_judged
            or not guess.is_matched(both.right, both.images, STUCK)
            or learns
            or memory.evaluations < 0
            or earlier.falls_to(newest, guess)
        ):
            return WELL
        if memory.learnt:
            return self._warning(both, f"although it was better at step {memory.learnt}")
        if self._is_altered and memory.evaluations < _EVALUATIONS:
            return self._warning(both, "and evaluations have not shown yet whether it learns")
        evaluations = ", nor was any evaluation better" if memory.evaluations else ""
        seen = (
            f"the network has learned nothing: {self._accuracy(both)} in the steps {both.first} to "
            f"{step}{evaluations}"
        )
        # A rollback would not help, since no earlier state has learned more.
        fixes = f"change {self._rate}", "check labels and images"
        raise self._error(step, step, seen, *fixes, "continue with health.stuck_after=''")

    def _note_learning(self, span: Span) -> bool:
        """Return whether a span is better than a guess, and keep the first such step."""
        learns = span.has_learnt(self._guess)
        if learns and not self._memory.learnt:
            self._memory.learnt = span.first
        return learns

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

    def _returned(self, step: int, good_step: int, seen: str, *fixes: str) -> Verdict:
        """Return a rollback, if the options still allow it and there is a checkpoint.

        Args:
          step: where the failure was seen.
          good_step: the last step before the failure.
          seen: what was seen.
          fixes: for the message.

        Raises:
          HealthError: otherwise.
        """
        memory, rolls = self._memory, self._options.policy == "rollback"
        path = self._returns_to(good_step)
        if rolls and path is not None and memory.rollbacks < MAX_ROLLBACKS:
            memory.rollbacks += 1
            # The result of the newest steps is discarded.
            memory.evaluations, memory.high = 0, Span()
            memory.earlier, memory.newest = Span(), Span()
            what = f"rolled back to checkpoint {path} ({memory.rollbacks} of at most"
            return Verdict("rollback", f"{seen}; {what} {MAX_ROLLBACKS})", good_step)
        if not rolls and path is not None:
            fixes += ("continue with health.policy=rollback",)
        if rolls and path is None:
            fixes += (f"shorten run.checkpoint_every={self._plan.config.run.checkpoint_every!r}",)
        raise self._error(step, good_step, seen, *fixes)

    def _error(self, step: int, good_step: int, seen: str, *fixes: str) -> HealthError:
        """Return the error that ends the run, in one line; see `_returned`."""
        policy, memory = self._options.policy, self._memory
        rate = self._plan.rates(step).learning_rate
        where = f"sample position {self._plan.position(step)}, learning rate {rate:.4g}"
        if policy == "skip" and memory.skips >= MAX_SKIPS:
            where += f", after {memory.skips} skipped updates"
        if policy == "rollback" and memory.rollbacks >= MAX_ROLLBACKS:
            where += f", after {memory.rollbacks} rollbacks"
        if path := self._newest(good_step):
            checkpoint = f"newest checkpoint before: {path}"
        elif path := self._newest(self._plan.steps):
            checkpoint = (
                f"no checkpoint is from before step {good_step + 1}, the newest is {path}; start "
                "again with --resume=never"
            )
        else:
            checkpoint = "no checkpoint yet"
        return HealthError(f"{seen} ({where}); {', '.join(fixes)}; {checkpoint}")

    def _accuracy(self, span: Span) -> str:
        """Describe the accuracy of a span beside that of a guess."""
        return (
            f"{span.right / span.images:.2%} of {span.images:,} images are right, a guess has "
            f"{self._guess.share:.2%}"
        )

    def _smaller_steps(self) -> str:
        """Return the options that make the steps smaller."""
        return f"lower {self._rate}, lengthen schedule.warmup={self._plan.config.schedule.warmup!r}"

    @property
    def _rate(self) -> str:
        """The option of the learning rate, with its value."""
        schedule = self._plan.config.schedule
        name = "peak" if schedule.peak else "per_256"
        return f"schedule.{name}={getattr(schedule, name):g}"
