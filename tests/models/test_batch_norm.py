"""The hand-written gradient of BatchNorm (+ shortcut) (+ rectifier) against autodiff, in float64.

Tolerance 1e-10 of the largest value: sums of a few hundred float64 numbers in another order, times
a one-pass variance that loses about two digits.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from largebatch import parallel
from largebatch.models import BatchMode, BatchNorm, batch_norm
from largebatch.parallel import REPLICATED, SPLIT

EPSILON = 1e-3


def plain(x, scale, bias, shortcut, *, spans, relu):
    """Two passes, no custom gradient."""
    parts = x.reshape(spans, -1, x.shape[-1])
    mean, var = parts.mean(1, keepdims=True), parts.var(1, keepdims=True)
    y = ((parts - mean) / jnp.sqrt(var + EPSILON) * scale + bias).reshape(x.shape)
    if shortcut is not None:
        y = y + shortcut
    return jnp.maximum(y, 0) if relu else y


def ours(x, scale, bias, shortcut, *, mode, relu):
    layer = BatchNorm(x.shape[-1], epsilon=EPSILON, dtype=x.dtype, rngs=nnx.Rngs(0))
    layer.batch_mode = mode
    layer.scale.set_value(scale)
    layer.bias.set_value(bias)
    return layer(x, shortcut=shortcut, relu=relu)


@pytest.fixture(params=["of this platform", "of GPUs"])
def sums(request, monkeypatch):
    """The form of the two sums."""
    if request.param == "of GPUs":
        monkeypatch.setattr(batch_norm, "_two_sums", batch_norm.sum_complex)


def inputs(images=8, features=3):
    keys = jax.random.split(jax.random.key(0), 5)
    shape = (images, 5, 4, features)
    offsets = jnp.arange(1.0, images + 1)[:, None, None, None]
    x = 0.4 * jax.random.normal(keys[0], shape) + 0.1 * offsets  # variances below 1
    scale, bias = (1 + 0.5 * jax.random.normal(key, (features,)) for key in keys[1:3])
    return (x, scale, bias, *(jax.random.normal(key, shape) for key in keys[3:]))


def close(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * float(abs(b).max()))


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("adds", "spans"), [(True, 1), (True, 4), (False, 4)])
def test_value_and_gradient_equal_autodiffs(adds, relu, spans, sums):
    with jax.enable_x64(True):
        *arguments, weights = jax.tree.map(lambda a: a.astype("float64"), inputs())
        arguments[3] = arguments[3] if adds else None

        def results(function, **options):
            loss = jax.value_and_grad(
                lambda *a: (weights * function(*a, relu=relu, **options)).sum(),
                argnums=(0, 1, 2, 3) if adds else (0, 1, 2),
            )
            return jax.jit(loss)(*arguments)

        close(results(ours, mode=BatchMode(spans)), results(plain, spans=spans))


def test_a_span_over_several_devices_equals_one_device():
    mesh = parallel.make_mesh(jax.devices()[:4], 2)
    mode = BatchMode(spans=1, members=2, member_sum=parallel.member_sum)
    specs = (SPLIT, REPLICATED, REPLICATED, SPLIT)
    with jax.enable_x64(True):
        *arguments, weights = jax.tree.map(lambda a: a.astype("float64"), inputs())

        def on_device(weights, *arguments):
            x, scale, bias, shortcut = jax.vjp(
                lambda *a: ours(*a, mode=mode, relu=True), *arguments
            )[1](weights)
            scale, bias = parallel.sum_over_devices((scale, bias))
            return x, scale, bias, shortcut

        spread = parallel.map_over(mesh, on_device, (SPLIT, *specs), specs)
        got = jax.jit(spread)(weights, *arguments)
        apart = lambda *a: plain(*a, spans=2, relu=True)  # noqa: E731
        expected = jax.jit(lambda a, w: jax.vjp(apart, *a)[1](w))(tuple(arguments), weights)
        close(got, expected)


def test_what_stays_for_backward_is_narrow():
    """Beside x and, with a shortcut, the result: only vectors."""
    x, scale, bias, shortcut, _ = inputs()
    x, shortcut = x.astype("bfloat16"), shortcut.astype("bfloat16")
    for given, large in ((None, 1), (shortcut, 2)):
        _, pull = jax.vjp(lambda *a: ours(*a, mode=BatchMode(2), relu=True), x, scale, bias, given)
        kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.size >= x.size]
        assert [(leaf.size, leaf.dtype) for leaf in kept] == [(x.size, x.dtype)] * large


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_backward_masks_where_the_result_is_zero(dtype, sums):
    """Exact at the edge, where rounding decides the sign.

    Row r has the gradient 2**r, so that the gradient of the bias, an exact sum, shows the mask of
    each row. The columns contain their exact mean, which becomes the bias: 0, or a number that
    rounding loses against the activation or, in float16, in the result.
    """
    rows, features = 16, 512
    keys = jax.random.split(jax.random.key(0), 4)
    half = jax.random.randint(keys[0], (rows // 2, features), -2, 3) / 4
    mean = jax.random.randint(keys[1], (features,), -20, 20)
    x = (mean + jnp.concatenate([half, -half])).astype(dtype)
    scale = jax.random.normal(keys[2], (features,)) * (jnp.arange(features) % 7 > 0)
    bias = jax.random.choice(keys[3], jnp.array([0.0, 1e-8, -1e-8, 1e-6, 0.1]), (features,))

    @jax.jit
    def results(x, scale, bias):
        mode = BatchMode(1)
        y, pull = jax.vjp(lambda *a: ours(*a, None, mode=mode, relu=True), x, scale, bias)
        weights = 2.0 ** jnp.arange(rows)[:, None]
        return y, pull(jnp.broadcast_to(weights, y.shape).astype(y.dtype))[2]

    y, gradient = jax.device_get(results(x, scale, bias))
    at_mean, positive = np.asarray(x == mean), y > 0
    np.testing.assert_array_equal(gradient, (positive * 2.0 ** np.arange(rows)[:, None]).sum(0))
    assert (at_mean & (bias == 0) & (scale != 0)).any()
    for sign in (positive, ~positive):
        assert (at_mean & sign & (bias > 0) & (bias < 0.1)).any()


def test_only_gpus_sum_complex_numbers():
    x, scale, bias, *_ = inputs()
    for platform, expected in (("cpu", False), ("tpu", False), ("cuda", True)):
        function = jax.jit(lambda *a: ours(*a, None, mode=BatchMode(1), relu=True))
        text = function.trace(x, scale, bias).lower(lowering_platforms=(platform,)).as_text()
        assert ("complex<f32>" in text) is expected
