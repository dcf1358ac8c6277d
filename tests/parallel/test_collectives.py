import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch import parallel
from largebatch.parallel import REPLICATED, SPLIT

SIZES = {"least_bytes": 0, "itemsize": 4}


@pytest.fixture(params=[(1, 1), (4, 2), (8, 8)], ids=str)
def mesh(request):
    devices, members = request.param
    return parallel.make_mesh(jax.devices()[:devices], members)


def test_sum_over_devices_sums_every_leaf(mesh):
    x = jnp.arange(mesh.size * 3.0).reshape(mesh.size, 3)
    tree = {"a": x, "b": 2 * x[:, :1]}
    mapped = parallel.map_over(mesh, parallel.sum_over_devices, SPLIT, REPLICATED)
    total = jax.jit(mapped)(tree)
    np.testing.assert_array_equal(total["a"], x.sum(0, keepdims=True))
    np.testing.assert_array_equal(total["b"], 2 * x[:, :1].sum(0, keepdims=True))


def test_member_sum_sums_over_the_span_only(mesh):
    x = jnp.arange(float(mesh.size))
    got = jax.jit(parallel.map_over(mesh, parallel.member_sum, SPLIT, SPLIT))(x)
    members = mesh.shape["member"]
    expected = np.repeat(x.reshape(-1, members).sum(1), members)
    np.testing.assert_array_equal(got, expected)


def test_the_gradient_of_member_sum_counts_every_device_that_uses_it(mesh):
    # L = Σ_d w_d · s_d² with s the span's sum: dL/dx_e = Σ_{d in span(e)} 2 w_d s_d.
    x = jnp.linspace(1.0, 2.0, mesh.size)
    w = jnp.linspace(3.0, 5.0, mesh.size)

    def gradient(x, w):
        return jax.grad(lambda x: (w * parallel.member_sum(x) ** 2).sum())(x)

    got = jax.jit(parallel.map_over(mesh, gradient, (SPLIT, SPLIT), SPLIT))(x, w)
    members = mesh.shape["member"]

    def whole(x):
        s = jnp.repeat(x.reshape(-1, members).sum(1), members)
        return (w * s**2).sum()

    np.testing.assert_allclose(
        got, jax.jit(jax.grad(whole))(x), rtol=1e-6
    )  # f32, sums of at most 8


def test_a_process_has_the_rows_of_its_devices(mesh):
    assert parallel.local_rows(mesh, 24) == (0, 24)


