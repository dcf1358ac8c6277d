"""Random trees, a loop of updates, and how trees are compared.

Nothing is shared with the package. A tree is `{module: {name: array}}`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from largebatch.optim import Rates

SHAPES = {
    "conv": {"kernel": (3, 3, 4, 8)},
    "bn": {"scale": (8,), "bias": (8,)},
    "head": {"kernel": (8, 5), "bias": (5,)},
}


def random_tree(rng, dtype=np.float64, deviation=1.0):
    return {
        module: {name: rng.normal(0, deviation, shape).astype(dtype) for name, shape in of.items()}
        for module, of in SHAPES.items()
    }


def only(*names):
    """A mask: True for the leaves of these names."""
    return {module: {name: name in names for name in of} for module, of in SHAPES.items()}


def kinds(tree):
    """Kind of each parameter of a ResNet by path, from the names alone; paths may be joined."""
    found = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        *_, module, last = name.split("/")
        layer = module.removeprefix("downsample_").rstrip("0123456789")
        head = {"kernel": "fc", "bias": "bias"}
        found[name] = head[last] if layer == "head" else {"conv": "conv", "bn": "bn"}[layer]
    return found


def norms(tree):
    """L2 norms of the leaves, in the order of `jax.tree.leaves`."""
    return [np.linalg.norm(np.ravel(x).astype(np.float64)) for x in jax.tree.leaves(tree)]


def device(tree):
    return jax.tree.map(jnp.asarray, tree)


def run(rule, params, grads, rates, **others):
    """Parameters after each step of `rule`, given learning rates, and other rates that stay.

    A rate may be a whole `Rates` instead.
    """
    params, history = device(params), []
    state = jax.jit(rule.init)(params)

    @jax.jit
    def update(grads, state, params, rates):
        updates, state = rule.update(grads, state, params, rates=rates)
        return optax.apply_updates(params, updates), state

    for step, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        given = rate if isinstance(rate, Rates) else Rates(rate, step=step, **others)
        params, state = update(device(g), state, params, Rates(*map(jnp.asarray, given)))
        history.append(params)
    return history, state


def run_optax(rule, params, grads):
    """Parameters after each step of a rule of optax, whose rates are its own."""
    params, history = device(params), []
    state = jax.jit(rule.init)(params)

    @jax.jit
    def update(grads, state, params):
        updates, state = rule.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for g in grads:
        params, state = update(device(g), state, params)
        history.append(params)
    return history


def assert_close(actual, expected, tolerance):
    """Each leaf within `tolerance` times the largest element of the expected leaf."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for path, want in jax.tree_util.tree_leaves_with_path(expected):
        got = actual
        for key in path:
            got = got[key.key if hasattr(key, "key") else key.idx]
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape
        error = np.abs(got - want).max() / np.abs(want).max()
        assert error <= tolerance, f"{path}: {error:.3g} above {tolerance:g}"
