"""The update rule of a configuration, and whether a rule may update parts of arrays.

A rule may be sharded if it treats every element by itself. That is measured: small arrays are
updated whole and in two parts, and must agree.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from largebatch import optim, parallel
from largebatch.config import Config
from largebatch.config.registries import OPTIMIZERS
from largebatch.config.sections import Optimizer
from largebatch.errors import ConfigError
from largebatch.optim import Rates
from largebatch.optim.adapter import Factory, adapted, check_adapted, factory_of
from largebatch.parallel.mesh import cut_parts, part_size
from largebatch.registry import imported, parse_options
from largebatch.trees import unflatten_paths

PyTree = Any
_SCALES = (1e-6, 1.0, 1e12, np.nan)
"""Factors of the gradients of a step: any threshold on a norm is passed by some, and the last has a
NaN in one element, which a rule that looks at all of them would notice elsewhere."""
_PARTS = 2
_TOLERANCE = 1e-4
"""Relative to the largest value. A fusion may round differently; a norm of half an array differs
more."""


def optimizer_of(config: Config, kinds: Mapping[str, str]) -> optax.GradientTransformationExtraArgs:
    """The update rule of a configuration; it is given the rates of ``config.rates.rates_of``.

    Args:
      config: the configuration.
      kinds: kind of each parameter, by '/'-joined path (`Model.kinds`).

    Raises:
      ConfigError: choices that contradict each other, an unknown kind of parameter to skip, or a
        factory of an optax transformation that cannot be used here.
    """
    options, loss = config.optimizer, config.loss
    total = parallel.sum_over_devices if options.update == "sharded" else None
    norms = optim.norms_in(total=total)
    if options.name in OPTIMIZERS:
        rule = _built_in(options, kinds, norms)
    else:
        _check_factory(options)
        rule = _adapted(options, kinds, norms)
    if options.clip_norm:
        rule = optim.with_clipping(rule, options.clip_norm, norms)
    if loss.l2:
        rule = optim.with_l2(rule, loss.l2, optim.skipping(loss.l2_skip, kinds))
    return rule


def summary(options: Optimizer) -> str:
    """The rule, its momentum, its weight decay and its clipping, for people."""
    parts, known = [options.title], options.name in OPTIMIZERS
    if known:
        parts.append(f"momentum {options.momentum:g}")
    decays = known or _factory(options).takes_decay
    parts.append(f"weight decay {options.weight_decay:g}" if decays else "no weight decay")
    if options.clip_norm:
        parts.append(f"gradient norm up to {options.clip_norm:g}")
    return ", ".join(parts)


def _factory(options: Optimizer) -> Factory:
    return factory_of(options.name, parse_options(options.options))


def _built_in(
    options: Optimizer, kinds: Mapping[str, str], norms: optim.Norms
) -> optax.GradientTransformationExtraArgs:
    """A rule of `OPTIMIZERS` with the options that it uses."""
    entry = OPTIMIZERS[options.name]
    arguments = {name: getattr(options, name) for name in entry.options if name != "trust_skip"}
    arguments = {name: value for name, value in arguments.items() if value != "auto"}
    skips = optim.lars_of(options) if options.name == "lars" else options
    if "trust_skip" in entry.options:
        arguments["trust_mask"] = optim.skipping(_chosen(skips.trust_skip), kinds)
    # With a weight decay of 0, updates do not read the parameters for it.
    decays = optim.skipping(_chosen(skips.decay_skip), kinds) if options.weight_decay else False
    make = imported(entry.make, "optimizer.name")
    return make(**arguments, decay_mask=decays, norms=norms)


def _chosen(skip: tuple[str, ...] | str) -> tuple[str, ...]:
    """The kinds to skip; ``auto``: BatchNorm and biases."""
    return ("bn", "bias") if skip == "auto" else skip


def _adapted(
    options: Optimizer, kinds: Mapping[str, str], norms: optim.Norms
) -> optax.GradientTransformationExtraArgs:
    """The rule of an optax transformation."""
    factory = _factory(options)
    skip = _chosen(options.decay_skip)
    return adapted(
        factory,
        weight_decay=options.weight_decay if factory.takes_decay else 0.0,
        decay_mask=optim.skipping(skip, kinds) if skip else None,
        norms=norms,
    )


@functools.lru_cache
def _check_factory(options: Optimizer) -> None:
    """Check a factory's rule once: every stage and every number of microbatches asks for it."""
    shapes = {"conv/kernel": (3, 3, 2, 5), "head/kernel": (128, 130), "head/bias": (7,)}
    kinds = {"conv/kernel": "conv", "head/kernel": "fc", "head/bias": "bias"}
    params = unflatten_paths(
        {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}
    )
    rule = _adapted(options, kinds, optim.norms_in())
    check_adapted(rule, options.name, params)
    if options.update == "sharded":
        check_elementwise(rule, options.name, params)


