"""The L2 norms of many arrays at once, in one of several layouts.

An accelerator reads a MiB in well under a microsecond and takes longer to start a kernel, and
ResNet-50 has 161 parameters, most of them tiny. So what matters there is how few kernels read each
array once, without copying it:

    leaf   a reduction for each array
    rows   sums of rows first, then for each array the sum of its rows. Large arrays of one size
           are operands, side by side, of one reduction; small ones follow one another as rows of
           one long array

XLA's GPU compiler reads the parts of a concatenation from where they lie, but one element at a
time, each after a search for its part: that is for small arrays. Operands side by side it reads in
wide words. No layout adds atomically: results are the same in every run.
"""

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from largebatch.errors import ConfigError, did_you_mean

Layout = Literal["auto", "leaf", "rows"]
Arrays: TypeAlias = Sequence[jax.Array]
Norms: TypeAlias = Callable[..., jax.Array]
"""(*lists of arrays, inputs=1) → norms (lists, arrays), in at least float32.

The lists hold arrays of the same shapes. `inputs` says from how many stored arrays each of them is
computed on the way."""
Total: TypeAlias = Callable[[jax.Array], jax.Array]

_LARGE = 2**18  # elements
_WIDTHS = (4096, 1024, 64)  # of rows; the first one is for large arrays only
_OPERANDS = 80  # a fusion takes at most 96 operands and results: MaxOperandsAndOutputsPerFusion


def norms_in(layout: Layout, total: Total | None = None) -> Norms:
    """The norms in a layout.

    Args:
        layout: `auto` is `rows` on GPUs and `leaf` elsewhere; what counts is the platform that is
            compiled for, whatever the process runs on.
        total: From the sums of squares of the parts that a device holds to those of whole arrays;
            None where it holds them whole.

    Raises:
        ConfigError: An unknown layout.
    """
    if layout not in _LAYOUTS:
        raise ConfigError(
            f"optimizer.layout={layout!r} is unknown; {did_you_mean(layout, _LAYOUTS)}"
        )
    sums = _LAYOUTS[layout]

    def norms(*lists: Arrays, inputs: int = 1) -> jax.Array:
        found = sums(*lists, inputs=inputs)
        return jnp.sqrt(found if total is None else total(found))

    return norms


def at_least_float32(x: jax.Array) -> jax.Array:
    """`x`, or its float32 copy if it has fewer bits: a square overflows float16 from 256 on."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _leaf(*lists: Arrays, inputs: int = 1) -> jax.Array:
    del inputs
    return jnp.stack([jnp.stack([jnp.sum(_squares(x)) for x in xs]) for xs in lists])


def _rows(*lists: Arrays, inputs: int = 1) -> jax.Array:
    order, sums, lengths = [], [], []
    most = _OPERANDS // (inputs * len(lists))
    for (size, width), piece in _pieces(lists[0], _size_and_width, most):
        rows = [[_in_rows(xs[i], width) for i in piece] for xs in lists]
        sums.append(_side_by_side(rows) if size else _end_to_end(rows))
        lengths += [len(x) for x in rows[0]]
        order += piece
    totals = _sums_of_parts(jnp.concatenate(sums, axis=1), lengths)
    return totals[:, np.argsort(order)]


def _auto(*lists: Arrays, inputs: int = 1) -> jax.Array:
    rows = functools.partial(_rows, inputs=inputs)
    return jax.lax.platform_dependent(*map(list, lists), cuda=rows, rocm=rows, default=_leaf)


# Each gives sums of squares.
_LAYOUTS: dict[str, Callable[..., jax.Array]] = {"auto": _auto, "leaf": _leaf, "rows": _rows}


def _squares(x: jax.Array) -> jax.Array:
    return jnp.square(at_least_float32(x))


def _pieces(
    arrays: Arrays, key: Callable[[jax.Array], Hashable], most: int
) -> Iterator[tuple[Hashable, list[int]]]:
    """The places of arrays that have a key in common, no more than `most` at a time."""
    keys = [key(x) for x in arrays]
    for one in dict.fromkeys(keys):
        places = [i for i, other in enumerate(keys) if other == one]
        for start in range(0, len(places), most):
            yield one, places[start : start + most]


def _size_and_width(x: jax.Array) -> tuple[int, int]:
    """The number of elements, 0 for small arrays whatever they have; the width of the rows."""
    large = x.size >= _LARGE
    widths = _WIDTHS if large else _WIDTHS[1:]
    whole = (width for width in widths if x.size % width == 0)
    return x.size if large else 0, next(whole, widths[-1])


def _in_rows(x: jax.Array, width: int) -> jax.Array:
    """(rows, width), with zeros where the last row is not full."""
    flat, missing = x.ravel(), -x.size % width
    # Not padded by 0, which would still be a copy.
    return (jnp.pad(flat, (0, missing)) if missing else flat).reshape(-1, width)


def _side_by_side(lists: Sequence[Arrays]) -> jax.Array:
    """(lists, rows of all arrays of a list): sums of squares, in one reduction of all operands."""
    squares = tuple(_squares(x) for xs in lists for x in xs)
    zeros = tuple(jnp.zeros((), x.dtype) for x in squares)

    def add(*sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(a + b for a, b in zip(*sums, strict=True))

    return jnp.concatenate(jax.lax.reduce(squares, zeros, add, (1,))).reshape(len(lists), -1)


def _end_to_end(lists: Sequence[Arrays]) -> jax.Array:
    """The same, in one reduction of one array."""
    everything = jnp.concatenate([x for xs in lists for x in xs])
    return jnp.sum(_squares(everything), axis=1).reshape(len(lists), -1)


def _sums_of_parts(values: jax.Array, lengths: Sequence[int]) -> jax.Array:
    """Sums of consecutive parts of the last dimension, as one masked reduction."""
    ends = np.cumsum(lengths, dtype=np.int32)[:, None]
    starts = ends - np.asarray(lengths, np.int32)[:, None]
    position = jax.lax.broadcasted_iota(jnp.int32, (len(lengths), values.shape[-1]), 1)
    inside = (starts <= position) & (position < ends)
    return jnp.sum(jnp.where(inside, values[..., None, :], 0), axis=-1)
