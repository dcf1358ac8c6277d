"""The LARS update of a network's parameters: ours beside `optax.lars`.

    optimizer --json records/optimizer.json

Random weights and gradients. A program is as many updates as there are sets of gradients, one after
the other and each with a set of its own, so that no norm can be kept from one to the next; its
buffers are donated. Many programs are queued and waited for once: the clock sees the device, not
the dispatch. Beside it a plain pass over as many bytes as an update must read and write: parameters
and gradients for the norms, both and velocities for the update, parameters and velocities back.
"""

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.measure import Result, interleave
from largebatch import optim
from largebatch.errors import ConfigError, did_you_mean
from largebatch.models import DEPTHS, Model

PEERS = ("optax",)
LAYOUTS = ("leaf", "rows")
_PASSES = 7  # over all parameters
# Every rule's numbers; a step of some per cent of a weight, so that differences would show.
_RATE, _TRUST, _DECAY, _MOMENTUM = 10.0, 1e-3, 5e-5, 0.9
_RATIO_GOALS = {"gpu": 3.0, "cpu": 1.0}
_LIMIT_GOALS = {"gpu": 0.5}

PyTree = Any
Update = Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]
"""(parameters, state, gradients) → (parameters, state)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--peer", default="optax", help=f"comma-separated: {', '.join(PEERS)}; or empty (optax)")
    add("--network", default="resnet50", choices=DEPTHS, help="resnet50 unless given")
    add("--width", type=int, default=64, help="channels of the first stage (64)")
    add("--classes", type=int, default=1000, help="classes (1,000)")
    add("--sets", type=int, default=4, help="sets of gradients; updates of a program (4)")
    add("--seconds", type=float, default=0.5, help="length of a repeat, at least (0.5)")
    add("--repeats", type=int, default=10, help="repeats, after one to warm up (10)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Compiles all competitors, then runs a repeat of each in turn.

    Raises:
        ConfigError: Options that do not fit each other.
    """
    peers = [name for name in flags.peer.split(",") if name]
    for name in peers:
        if name not in PEERS:
            raise ConfigError(f"--peer {name} is unknown; {did_you_mean(name, PEERS)}")
    for name in ("width", "classes", "sets", "repeats"):
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name} is {getattr(flags, name)}; give 1 or more")
    model = Model(flags.network, classes=flags.classes, width=flags.width)
    shapes, _ = jax.eval_shape(model.init, 0)
    params, *sets = (_random(shapes, seed) for seed in range(1 + flags.sets))
    updates = {
        name: Updates(rule, params, sets, flags.seconds) for name, rule in _rules(peers).items()
    }
    if "optax" in peers:
        _compare(updates["same"].params, updates["optax"].params, params)
    nbytes = _PASSES * sum(x.nbytes for x in jax.tree.leaves(params))
    repeats = {name: one.repeat for name, one in updates.items()}
    repeats["pass"] = plain_pass(nbytes, flags.seconds)
    found = interleave(repeats, flags.repeats)
    return results(found, nbytes, peers, max(one.dispatch_share for one in updates.values()))


