"""A checkpoint as one file, ``STEP.safetensors``, that any framework can open.

The file holds the arrays of the state by '/'-joined path. Its metadata has one entry, ``manifest``:
JSON with the progress of the run, its options, the facts of its data, a digest of each array, and a
digest of itself. Decoding checks every byte of the file and runs no code of it.

Format: https://huggingface.co/docs/safetensors/index#format.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from largebatch.checkpoint import manifest
from largebatch.checkpoint.manifest import Array, Manifest, OtherVersion, Rejected

PyTree = Any
SUFFIX = ".safetensors"
HEADER_BYTES = 8
"""The file begins with the length of its header, a little-endian uint64."""
LARGEST_HEADER = 64 * 2**20
"""Bytes; that of ResNet-50 has 150,000."""
_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""The names of the format."""


def by_path(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by '/'-joined path, in the order of ``jax.tree.leaves``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


def on_host(tree: PyTree) -> dict[str, np.ndarray]:
    """Copy replicated arrays to the host, by path; the originals may be donated afterwards."""
    leaves = by_path(tree)
    for leaf in leaves.values():
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    # On CPUs, a JAX array as a NumPy array is a view of the same buffer; np.array copies it.
    return {path: np.array(leaf, order="C") for path, leaf in leaves.items()}


def on_devices(state: PyTree, like: PyTree) -> PyTree:
    """Put NumPy arrays on the devices of all processes with the shardings of ``like``."""
    return jax.tree.map(
        lambda x, s: jax.make_array_from_callback(s.shape, s.sharding, lambda index: x[index]),
        state,
        like,
    )


def bytes_needed(tree: PyTree) -> int:
    """Return an upper estimate of the size of a checkpoint of such arrays, in bytes."""
    leaves = jax.tree.leaves(tree)
    return sum(x.size * x.dtype.itemsize for x in leaves) + 1024 * len(leaves) + 2**16


def encode(about: Manifest, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the content of a checkpoint's file.

    Args:
      about: the manifest, without ``arrays``.
      arrays: by path, in C order.
    """
    described = {
        path: Array(value.shape, value.dtype.name, _digest(value)) for path, value in arrays.items()
    }
    text = manifest.encode(about, described)
    return safetensors.numpy.save(dict(arrays), metadata={manifest.NAME: text})


def header_length(begin: bytes) -> int:
    """Return the bytes of the header from the first `HEADER_BYTES` of a file.

    Raises:
      Rejected: they are no beginning of such a file.
    """
    length = int.from_bytes(begin[:HEADER_BYTES], "little")
    if len(begin) < HEADER_BYTES or not 2 <= length <= LARGEST_HEADER or length % 8:
        raise Rejected("it does not begin like a safetensors file")
    return length


def decode_header(header: bytes) -> tuple[Manifest, dict[str, tuple[int, int]]]:
    """Decode the untrusted header of a file.

    Returns:
      The manifest; the first byte and the end of each array, counted from the end of the header.

    Raises:
      Rejected: it is not the header of a checkpoint of this program.
      OtherVersion: a different version of this program wrote it.
    """
    try:
        fields = json.loads(header.decode())
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        # A header that was changed or that has a key twice is not that of its own content.
        valid = isinstance(fields, dict) and header == text + b" " * (-len(text) % 8)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"its header is not JSON ({manifest.shown(str(error))})") from error
    if not valid:
        raise Rejected("its header is damaged")
    metadata = fields.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.keys() != {manifest.NAME}:
        raise Rejected("it has no manifest of this program")
    about = manifest.decode(metadata[manifest.NAME])
    if unlike := sorted(fields.keys() ^ about.arrays.keys()):
        raise Rejected(f"array {manifest.shown(unlike[0])} is not in the manifest and the header")
    spans, end = {}, 0
    for path, entry in sorted(fields.items(), key=lambda each: _begin(each[1])):
        known = about.arrays[path]
        dtype = _DTYPES.get(entry.get("dtype"))
        if dtype is None or dtype.name != known.dtype or entry.get("shape") != list(known.shape):
            raise Rejected(f"array {path} does not have the shape and type of the manifest")
        begin, end = end, end + math.prod(known.shape) * dtype.itemsize
        if entry != {
            "dtype": entry["dtype"],
            "shape": entry["shape"],
            "data_offsets": [begin, end],
        }:
            raise Rejected(f"array {path} is not where it should be")
        spans[path] = begin, end
    return about, spans


def decode(content: bytes, like: PyTree) -> tuple[Manifest, PyTree]:
    """Decode an untrusted file and verify every byte of it.

    Args:
      content: of the file.
      like: shapes and dtypes of the state.

    Returns:
      The manifest, and NumPy arrays in a tree like ``like``.

    Raises:
      Rejected: the file is damaged, incomplete, or not of this program.
      OtherVersion: names, shapes or dtypes differ from ``like``.
    """
    start = HEADER_BYTES + header_length(content)
    about, spans = decode_header(content[HEADER_BYTES:start])
    end = start + max((end for _, end in spans.values()), default=0)
    if len(content) != end:
        raise Rejected(f"it has {len(content):,} bytes, expected {end:,}")
    wanted = by_path(like)
    for path in sorted(about.arrays.keys() | wanted.keys()):
        then, now = (
            f"{tree[path].shape} {tree[path].dtype}" if path in tree else "not there"
            for tree in (about.arrays, wanted)
        )
        if then != now:
            raise OtherVersion(f"array {path} is {then}, expected {now}")
    found = {}
    for path, (begin, _) in spans.items():
        known = about.arrays[path]
        dtype, count = np.dtype(wanted[path].dtype), math.prod(known.shape)
        array = np.frombuffer(content, dtype, count, start + begin).reshape(known.shape)
        if _digest(array) != known.digest:
            raise Rejected(f"array {path} does not have the digest of the manifest")
        found[path] = array
    leaves = [found[path] for path in wanted]
    return about, jax.tree.unflatten(jax.tree.structure(like), leaves)


def _begin(entry: Any) -> tuple[int, int]:
    """Return the place of an entry of the header; checked by the caller."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not (
        isinstance(offsets, list) and len(offsets) == 2 and all(type(x) is int for x in offsets)
    ):
        raise Rejected(f"its header has an array at {manifest.shown(offsets)}")
    return offsets[0], offsets[1]


def _digest(value: np.ndarray) -> str:
    """Return the 16-byte BLAKE2b digest of the elements in C order, in hexadecimal."""
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return hashlib.blake2b(data, digest_size=16).hexdigest()
