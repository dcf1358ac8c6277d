"""The device mesh: two axes, ``group`` and ``member``.

The devices of one BatchNorm span are the members of a group: statistics are reduced over
``member``, gradients over both. Devices are in the order of their processes, so each process has a
contiguous part of every array that is split over the mesh.

Arrays in equal parts, one for each device, are for weight-update sharding (Xu et al. 2020, arXiv
2004.13336): a device updates its part of every parameter and keeps the velocity of that part only.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXES = ("group", "member")
REPLICATED = P()
SPLIT = P(AXES)


def make_mesh(devices: Sequence[jax.Device], members: int) -> Mesh:
    """Return a mesh of all ``devices`` in which ``members`` consecutive ones share a span."""
    # Ids of a TPU slice follow its topology and may alternate between hosts.
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    grid = np.asarray(ordered, dtype=object).reshape(-1, members)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding with the whole array on every device."""
    return NamedSharding(mesh, REPLICATED)


def split(mesh: Mesh) -> NamedSharding:
    """Return the sharding of the first dimension over all devices in their order."""
    return NamedSharding(mesh, SPLIT)


def placed(mesh: Mesh, specs: Any) -> Any:
    """Return the shardings of a tree of ``REPLICATED`` and ``SPLIT``."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def local_rows(mesh: Mesh, rows: int) -> tuple[int, int]:
    """Return this process's part [start, stop) of ``rows`` leading rows, split over the mesh.

    Raises:
      ValueError: the devices of this process are not neighbours in the mesh.
    """
    share = rows // mesh.size
    mine = [i for i, d in enumerate(mesh.devices.flat) if d.process_index == jax.process_index()]
    if mine != list(range(mine[0], mine[-1] + 1)):
        raise ValueError("the devices of a process are not neighbours in the mesh")
    return mine[0] * share, (mine[-1] + 1) * share


def from_local(mesh: Mesh, local: np.ndarray) -> jax.Array:
    """Return the global array, split over the mesh, from the rows ``local`` of this process."""
    return jax.make_array_from_process_local_data(split(mesh), local)


def part_size(size: int, devices: int) -> int:
    """Return the elements of a part of an array of ``size`` elements."""
    return -(-size // devices)


def cut_parts(array: jax.Array, devices: int) -> jax.Array:
    """Return (devices, part): consecutive elements, padded with zeros."""
    flat, part = array.ravel(), part_size(array.size, devices)
    missing = devices * part - array.size
    return (jnp.pad(flat, (0, missing)) if missing else flat).reshape(devices, part)


def join_parts(parts: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the array of ``shape`` from the parts of ``cut_parts``."""
    return jax.lax.slice(parts.ravel(), (0,), (math.prod(shape),)).reshape(shape)
