"""The LARS update of a network's parameters, against `optax.lars`.

    optimizer --json records/optimizer.json

Random weights and gradients. A program is a sequence of updates, each with its own set of
gradients, so that no norm can be reused; its buffers are donated. Many programs are queued before
one wait, so that the time is that of the device, not of the dispatch. For comparison, a plain pass
reads and writes as many bytes as an update must: parameters and gradients for the norms, both and
velocities for the update, parameters and velocities as results.
"""

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.competitor import Figures, Race, interleave
from benchmarks.measure import Result, require_positive
from largebatch import optim
from largebatch.models import DEPTHS, Model

LAYOUTS = ("leaf", "rows")
_PASSES = 7  # over all parameters
# Every rule's numbers; a step of some per cent of a weight, so that differences would show.
_RATE, _TRUST, _DECAY, _MOMENTUM = 10.0, 1e-3, 5e-5, 0.9

PyTree = Any
Rule = tuple[Callable, Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]]
"""Parameters → state, and (parameters, state, gradients) → (parameters, state)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--network", default="resnet50", choices=DEPTHS, help="network (resnet50)")
    add("--width", type=int, default=64, help="channels of the first stage (64)")
    add("--classes", type=int, default=1000, help="classes (1,000)")
    add("--sets", type=int, default=4, help="sets of gradients; updates of a program (4)")
    add("--seconds", type=float, default=0.5, help="length of a repeat, at least (0.5)")
    add("--repeats", type=int, default=10, help="repeats, after one to warm up (10)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Compile all competitors, then interleave their repeats.

    Raises:
        ConfigError: A number below 1.
    """
    require_positive(flags, "width", "classes", "sets", "repeats")
    model = Model(flags.network, classes=flags.classes, width=flags.width)
    shapes, _ = jax.eval_shape(model.init, 0)
    params, *sets = (_random(shapes, seed) for seed in range(1 + flags.sets))
    rules = {
        "ours": ours("mlperf", "auto"),
        "optax.lars": plain_optax(),
        "flavour optax": ours("optax", "auto"),
        **{f"layout {layout}": ours("mlperf", layout) for layout in LAYOUTS},
    }
    queues = {name: updates(rule, params, sets, flags.seconds) for name, rule in rules.items()}
    require_equal(queues["flavour optax"].first[0], queues["optax.lars"].first[0], params)
    nbytes = _PASSES * sum(x.nbytes for x in jax.tree.leaves(params))
    queues["a plain pass"] = plain_pass(nbytes, flags.seconds)
    figures = interleave({name: queue.repeat for name, queue in queues.items()}, flags.repeats)
    figures["ours"] = [one | {"GB/s": nbytes / 1e6 / one["ms"]} for one in figures["ours"]]
    same = Race({"ours": figures.pop("flavour optax"), "optax.lars": figures["optax.lars"]})
    about = f"a pass over the {nbytes / 1e9:.3g} GB that an update must read and write"
    race = Race(figures, about={"a plain pass": about})
    return race.results("update") + same.results("update, flavour optax")[1:]


class Queue:
    """A program with its buffers, which are donated; many are dispatched, then waited for."""

    def __init__(
        self, program: Callable, held: PyTree, given: PyTree, seconds: float, updates: int = 1
    ) -> None:
        """Compile, and run the program once.

        Args:
            program: (*held, given) → held.
            held: The buffers; a copy is made.
            given: What each run gets, too.
            seconds: Length of a repeat.
            updates: Number in a program.
        """
        self._program = jax.jit(program, donate_argnums=range(len(held)))
        self._held, self._given = jax.tree.map(jnp.copy, held), given
        self._updates = updates
        self._run(1)
        self.first = jax.tree.map(jnp.copy, self._held)
        """The buffers after one run."""
        self._programs = max(1, math.ceil(seconds / self._run(1)))

    def repeat(self) -> Figures:
        """Milliseconds of an update."""
        return {"ms": 1e3 * self._run(self._programs) / (self._programs * self._updates)}

    def _run(self, programs: int) -> float:
        jax.block_until_ready(self._held)
        began = time.perf_counter()
        for _ in range(programs):
            self._held = self._program(*self._held, self._given)
        jax.block_until_ready(self._held)
        return time.perf_counter() - began


def updates(rule: Rule, params: PyTree, sets: Sequence[PyTree], seconds: float) -> Queue:
    """The queue of a rule: an update with each set of gradients."""
    init, update = rule

    def program(params: PyTree, state: PyTree, sets: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
        for gradients in sets:
            # No update may be merged with the next: in training a backward pass is between.
            params, state = jax.lax.optimization_barrier(update(params, state, gradients))
        return params, state

    return Queue(program, (params, jax.jit(init)(params)), sets, seconds, len(sets))


def plain_pass(nbytes: int, seconds: float) -> Queue:
    """The queue of a pass in place that reads half of the bytes and writes the other half."""
    # The factor of one is an argument, so that the compiler does not know it.
    return Queue(lambda x, one: (x * one,), (jnp.ones(max(1, nbytes // 8)),), 1.0, seconds)


def ours(flavour: str, layout: optim.Layout) -> Rule:
    """Our LARS."""
    rule = optim.lars(
        flavour=flavour,
        trust_coefficient=_TRUST,
        trust_mask=_kernels,
        decay_mask=_kernels,
        norms=optim.norms_in(layout),
    )
    rates = optim.Rates(_RATE, weight_decay=_DECAY, momentum=_MOMENTUM)
    return _rule(rule, rates=rates)


def plain_optax() -> Rule:
    """`optax.lars` with the same numbers."""
    return _rule(
        optax.lars(
            _RATE,
            weight_decay=_DECAY,
            weight_decay_mask=_kernels,
            trust_coefficient=_TRUST,
            trust_ratio_mask=_kernels,
            momentum=_MOMENTUM,
        )
    )


def _rule(rule: Any, **more: Any) -> Rule:
    def update(params: PyTree, state: PyTree, gradients: PyTree) -> tuple[PyTree, PyTree]:
        updates, state = rule.update(gradients, state, params, **more)
        return optax.apply_updates(params, updates), state

    return rule.init, update


def _kernels(params: PyTree) -> PyTree:
    """Which parameters have a trust ratio and are decayed, in every rule."""
    return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", params)


def _random(shapes: PyTree, seed: int) -> PyTree:
    """Normally distributed, of deviation 0.05; drawn at once, as that is far quicker."""
    leaves, structure = jax.tree.flatten(shapes)
    sizes = [leaf.size for leaf in leaves]
    drawn = 0.05 * jax.random.normal(jax.random.key(seed), (sum(sizes),))
    parts = jnp.split(drawn, list(itertools.accumulate(sizes))[:-1])
    shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def require_equal(ours: PyTree, theirs: PyTree, before: PyTree) -> None:
    """Raise a RuntimeError if updates differ by more than a thousandth of the change."""

    def furthest(one: PyTree, other: PyTree) -> float:
        apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), one, other)
        return max(jax.tree.leaves(apart))

    difference, change = furthest(ours, theirs), furthest(theirs, before)
    if not difference <= 1e-3 * change:
        raise RuntimeError(f"the updates differ by {difference:.3g}, of a change of {change:.3g}")
