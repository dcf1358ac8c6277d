"""Erasing and mixing of images on the device, by the arrays of `largebatch.data.mixing`."""

import jax
import jax.numpy as jnp


def erase(images: jax.Array, boxes: jax.Array) -> jax.Array:
    """Set a box of each image to 0, which is the mean colour of normalized images.

    Args:
        images: (b, h, w, c).
        boxes: int32 (b, 4): top, left, bottom, right; an empty box erases nothing.

    Returns:
        Of shape and dtype of `images`.
    """
    return jnp.where(_inside(boxes, images.shape), 0, images)


def mix(images: jax.Array, mixtures: jax.Array) -> jax.Array:
    """Mix images 2i and 2i + 1 with each other.

    Args:
        images: (b, h, w, c), b even, finite.
        mixtures: float32 (b, 6) of `mixing.mixtures`.

    Returns:
        Of shape and dtype of `images`; bitwise the image where its share is 1.
    """
    partners = _swapped(images)
    share = mixtures[:, 1].astype(images.dtype)[:, None, None, None]
    blended = share * images + (1 - share) * partners
    return jnp.where(_inside(mixtures[:, 2:], images.shape), partners, blended)


def second_labels(labels: jax.Array, mixtures: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the partner's label of each mixed image, and the share of its own.

    Args:
        labels: int32 (b,), b even.
        mixtures: As for `mix`.

    Returns:
        int32 (b,) and float32 (b,).
    """
    return _swapped(labels), mixtures[:, 0]


def _swapped(rows: jax.Array) -> jax.Array:
    """Exchange rows 2i and 2i + 1."""
    pairs = rows.reshape(rows.shape[0] // 2, 2, *rows.shape[1:])
    return pairs[:, ::-1].reshape(rows.shape)


def _inside(boxes: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return which pixels are inside the box of their image: bool (b, h, w, 1)."""
    top, left, bottom, right = (boxes[:, i, None, None, None] for i in range(4))
    y = jnp.arange(shape[1])[None, :, None, None]
    x = jnp.arange(shape[2])[None, None, :, None]
    return (y >= top) & (y < bottom) & (x >= left) & (x < right)
