"""L2 norms of many arrays, in one of several layouts, and the report of an update.

An accelerator reads 1 MiB in less than a microsecond, which is less than the start of a kernel.
ResNet-50 has 161 parameters, most of them small. Therefore the number of kernels matters:

    leaf   one reduction for each array
    rows   first sums of rows, then the sum of the rows of each array. Large arrays of equal size
           are the operands of one reduction; small arrays are concatenated as rows of one array

XLA's GPU compiler reads the parts of a concatenation in place, but one element at a time and after
a search for the part. This suits only small arrays. It reads several operands of a reduction in
wide words. No layout uses atomic additions, so that results are deterministic.
"""

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
Layout = Literal["auto", "leaf", "rows"]
Arrays: TypeAlias = Sequence[jax.Array]
Norms: TypeAlias = Callable[..., jax.Array]
"""Function (*lists of arrays, inputs=1) → norms of shape (lists, arrays), in at least float32.

All lists have arrays of the same shapes. `inputs` is the number of stored arrays that each array is
computed from in the same kernel."""
Total: TypeAlias = Callable[[jax.Array], jax.Array]

_LARGE = 2**18  # elements
_WIDTHS = (4096, 1024, 64)  # of rows; the first one only for large arrays
_OPERANDS = 80  # a fusion takes at most 96 operands and results: MaxOperandsAndOutputsPerFusion


def norms_in(layout: Layout = "auto", total: Total | None = None) -> Norms:
    """Return the function that computes norms in a layout.

    Args:
        layout: `auto` is `rows` on GPUs and `leaf` elsewhere. The platform of the compiled program
            decides, not that of the process. With `leaf`, a step of ResNet-50 of 128 images on an
            H100 is 4.4 % slower (docs/performance.md).
        total: Maps the sums of squares of a device's parts of arrays to those of whole arrays; None
            if each device holds whole arrays.
    """
    sums = _LAYOUTS[layout]

    def norms(*lists: Arrays, inputs: int = 1) -> jax.Array:
        found = sums(*lists, inputs=inputs)
        return jnp.sqrt(found if total is None else total(found))

    return norms


def at_least_float32(x: jax.Array) -> jax.Array:
    """Return `x` in at least float32; squares of 256 and more overflow float16."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


class LayerReport(NamedTuple):
    """Norms and trust ratios of an update; vectors (parameters,) in `jax.tree.leaves` order.

    The dtype is float32, or float64 if a parameter is float64. Before the first update, ratios are
    1 and norms are 0.
    """

    trust_ratio: jax.Array
    """The applied ratio: 1 for parameters without a trust ratio; 0 or 1 at a norm of 0, depending
    on the rule."""
    weight_norm: jax.Array
    """‖w‖ before the update."""
    gradient_norm: jax.Array
    """‖g‖, without weight decay."""


def empty_report(params: PyTree) -> LayerReport:
    """Return the report before the first update."""
    leaves = jax.tree.leaves(params)
    # The dtype follows the parameters, so that updates do not change the dtypes of a state.
    dtype = jnp.result_type(jnp.float32, *leaves)
    ratios, *norms = (jnp.full(len(leaves), value, dtype) for value in (1, 0, 0))
    return LayerReport(ratios, *norms)


def measure(grads: PyTree, params: PyTree, norms: Norms) -> LayerReport:
    """Return the report of an update, with trust ratios of 1.

    Args:
        grads: Gradients, before weight decay.
        params: Weights before the update.
        norms: A function from `norms_in`.
    """
    empty = empty_report(params)
    found = norms(jax.tree.leaves(params), jax.tree.leaves(grads))
    return LayerReport(empty.trust_ratio, *found.astype(empty.weight_norm.dtype))


def global_norm(report: LayerReport) -> jax.Array:
    """Return the L2 norm of the whole gradient, a scalar."""
    return jnp.sqrt(jnp.sum(jnp.square(report.gradient_norm)))


def by_path(report: LayerReport, paths: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return {path of a parameter: {field of the report: value}}, on the host.

    Args:
        report: Report of an update.
        paths: Paths of its parameters, in the order of the report (`path_names`).
    """
    rows = zip(*(column.tolist() for column in jax.device_get(report)), strict=True)
    return {
        path: dict(zip(report._fields, row, strict=True))
        for path, row in zip(paths, rows, strict=True)
    }


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


# Functions that return sums of squares.
_LAYOUTS: dict[str, Callable[..., jax.Array]] = {"auto": _auto, "leaf": _leaf, "rows": _rows}
DEFAULT: Norms = norms_in()
"""Norms of whole arrays in the layout of the platform."""


def _squares(x: jax.Array) -> jax.Array:
    return jnp.square(at_least_float32(x))


def _pieces(
    arrays: Arrays, key: Callable[[jax.Array], Hashable], most: int
) -> Iterator[tuple[Hashable, list[int]]]:
    """Yield (key, indices of the arrays with this key), at most `most` indices at a time."""
    keys = [key(x) for x in arrays]
    for one in dict.fromkeys(keys):
        places = [i for i, other in enumerate(keys) if other == one]
        for start in range(0, len(places), most):
            yield one, places[start : start + most]


def _size_and_width(x: jax.Array) -> tuple[int, int]:
    """Return the number of elements, or 0 for small arrays, and the width of the rows."""
    large = x.size >= _LARGE
    widths = _WIDTHS if large else _WIDTHS[1:]
    whole = (width for width in widths if x.size % width == 0)
    return x.size if large else 0, next(whole, widths[-1])


def _in_rows(x: jax.Array, width: int) -> jax.Array:
    """Reshape to (rows, width), with zeros at the end of the last row."""
    flat, missing = x.ravel(), -x.size % width
    # Padding by 0 would still copy.
    return (jnp.pad(flat, (0, missing)) if missing else flat).reshape(-1, width)


def _side_by_side(lists: Sequence[Arrays]) -> jax.Array:
    """Return sums of squares (lists, rows of all arrays), in one reduction of all operands."""
    squares = tuple(_squares(x) for xs in lists for x in xs)
    zeros = tuple(jnp.zeros((), x.dtype) for x in squares)

    def add(*sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(a + b for a, b in zip(*sums, strict=True))

    return jnp.concatenate(jax.lax.reduce(squares, zeros, add, (1,))).reshape(len(lists), -1)


def _end_to_end(lists: Sequence[Arrays]) -> jax.Array:
    """Return sums of squares (lists, rows of all arrays), in one reduction of one array."""
    everything = jnp.concatenate([x for xs in lists for x in xs])
    return jnp.sum(_squares(everything), axis=1).reshape(len(lists), -1)


def _sums_of_parts(values: jax.Array, lengths: Sequence[int]) -> jax.Array:
    """Return sums of consecutive parts of the last dimension, in one masked reduction."""
    ends = np.cumsum(lengths, dtype=np.int32)[:, None]
    starts = ends - np.asarray(lengths, np.int32)[:, None]
    position = jax.lax.broadcasted_iota(jnp.int32, (len(lengths), values.shape[-1]), 1)
    inside = (starts <= position) & (position < ends)
    return jnp.sum(jnp.where(inside, values[..., None, :], 0), axis=-1)
