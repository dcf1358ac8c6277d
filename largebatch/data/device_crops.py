"""Crop, resize and mirror on the device, by two small matrix products per image."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from largebatch.data.images import Resampling  # imports libraries that are not needed here

_EXACT = jax.lax.Precision.HIGHEST
Arithmetic = Literal["float32", "bfloat16"]


def crop_and_resize(
    images: jax.Array,
    boxes: jax.Array,
    flips: jax.Array,
    shape: tuple[int, int],
    *,
    resampling: "Resampling",
    dtype: jax.typing.DTypeLike = jnp.float32,
    arithmetic: Arithmetic | None = None,
) -> jax.Array:
    """Crop a box of each image and resize it, like `images.resize`.

    Each pixel of the result is a mean of pixels of the box, weighted along y and along x, so an
    image is W_y · image · W_xᵀ per channel. It is rounded to whole grey levels, half up, as the
    libraries of the host round, and differs from theirs by one at most: before rounding OpenCV is
    off by up to 0.62 (11-bit weights, products cut to quarters of a level), Pillow by up to 0.5 (it
    rounds between its two passes as well). What is left of the 1 needs nearly the precision of
    float32: products of numbers rounded to bfloat16 would add 1.5, TF32 0.75 where it truncates.
    CPUs multiply in float32. GPUs do that at a tenth of the rate of their tensor cores, so
    accelerators multiply sums of two bfloat16 numbers (`_in_bfloat16`), which adds 0.004.

    An image of S = 256 costs 165 MFLOP at w = h = 224, 2·3·S·w·(S + h), two or three times as many
    in bfloat16, and about 6 MB of memory traffic: 1.5 % of training ResNet-50 on it. For squares
    the order of the products changes nothing of that. x goes first because with rows of one
    channel, (y, channel, x), both are then plain matrix products, between which nothing has to be
    transposed.

    Args:
        images: uint8 (b, S, S, 3).
        boxes: int32 (b, 4): top, left, height, width, within the image; an empty box, as in rows of
            padding, gives zeros.
        flips: bool (b,), whether the result is mirrored left to right.
        shape: Height h and width w of the result.
        resampling: `linear` has half-pixel centres, two neighbours along each axis however much
            it shrinks; `antialias` weights by a triangle as wide as the shrinking factor. Neither
            sees pixels outside the box.
        dtype: Type of the result; bfloat16 holds all grey levels exactly.
        arithmetic: Type of the products; None is float32 on CPUs, otherwise bfloat16.

    Returns:
        `dtype` (b, h, w, 3), whole numbers in 0..255, not normalised.

    Raises:
        ValueError: `resampling` is neither.
    """
    if resampling not in ("linear", "antialias"):
        raise ValueError(f"resampling: expected 'linear' or 'antialias', got {resampling!r}")

    by_platform = functools.partial(
        jax.lax.platform_dependent, cpu=_in_float32, default=_in_bfloat16
    )
    named: dict[str | None, Callable[..., jax.Array]]
    named = {"float32": _in_float32, "bfloat16": _in_bfloat16, None: by_platform}
    resized = named[arithmetic]

    def one(image: jax.Array, box: jax.Array, flip: jax.Array) -> jax.Array:
        top, left, height, width = box.astype(jnp.float32)
        along_y = _weights(top, height, image.shape[0], shape[0], resampling)
        along_x = _weights(left, width, image.shape[1], shape[1], resampling, mirrored=flip)
        pixels = resized(image.swapaxes(1, 2), along_y, along_x).swapaxes(1, 2)
        return jnp.floor(pixels + 0.5).astype(dtype)

    return jax.vmap(one)(images, boxes, flips)


def _in_float32(rows: jax.Array, along_y: jax.Array, along_x: jax.Array) -> jax.Array:
    """Resize an image uint8 (y, channel, x) by weights; float32 (height, channel, width)."""
    rows = jnp.einsum("ycx,jx->ycj", rows.astype(jnp.float32), along_x, precision=_EXACT)
    return jnp.einsum("iy,ycj->icj", along_y, rows, precision=_EXACT)


def _in_bfloat16(rows: jax.Array, along_y: jax.Array, along_x: jax.Array) -> jax.Array:
    """Return what `_in_float32` returns, by products of bfloat16 that are summed in float32.

    bfloat16 holds grey levels exactly, and numbers of float32 as sums of two with a relative error
    of at most 2⁻¹⁸ (round to nearest twice, 8 bits each and a sign). The first product so errs by
    255 · 2⁻¹⁸, the second, which has two such factors and leaves out the product of their small
    parts, by 3 · 255 · 2⁻¹⁸: 0.004 in all (the algorithm BF16_BF16_F32_X3 of StableHLO).
    """
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    levels = rows.astype(jnp.bfloat16)
    x_large, x_small = _in_two_parts(along_x)
    one_axis = product("ycx,jx->ycj", levels, x_small) + product("ycx,jx->ycj", levels, x_large)
    (y_large, y_small), (large, small) = map(_in_two_parts, (along_y, one_axis))
    corrections = product("iy,ycj->icj", y_large, small) + product("iy,ycj->icj", y_small, large)
    return corrections + product("iy,ycj->icj", y_large, large)


def _in_two_parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two bfloat16 arrays whose sum is a float32 array, but for 2⁻¹⁸ of its values."""
    # The compiler may leave out a conversion to bfloat16 and back, but not this rounding.
    large = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return large.astype(jnp.bfloat16), (x - large).astype(jnp.bfloat16)


def _weights(
    first: jax.Array,
    length: jax.Array,
    extent: int,
    size: int,
    resampling: "Resampling",
    mirrored: jax.Array | bool = False,
) -> jax.Array:
    """Return the weight of each stored pixel in each pixel of the result, along one axis.

    Args:
        first: float32 (), first pixel of the box.
        length: float32 (), its pixels.
        extent: Stored pixels.
        size: Pixels of the result.
        resampling: As for `crop_and_resize`.
        mirrored: Whether the result is in reverse order.

    Returns:
        float32 (size, extent); rows sum to 1, or are 0 for an empty box.
    """
    steps = jnp.arange(size, dtype=jnp.float32)
    steps = jnp.where(mirrored, size - 1 - steps, steps)
    pixels = jnp.arange(extent, dtype=jnp.float32) - first  # the box's own are 0 to length − 1
    # In the box's pixels; multiplied before divided, so that it is rounded once.
    centres = (steps + 0.5) * length / size
    reach = jnp.maximum(1.0, length / size) if resampling == "antialias" else 1.0
    weights = jnp.maximum(0.0, 1.0 - jnp.abs(pixels + 0.5 - centres[:, None]) / reach)
    weights = jnp.where((pixels >= 0) & (pixels < length), weights, 0.0)
    # What is outside the box is left out and the rest weighs more, which for `linear` is the same
    # as repeating the outermost pixel. The nearest pixel is within 1/2 and so weighs 1/2 or more.
    return weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 0.5)
