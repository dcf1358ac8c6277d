"""The layouts of norms against NumPy, against each other, and what they hand to the compiler."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch import optim
from largebatch.models import Model
from tests.optim import plain

# Two large ones of a size, one by itself, one that is no whole number of the widest rows, one of no
# rows at all; small ones of both widths, one that is padded, one element; more of a kind than one
# reduction takes.
SHAPES = (
    [(512, 512), (64, 64, 64), (300, 1024), (4097, 64), (521, 509)]
    + [(2, 1024), (3, 64), (7, 9), ()]
    + [(64,)] * 90
)


def arrays(shapes, seed, dtype=np.float32):
    draw = np.random.default_rng(seed)
    # Of different magnitudes, so that rows of one array cannot pass for those of another.
    return [jnp.asarray(draw.normal(0, 1.03**i, shape), dtype) for i, shape in enumerate(shapes)]


# float32: a sum of 300,000 squares, each added at most some 600 times, in blocks; far fewer
# roundings add up than could. float64 is compared to NumPy's own, which rounds as often.
@pytest.mark.parametrize(
    ("layout", "dtype", "tolerance"),
    [("leaf", np.float32, 1e-6), ("rows", np.float32, 1e-6), ("rows", np.float64, 1e-13)],
)
def test_equal_numpy(layout, dtype, tolerance):
    with jax.enable_x64(dtype == np.float64):
        lists = [arrays(SHAPES, seed, dtype) for seed in (1, 2)]
        found = jax.jit(optim.norms_in(layout))(*lists)
        assert found.dtype == dtype
    np.testing.assert_allclose(found, [plain.norms(xs) for xs in lists], rtol=tolerance)


def test_small_types_are_squared_in_float32():
    xs = [x.astype(jnp.float16) for x in arrays([(600, 600), (7, 64)], 3)]
    xs = [300 * x for x in xs]
    (found,) = optim.norms_in("rows")(xs)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, plain.norms(xs), rtol=1e-6)


def lowered(layout, platform, leaves):
    """The norms of arrays as they are handed to a platform's compiler."""
    traced = jax.jit(optim.norms_in(layout)).trace(leaves, leaves)
    return traced.lower(lowering_platforms=(platform,)).as_text()


def test_resnet50_takes_few_reductions():
    params, _ = jax.eval_shape(Model("resnet50", classes=1000).init, 0)
    text = lowered("rows", "cuda", jax.tree.leaves(params))
    # Seven sizes of large ones; 46 small ones of wide rows and 86 of narrow ones, of which one
    # reduction takes 40; and the sum over rows.
    assert text.count("stablehlo.reduce(") == 7 + 2 + 3 + 1
    # What is padded is copied: the head's bias only.
    assert set(re.findall(r"stablehlo\.pad .*\(tensor<(\w+?)xf32>", text)) == {"1000"}


def test_auto_is_rows_on_gpus():
    leaves = [jax.ShapeDtypeStruct((64,), "float32")] * 8

    def reductions(layout, platform):
        return lowered(layout, platform, leaves).count("stablehlo.reduce(")

    assert reductions("auto", "cuda") == reductions("rows", "cuda") < 16
    assert reductions("auto", "cpu") == reductions("auto", "tpu") == reductions("leaf", "tpu") == 16