def check_elementwise(
    rule: optax.GradientTransformationExtraArgs, name: str, params: PyTree
) -> None:
    """Update small arrays whole and cut into parts, and refuse a rule for which that differs.

    Args:
      rule: without sums over devices.
      name: ``optimizer.name``, for messages.
      params: shapes and dtypes.

    Raises:
      ConfigError: updates differ, or states are not cut as the parameters are.
    """
    draw = np.random.default_rng(0)

    def like(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray(draw.normal(0, 1, leaf.shape), leaf.dtype)

    weights = jax.tree.map(like, params)
    steps = []
    for scale in _SCALES:
        finite = 1.0 if np.isnan(scale) else scale
        gradients = jax.tree.map(lambda leaf, f=finite: f * like(leaf), params)
        if np.isnan(scale):
            first, *others = jax.tree.leaves(gradients)
            leaves = [first.at[(0,) * first.ndim].set(scale), *others]
            gradients = jax.tree.unflatten(jax.tree.structure(gradients), leaves)
        steps.append(gradients)

    whole = _updated(rule, weights, steps)
    parts = [_updated(rule, _part(weights, i), [_part(g, i) for g in steps]) for i in range(_PARTS)]
    if not all(_joined_equal(found, *pieces) for found, *pieces in zip(whole, *parts, strict=True)):
        raise ConfigError(
            f"optimizer.update=sharded: {name} does not treat every element by itself (a norm over "
            "elements, a shape or a factorisation decides), so devices cannot update parts of an "
            "array; use --config.optimizer.update=replicated"
        )


def check_state(whole: PyTree, cut: PyTree, devices: int) -> None:
    """Refuse a state whose arrays are not cut as the parameters are.

    Args:
      whole: shapes of the state for whole parameters.
      cut: those for parameters in (devices, part).
      devices: how many.

    Raises:
      ConfigError: an array is neither cut nor the same on all devices.
    """
    leaves, pieces = jax.tree.leaves(whole), jax.tree.leaves(cut)
    same = jax.tree.structure(whole) == jax.tree.structure(cut)
    if not same or not all(
        b.shape == a.shape or b.shape == (devices, part_size(a.size, devices))
        for a, b in zip(leaves, pieces, strict=True)
    ):
        raise ConfigError(
            "optimizer.update=sharded: the optimizer's state has arrays that do not follow the "
            "parameters element by element; use --config.optimizer.update=replicated"
        )


def _part(tree: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda x: cut_parts(x, _PARTS)[index : index + 1], tree)


def _updated(
    rule: optax.GradientTransformationExtraArgs, weights: PyTree, steps: list[PyTree]
) -> list[np.ndarray]:
    """The updates of all steps and the state after the last, without the report."""
    update = jax.jit(lambda g, s, w: rule.update(g, s, w, rates=Rates(0.1, 0.05)))
    state, found = rule.init(weights), []
    for gradients in steps:
        updates, state = update(gradients, state, weights)
        found += jax.tree.leaves(updates)
    return [np.asarray(x) for x in (*found, *jax.tree.leaves(state.inner))]


def _joined_equal(whole: np.ndarray, *parts: np.ndarray) -> bool:
    """Whether an array is that of its parts, or a scalar the same in all of them."""
    if whole.ndim:
        flat = np.concatenate([part.ravel() for part in parts])
        if flat.size < whole.size:
            return False
        parts = (flat[: whole.size].reshape(whole.shape),)
    if not jnp.issubdtype(whole.dtype, jnp.floating):
        return all(np.array_equal(part, whole) for part in parts)
    finite = np.abs(whole[np.isfinite(whole)]).astype(np.float64)
    least = 1e-3 * _TOLERANCE * finite.max(initial=0)
    return all(np.allclose(part, whole, _TOLERANCE, least, equal_nan=True) for part in parts)