class Updates:
    """A rule's program with its buffers."""

    def __init__(
        self, rule: tuple[Callable, Update], params: PyTree, sets: Sequence[PyTree], seconds: float
    ) -> None:
        """Compiles, and runs the program once.

        Args:
            rule: Parameters to state, and the update.
            params: The first parameters, which stay.
            sets: Of gradients.
            seconds: Length of a repeat.
        """
        init, update = rule

        def program(params: PyTree, state: PyTree, sets: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
            for gradients in sets:
                # No update may be merged with the next: in training a backward pass is between.
                params, state = jax.lax.optimization_barrier(update(params, state, gradients))
            return params, state

        self._sets, self._seconds = sets, seconds
        self._held = jax.tree.map(jnp.copy, params), jax.jit(init)(params)
        self._program = jax.jit(program, donate_argnums=(0, 1))
        self._run(1)
        self.params = jax.tree.map(jnp.copy, self._held[0])
        """After one update with each set."""
        self.dispatch_share = 0.0
        """The most that dispatching took of a repeat."""
        self._programs = max(1, math.ceil(seconds / self._run(1)))

    def repeat(self) -> float:
        """Seconds of an update."""
        return self._run(self._programs) / (self._programs * len(self._sets))

    def _run(self, programs: int) -> float:
        jax.block_until_ready(self._held)
        began = time.perf_counter()
        for _ in range(programs):
            self._held = self._program(*self._held, self._sets)
        dispatched = time.perf_counter() - began
        jax.block_until_ready(self._held)
        wall = time.perf_counter() - began
        if programs > 1:
            self.dispatch_share = max(self.dispatch_share, dispatched / wall)
        return wall


def plain_pass(nbytes: int, seconds: float) -> Callable[[], float]:
    """The repeat of a pass in place that reads half of the bytes and writes the other half."""
    held = [jnp.ones(max(1, nbytes // 8), jnp.float32)]
    # A factor of one that the compiler does not know.
    scale = jax.jit(lambda x, factor: x * factor, donate_argnums=0)

    def timed(passes: int) -> float:
        jax.block_until_ready(held)
        began = time.perf_counter()
        for _ in range(passes):
            held[0] = scale(held[0], 1.0)
        jax.block_until_ready(held)
        return time.perf_counter() - began

    timed(1)
    passes = max(1, math.ceil(seconds / timed(1)))
    return lambda: timed(passes) / passes


def results(
    found: Mapping[str, Sequence[float]], nbytes: int, peers: Sequence[str], dispatch: float
) -> list[Result]:
    """The figures of `run`.

    Args:
        found: Seconds of an update, or of the plain pass, repeat by repeat.
        nbytes: What an update must read and write.
        peers: Who takes part.
        dispatch: The largest share of a repeat that went by until all was dispatched.
    """
    milliseconds = {name: tuple(1e3 * x for x in values) for name, values in found.items()}
    ours, platform = milliseconds["ours"], jax.default_backend()
    made = []
    for peer in peers:
        goal, theirs = _RATIO_GOALS.get(platform), milliseconds[peer]
        for name, figures in (("update", ours), ("update, flavour optax", milliseconds["same"])):
            made.append(
                Result(
                    f"{name} vs {peer}.lars",
                    "ms",
                    figures,
                    peer=theirs,
                    peer_name=peer,
                    better="less",
                    goal=goal,
                )
            )
    made.append(
        Result(
            "update vs a plain pass",
            "ms",
            ours,
            peer=milliseconds["pass"],
            peer_name="pass",
            better="less",
            goal=_LIMIT_GOALS.get(platform),
            note=f"a pass over the {nbytes / 1e9:.3g} GB that an update must read and write",
        )
    )
    made.append(
        Result(
            "update",
            "GB/s",
            tuple(nbytes / 1e6 / x for x in ours),
            # On CPUs a dispatch computes too.
            note="" if platform == "cpu" else f"dispatched after {dispatch:.0%} of the time",
        )
    )
    made += [
        Result(
            f"update vs layout {layout}",
            "ms",
            ours,
            peer=milliseconds[layout],
            peer_name=f"layout {layout}",
            better="less",
        )
        for layout in LAYOUTS
    ]
    return made


def _rules(peers: Sequence[str]) -> dict[str, tuple[Callable, Update]]:
    rules = {"ours": _ours("mlperf", "auto")}
    rules |= {layout: _ours("mlperf", layout) for layout in LAYOUTS}
    if "optax" in peers:
        rules["same"] = _ours("optax", "auto")
        rules["optax"] = _optax()
    return rules


def _kernels(params: PyTree) -> PyTree:
    """Which parameters have a trust ratio and are decayed, in every rule."""
    return optim.mask(params, ("bn", "bias"))


def _ours(flavour: optim.Flavour, layout: optim.Layout) -> tuple[Callable, Update]:
    rule = optim.lars(
        flavour=flavour,
        trust_coefficient=_TRUST,
        trust_mask=_kernels,
        decay_mask=_kernels,
        layout=layout,
    )

    rates = optim.Rates(_RATE, weight_decay=_DECAY, momentum=_MOMENTUM)

    def update(params: PyTree, state: PyTree, gradients: PyTree) -> tuple[PyTree, PyTree]:
        updates, state = rule.update(gradients, state, params, rates=rates)
        return optax.apply_updates(params, updates), state

    return rule.init, update


def _optax() -> tuple[Callable, Update]:
    rule = optax.lars(
        _RATE,
        weight_decay=_DECAY,
        weight_decay_mask=_kernels,
        trust_coefficient=_TRUST,
        trust_ratio_mask=_kernels,
        momentum=_MOMENTUM,
    )

    def update(params: PyTree, state: PyTree, gradients: PyTree) -> tuple[PyTree, PyTree]:
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return rule.init, update


def _random(shapes: PyTree, seed: int) -> PyTree:
    """Normally distributed, of deviation 0.05; drawn at once, as that is far quicker."""
    leaves, structure = jax.tree.flatten(shapes)
    drawn = 0.05 * jax.random.normal(jax.random.key(seed), (sum(x.size for x in leaves),))
    parts, start = [], 0
    for leaf in leaves:
        parts.append(jnp.copy(drawn[start : start + leaf.size].reshape(leaf.shape)))
        start += leaf.size
    return jax.tree.unflatten(structure, parts)


def _compare(ours: PyTree, theirs: PyTree, before: PyTree) -> None:
    """Nothing is measured where the two do not compute the same.

    Raises:
        RuntimeError: They differ by more than a thousandth of the change.
    """

    def furthest(one: PyTree, other: PyTree) -> float:
        apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), one, other)
        return max(jax.tree.leaves(apart))

    difference, change = furthest(ours, theirs), furthest(theirs, before)
    if not difference <= 1e-3 * change:
        raise RuntimeError(f"the updates differ by {difference:.3g}, of a change of {change:.3g}")
