"""How a stage is computed does not change what it computes: products, and what backward keeps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from largebatch.models import BatchMode, BatchNorm, BatchStatistics, Conv
from largebatch.models.resnet import Stage


def stage(*, form, remat):
    """Two bottleneck blocks, the first with stride 2 and a projection."""
    rngs = nnx.Rngs(jax.random.key(0))
    return Stage(
        3,
        4,
        2,
        2,
        "bottleneck",
        remat=remat,
        conv=partial(Conv, use_bias=False, precision="highest", form=form, rngs=rngs),
        norm=partial(BatchNorm, rngs=rngs),
        last_norm=partial(BatchNorm, rngs=rngs),
    )


def results(x, **options):
    """Output, batch statistics, gradients and kept bytes, in float64."""
    made = stage(**options)
    for _, layer in nnx.iter_modules(made):
        if isinstance(layer, BatchNorm):
            layer.batch_mode = BatchMode(spans=2)
    graph, params, stats = nnx.split(made, nnx.Param, nnx.BatchStat)
    params, stats = map(nnx.to_pure_dict, (params, stats))
    params, stats = jax.tree.map(lambda a: a.astype("float64"), (params, stats))

    def loss(params, x):
        module = nnx.merge(graph, nnx.State(params), nnx.State(stats))
        y = module(x)
        return jnp.sin(y).sum(), (y, nnx.to_pure_dict(nnx.state(module, BatchStatistics)))

    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    _, pull = jax.eval_shape(lambda p: jax.vjp(lambda p: loss(p, x)[0], p), params)
    kept = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(pull))
    (_, (y, batch)), gradients = compiled(params, x)
    return jax.device_get((y, batch, gradients)), kept


@pytest.fixture(scope="module")
def expected():
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(1), (4, 8, 8, 3)).astype("float64")
        return x, *results(x, form="plain", remat="none")


@pytest.mark.parametrize("remat", ["none", "norms", "blocks"])
def test_form_and_memory_do_not_change_the_function(expected, remat):
    x, values, kept = expected
    with jax.enable_x64(True):
        got, less = results(x, form="products", remat=remat)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(values), strict=True):
        # Sums of some hundred float64 numbers in another order.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * float(abs(b).max()))
    assert less <= {"none": 1.1, "norms": 0.95, "blocks": 0.5}[remat] * kept


@pytest.mark.parametrize(
    ("shape", "size", "stride"),
    [((2, 2), 3, 1), ((4, 2), 3, 2), ((5, 9), 5, 2)],
)
def test_kernels_larger_than_the_output_are_products(shape, size, stride):
    def layer(form):
        options = {"padding": size // 2, "use_bias": False, "precision": "highest"}
        rngs = nnx.Rngs(jax.random.key(0))
        made = Conv(3, 4, (size, size), stride, form=form, rngs=rngs, **options)
        return nnx.split(made, nnx.Param)

    def values(form):
        graph, params = layer(form)

        def loss(kernel, x):
            y = nnx.merge(graph, nnx.State({"kernel": kernel}))(x)
            return jnp.sin(y).sum(), y

        computed = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        kernel = params["kernel"][...].astype("float64")
        return jax.device_get(jax.jit(computed)(kernel, x)), str(
            jax.make_jaxpr(computed)(kernel, x)
        )

    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(1), (2, *shape, 3)).astype("float64")
        got, text = values("products")
        expected, _ = values("plain")
    assert "conv_general_dilated" not in text
    # Sums of at most 200 float64 products in another order.
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * float(abs(b).max() + 1))
