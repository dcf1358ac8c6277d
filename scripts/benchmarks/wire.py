"""What a number format on the wire does to the gradients of a real backward pass."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks import reductions
from benchmarks.backward import examples, loss_of
from largebatch import optim, parallel
from largebatch.config import Plan
from largebatch.parallel import REPLICATED, SPLIT, Bucket
from largebatch.parallel.backward_times import shapes_of
from largebatch.training.microbatch import model_of
from largebatch.trees import flatten_paths


def device_gradients(plan: Plan, mesh: Mesh) -> reductions.Gradients:
    """Every device's own gradient of its share of the mean loss, at the initial parameters."""
    model = model_of(plan)
    loss = loss_of(plan, model)
    images, labels = (
        parallel.from_local(mesh, array[slice(*parallel.local_rows(mesh, len(array)))])
        for array in examples(plan)
    )
    params, stats = jax.jit(model.init, out_shardings=parallel.replicated(mesh))(0)

    def gradients(*arguments: object) -> Mapping[str, jax.Array]:
        flat = flatten_paths(jax.grad(loss)(*arguments))
        return {path: flat[path][None] for path, _ in shapes_of(model)}

    mapped = parallel.map_over(mesh, gradients, (REPLICATED, REPLICATED, SPLIT, SPLIT), SPLIT)
    return jax.jit(mapped)(params, stats, images, labels)


def errors(
    gradients: reductions.Gradients,
    mesh: Mesh,
    buckets: Sequence[Bucket],
    wires: Sequence[str],
) -> dict[str, dict[str, float]]:
    """‖a − b‖/‖b‖ by number format and kind of parameter, `all` for all of them together.

    a is what our all-reduce gives, b the float64 sum of what the devices put in.
    """
    exact = {path: _exact_sum(array) for path, array in gradients.items()}
    kinds = optim.kinds(exact)
    found = {}
    for wire in wires:
        reduced = reductions.ours(mesh, buckets, wire)(gradients)
        squares: dict[str, np.ndarray] = {}
        for path, b in exact.items():
            a = np.asarray(reduced[path].addressable_data(0), np.float64)
            both = np.array([np.sum((a - b) ** 2), np.sum(b**2)])
            for kind in (kinds[path], "all"):
                squares[kind] = squares.get(kind, 0) + both
        found[wire] = {kind: float(np.sqrt(d / s)) for kind, (d, s) in squares.items()}
    return found


def _exact_sum(array: jax.Array) -> np.ndarray:
    """Over all devices of all processes, in float64."""
    if not array.is_fully_addressable:
        from jax.experimental import multihost_utils

        whole = multihost_utils.process_allgather(array, tiled=True)
    else:
        whole = np.asarray(array)
    return np.asarray(whole, np.float64).sum(0)