@pytest.mark.parametrize("carried", [False, True])
def test_scattered_sums_are_the_parts_of_all_devices(mesh, carried):
    params = {"a": jnp.ones((3, 2)), "b": jnp.arange(4.0)}
    buckets = parallel.plan_buckets([("a", 6), ("b", 4)], scheme="leaf", **SIZES)
    x = jax.random.normal(jax.random.key(1), (mesh.size, 4))

    def loss(params, x):
        return (x.sum() * params["a"] ** 2).sum() + (params["b"] * x).sum()

    def gradient(params, x):
        held = [jnp.full(b.size, 3.0) for b in buckets] if carried else None

        def local(sinks):
            hooked = parallel.scatter_gradients_in_backward(params, sinks, buckets, held, "float32")
            return loss(hooked, x)

        sinks = parallel.own_parts(jax.tree.map(jnp.zeros_like, params))
        return parallel.gather_parts(jax.grad(local)(sinks), params)

    got = jax.jit(parallel.map_over(mesh, gradient, (REPLICATED, SPLIT), REPLICATED))(params, x)
    expected = jax.grad(lambda p: sum(loss(p, row[None]) for row in x))(params)
    for path, array in expected.items():
        extra = 3 * mesh.size if carried else 0
        np.testing.assert_allclose(got[path], array + extra, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("scheme", ["bucket", "leaf", "tree"])
@pytest.mark.parametrize(("carried", "in_turn"), [(False, False), (True, False), (True, True)])
def test_gradients_are_summed_once_with_what_was_accumulated(mesh, scheme, carried, in_turn):
    key = jax.random.key(0)
    params = {"a": jax.random.normal(key, (3, 2)), "b": jnp.ones(4), "c": jnp.full((2,), 2.0)}
    layers = [(path, x.size) for path, x in params.items()]
    buckets = parallel.plan_buckets(layers, scheme=scheme, least_bytes=20, itemsize=4)
    x = jax.random.normal(jax.random.key(1), (mesh.size, 4))
    held = tuple(jnp.ones((mesh.size, b.size)) * (i + 1) for i, b in enumerate(buckets))

    def loss(params, x):
        return (x.sum() * params["a"] ** 2).sum() + (params["b"] * x).sum() + params["c"].prod()

    def gradient(params, x, held):
        mine = [h[0] for h in held] if carried else None

        def local(params):
            hooked = parallel.reduce_gradients_in_backward(
                params, buckets, mine, "float32", in_turn=in_turn
            )
            return loss(hooked, x)

        return jax.grad(local)(params)

    mapped = parallel.map_over(mesh, gradient, (REPLICATED, SPLIT, SPLIT), REPLICATED)
    got = jax.jit(mapped)(params, x, held)
    expected = jax.jit(jax.grad(lambda p: sum(loss(p, row[None]) for row in x)))(params)
    for i, bucket in enumerate(buckets):
        for path in bucket.paths:
            extra = mesh.size * (i + 1) if carried else 0
            np.testing.assert_allclose(got[path], expected[path] + extra, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("in_turn", [False, True])
def test_in_turn_each_all_reduce_depends_on_the_one_before(in_turn):
    mesh = parallel.make_mesh(jax.devices()[:2], 1)
    params = {path: jnp.ones(3) for path in "abc"}
    buckets = parallel.plan_buckets([(path, 3) for path in params], scheme="leaf", **SIZES)
    # NaN shows what depends on what: that of b reaches a, which is complete after it, and not c.
    factors = {"a": 1.0, "b": jnp.nan, "c": 1.0}

    def gradient(params):
        def loss(params):
            hooked = parallel.reduce_gradients_in_backward(
                params, buckets, None, "float32", in_turn=in_turn
            )
            return sum((factors[path] * x).sum() for path, x in hooked.items())

        return jax.grad(loss)(params)

    got = jax.jit(parallel.map_over(mesh, gradient, REPLICATED, REPLICATED))(params)
    np.testing.assert_array_equal(got["c"], [2, 2, 2])
    np.testing.assert_array_equal(got["a"], [jnp.nan if in_turn else 2, 2, 2])


def test_bfloat16_on_the_wire_is_widened_again():
    mesh = parallel.make_mesh(jax.devices()[:4], 1)
    buckets = parallel.plan_buckets([("a", 1000)], scheme="tree", least_bytes=0, itemsize=2)
    params = {"a": jnp.ones(1000)}
    x = jax.random.normal(jax.random.key(2), (4, 1000))

    def gradient(params, x):
        def local(params):
            hooked = parallel.reduce_gradients_in_backward(params, buckets, None, "bfloat16")
            return (hooked["a"] * x[0]).sum()

        return jax.grad(local)(params)

    got = jax.jit(parallel.map_over(mesh, gradient, (REPLICATED, SPLIT), REPLICATED))(params, x)
    assert got["a"].dtype == jnp.float32
    exact = np.asarray(x, np.float64).sum(0)
    # bf16 has 8 bits: each of the 4 terms and 3 sums is rounded to 2⁻⁹ of numbers up to Σ|x|.
    bound = np.abs(np.asarray(x)).sum(0) * 2.0**-9 * 4
    assert (np.abs(got["a"] - exact) <= bound).all()
    assert not np.array_equal(got["a"], x.sum(0))
