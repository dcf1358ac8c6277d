"""Sharded against replicated updates of a few parameters, from gradients that devices differ in."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from largebatch import optim, parallel
from largebatch.parallel import REPLICATED, SPLIT
from largebatch.training.update import Replicated, Sharded
from largebatch.trees import flatten_paths, unflatten_paths
from tests.optim import plain

RATES = (0.5, 0.2)
# Not one is a multiple of 8, and one has fewer elements than there are devices.
SHAPES = {
    "stem": {"conv": {"kernel": (3, 3, 2, 5)}, "bn": {"scale": (5,), "bias": (5,)}},
    "head": {"kernel": (13, 9), "bias": (9,)},
}
GIVEN = {"momentum": 0.9, "weight_decay": 0.05, "sgd_share": 0.4}
MASKED = {
    "decay_mask": lambda params: optim.mask(params, ("bn", "bias")),
    "trust_mask": lambda params: optim.mask(params, ("bn", "bias")),
}
RULES = {
    "mlperf": functools.partial(optim.lars, flavour="mlperf", **MASKED),
    "optax": functools.partial(optim.lars, flavour="optax", nesterov=True, **MASKED),
    "apex": functools.partial(optim.lars, flavour="apex", **MASKED),
    "sgd": optim.sgd,
    "lamb": functools.partial(optim.lamb, **MASKED),
    "rmsprop_sgd": optim.rmsprop_sgd,
}


def tree(seed, dtype, *more):
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: draw.normal(0, 1, (*more, *shape)).astype(dtype),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def buckets():
    sizes = [(path, x.size) for path, x in flatten_paths(tree(0, "float32")).items()]
    return parallel.plan_buckets(sizes, scheme="bucket", least_bytes=100, itemsize=4)


def stepped(devices, update, dtype, *, carried):
    """Parameters and state, as checkpoints hold it, after a step for each of RATES.

    The loss of a device is the product of the parameters and its own random numbers, so those are
    its gradients; with `carried` it has as many again from earlier.
    """
    mesh = parallel.make_mesh(jax.devices()[:devices], 1)
    params = jax.tree.map(jnp.asarray, tree(1, dtype))
    state = update.init(params)
    specs = update.specs(state)

    def step(params, state, own, earlier, rates):
        held = [earlier[i][0] for i in range(len(update.buckets))] if carried else None

        def loss(handles):
            hooked = unflatten_paths(update.hook(params, handles, held))
            products = jax.tree.map(lambda w, c: jnp.sum(w * c[0]), hooked, own)
            return sum(jax.tree.leaves(products))

        gradients = jax.grad(loss)(update.handles(params))
        return update.apply(gradients, state, params, rates)

    mapped = jax.jit(
        parallel.map_over(
            mesh, step, (REPLICATED, specs, SPLIT, SPLIT, REPLICATED), (REPLICATED, specs)
        )
    )
    for i, rate in enumerate(RATES):
        # The same numbers whatever the devices are, shared out.
        own, earlier = (
            jax.tree.map(
                lambda x: x.reshape(devices, 8 // devices, *x.shape[1:]).sum(1), tree(s, dtype, 8)
            )
            for s in (10 + i, 20 + i)
        )
        flat = flatten_paths(earlier)
        held = [
            np.concatenate([flat[path].reshape(devices, -1) for path in bucket.paths], axis=1)
            for bucket in update.buckets
        ]
        rates = optim.Rates(rate, step=i + 1, **GIVEN)
        rates = optim.Rates(*(jnp.asarray(x, dtype) for x in rates))
        params, state = mapped(params, state, own, held, rates)
    return jax.device_get((params, update.to_checkpoint(state, params)))


@functools.cache
def replicated(rule, dtype, *, carried):
    update = Replicated(RULES[rule](), buckets(), "float32")
    return stepped(8, update, dtype, carried=carried)


# Gradients are sums of 8 numbers, in an order that may differ; two steps of some 20 operations.
TOLERANCE = {"float32": 1e-6, "float64": 1e-13}
CASES = [
    ("mlperf", 1, "float64", False),
    ("mlperf", 8, "float64", False),
    ("mlperf", 4, "float32", True),
    ("optax", 2, "float64", False),
    ("sgd", 8, "float64", True),
    ("sgd", 2, "float32", False),
    ("apex", 2, "float64", False),
    ("lamb", 4, "float64", False),
    ("rmsprop_sgd", 8, "float64", True),
]


@pytest.mark.parametrize(("rule", "devices", "dtype", "carried"), CASES)
def test_sharded_equals_replicated(rule, devices, dtype, carried):
    tolerance = TOLERANCE[dtype]
    with jax.enable_x64(dtype == "float64"):
        expected, state = replicated(rule, dtype, carried=carried)
        summed = RULES[rule](total=parallel.sum_over_devices)
        update = Sharded(summed, buckets(), "float32", devices)
        found, other = stepped(devices, update, dtype, carried=carried)
    plain.assert_close(found, expected, tolerance)
    assert other._fields == state._fields
    for name in set(state._fields) - {"report"}:
        plain.assert_close(getattr(other, name), getattr(state, name), tolerance)
    for name, one, two in zip(state.report._fields, other.report, state.report, strict=True):
        np.testing.assert_allclose(one, two, rtol=tolerance, err_msg=name)


def test_the_wire_rounds_gradients_but_not_parameters():
    with jax.enable_x64(True):
        rule = optim.sgd(total=parallel.sum_over_devices)
        exact, rounded = (
            stepped(4, Sharded(rule, buckets(), wire, 4), "float64", carried=False)[0]
            for wire in ("float32", "bfloat16")
        )
        before = tree(1, "float64")
        change, difference = (
            jax.tree.map(lambda a, b: np.abs(a - b).max(), exact, other)
            for other in (before, rounded)
        )
    for moved, wrong in zip(jax.tree.leaves(change), jax.tree.leaves(difference), strict=True):
        assert 0 < wrong < 2**-6 * moved  # eight bits; a few of those roundings


def test_stored_velocities_are_like_the_parameters_and_come_back():
    params = jax.tree.map(jnp.asarray, tree(3, "float32"))
    update = Sharded(optim.lars(flavour="mlperf"), buckets(), "float32", 8)
    whole = Replicated(update.optimizer, buckets(), "float32").init(params)
    state = update.from_checkpoint(whole._replace(momentum=params), params)
    assert {v.shape[0] for v in jax.tree.leaves(state.momentum)} == {8}
    whole = update.to_checkpoint(state, params)
    jax.tree.map(np.testing.assert_array_equal, whole.momentum, params)


def test_a_step_reduces_only_parts():
    """A reduce-scatter a bucket, an all-gather an array, and an all-reduce of two norms each."""
    mesh = parallel.make_mesh(jax.devices()[:4], 1)
    rule = optim.lars(flavour="mlperf", total=parallel.sum_over_devices)
    update = Sharded(rule, buckets(), "float32", 4)
    params = jax.tree.map(jnp.asarray, tree(1, "float32"))
    state = update.init(params)

    def step(params, state):
        def loss(handles):
            hooked = update.hook(params, handles, None)
            return sum(jnp.sum(x**2) for x in hooked.values())

        gradients = jax.grad(loss)(update.handles(params))
        return update.apply(gradients, state, params, optim.Rates(0.1))

    specs = update.specs(state)
    mapped = parallel.map_over(mesh, step, (REPLICATED, specs), (REPLICATED, specs))
    text = jax.jit(mapped).lower(params, state).as_text()
    assert len(update.buckets) > 1
    assert text.count('"stablehlo.reduce_scatter"') == len(update.buckets)
    assert text.count('"stablehlo.all_gather"') == 5
    assert text.count('"stablehlo.all_reduce"') == 1
    assert optax.tree.size(state.momentum) < optax.tree.size(params) + 4 * 5
