"""The update rules as plain NumPy float64 loops, random trees, and how trees are compared.

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


def norms(tree):
    """L2 norms of the leaves, in the order of `jax.tree.leaves`."""
    return [np.linalg.norm(np.ravel(x).astype(np.float64)) for x in jax.tree.leaves(tree)]


def device(tree):
    return jax.tree.map(jnp.asarray, tree)


def run(rule, params, grads, rates, **others):
    """Parameters after each step of `rule`, given learning rates, and other rates that stay.

    A rate may be a whole `Rates` instead.
    """
    params, state, history = device(params), rule.init(device(params)), []
    for step, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        given = rate if isinstance(rate, Rates) else Rates(rate, step=step, **others)
        given = Rates(*map(jnp.asarray, given))
        updates, state = rule.update(device(g), state, params, rates=given)
        params = optax.apply_updates(params, updates)
        history.append(params)
    return history, state


def loop(kind, params, grads, rates, **options):
    """Parameters after each step of `update_one` on every leaf."""
    trust, decay = options.pop("trust_mask", None), options.pop("decay_mask", None)
    paths = [(module, name) for module, of in params.items() for name in of]
    w = {p: np.asarray(params[p[0]][p[1]], np.float64) for p in paths}
    v, history = {p: np.zeros_like(w[p]) for p in paths}, []
    for g, rate in zip(grads, rates, strict=True):
        for module, name in paths:
            w[module, name], v[module, name] = update_one(
                kind,
                w[module, name],
                v[module, name],
                np.asarray(g[module][name], np.float64),
                rate,
                trusted=trust is None or trust[module][name],
                decayed=decay is None or decay[module][name],
                **options,
            )
        history.append({module: {n: w[module, n] for n in of} for module, of in params.items()})
    return history


def update_one(
    kind,
    w,
    v,
    g,
    rate,
    *,
    trusted,
    decayed,
    momentum,
    weight_decay,
    nesterov,
    trust_coefficient=0.0,
    epsilon=0.0,
):
    """New weight and velocity; `kind` is sgd, mlperf or optax."""
    if not decayed:
        weight_decay = 0.0
    u = g + weight_decay * w
    if kind == "sgd":
        v = momentum * v + u
        return w - rate * (u + momentum * v if nesterov else v), v
    norm = {"mlperf": np.linalg.norm(g.ravel()), "optax": np.linalg.norm(u.ravel())}[kind]
    w_norm, ratio = np.linalg.norm(w.ravel()), 1.0
    if trusted and w_norm and norm:
        below = norm + (weight_decay * w_norm if kind == "mlperf" else 0.0) + epsilon
        ratio = trust_coefficient * w_norm / below
    x = rate * ratio * u
    v = momentum * v + x
    return w - (x + momentum * v if nesterov else v), v


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
