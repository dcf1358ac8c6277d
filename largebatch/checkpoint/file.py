"""A checkpoint as one file, ``STEP.safetensors``, that any framework can open.

The file holds the arrays of the state by '/'-joined path. Its metadata has the ``manifest``, JSON
with the progress of the run, its options, the facts of its data and a digest of each array, and the
``digest`` of that text. A file is untrusted: decoding checks every byte and executes nothing.

Format: https://huggingface.co/docs/safetensors/index#format.
"""

import dataclasses
import hashlib
import json
import math
import typing
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from largebatch.config import Facts
from largebatch.config.plan import Plan
from largebatch.errors import shown
from largebatch.files import plain

PyTree = Any
FORMAT = 6
"""Format of the manifest; increment it with each change of its fields, also in
docs/life_of_a_run.md."""
SUFFIX = ".safetensors"
HEADER_BYTES = 8
"""The file begins with the length of its header, a little-endian uint64."""
_LARGEST_HEADER = 64 * 2**20
"""Bytes; that of ResNet-50 has 100,000."""
_METADATA = "__metadata__"
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
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading the fields of unknown JSON may raise."""


class Rejected(Exception):
    """A corrupt or incomplete checkpoint; the message is the reason in one line."""


class OtherVersion(Exception):
    """A valid checkpoint from a different version of this program; the message has the reason."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress and timers of a run."""

    step: int = 0
    """Number of completed steps."""
    samples: int = 0
    """Number of consumed training samples: the sample position."""
    wall_s: float = 0.0
    """Seconds over all processes of this run, including restarts."""
    compile_s: float = 0.0
    train_s: float = 0.0
    """Seconds of training without compilation, evaluation and checkpoints; like all times here, of
    all attempts."""
    wait_s: float = 0.0
    """Seconds of ``train_s`` that were waits for data."""
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    """Seconds that checkpoints delayed training."""
    skips: int = 0
    """Number of steps with a skipped, non-finite update."""
    rollbacks: int = 0
    """Number of rollbacks to a checkpoint."""
    evaluation_due: int = 0
    """1: the run stopped in the evaluation after this step; its metrics follow."""
    loss: float = 0.0
    top1: float = 0.0
    top5: float = 0.0
    gradient_norm: float = 0.0
    validation_top1: float = -1.0
    """Top-1 accuracy of the evaluation of this state, a fraction, of the averaged weights if there
    are any; below 0: not evaluated."""
    for_stop: int = 0
    """1: an uninterrupted run has no checkpoint here. This one serves the next attempt only: no
    rollback returns to it, so that it cannot change what the run computes."""
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What else decides how the run continues, by its owner: finite numbers, texts, and lists and
    mappings of them."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Content of a checkpoint except its arrays."""

    progress: Progress
    config: dict[str, dict[str, Any]]
    """Options of the run as JSON values, not yet checked."""
    facts: Facts
    arrays: dict[str, str] = dataclasses.field(default_factory=dict)
    """Digest of each array by '/'-joined path: 16 bytes of BLAKE2b over dtype, shape and elements
    in C order, in hexadecimal."""


def described(progress: Progress, plan: Plan) -> Manifest:
    """Return the manifest of a checkpoint, without its arrays."""
    return Manifest(progress, plain(dataclasses.asdict(plan.config)), plan.facts)


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

    Raises:
      ValueError: JSON cannot represent a number of the manifest.
    """
    # The largest dtypes first, so that the elements of each array are aligned.
    paths = sorted(arrays, key=lambda path: (-arrays[path].itemsize, path))
    digests = {path: digest_of(arrays[path]) for path in paths}
    text = _text(dataclasses.replace(about, arrays=digests))
    header = _header(text, {path: arrays[path] for path in paths})
    begin = len(header).to_bytes(HEADER_BYTES, "little")
    return b"".join([begin, header, *(_elements(arrays[path]) for path in paths)])


def header_length(begin: bytes) -> int:
    """Return the bytes of the header from the first `HEADER_BYTES` of a file.

    Raises:
      Rejected: they are no beginning of such a file.
    """
    length = int.from_bytes(begin[:HEADER_BYTES], "little")
    if len(begin) < HEADER_BYTES or not 2 <= length <= _LARGEST_HEADER or length % 8:
        raise Rejected("it does not begin like a safetensors file")
    return length


def manifest_in(header: bytes) -> Manifest:
    """Decode the manifest in the untrusted header of a file; the arrays are not verified.

    Raises:
      Rejected: it is not the header of a checkpoint of this program.
      OtherVersion: a different version of this program wrote it.
    """
    try:
        metadata = json.loads(header)[_METADATA]
        text = metadata["manifest"]
        body = json.loads(text)
        version = body.pop("format")
        if version != FORMAT:
            raise OtherVersion(f"its format is {shown(version)}, expected {FORMAT}")
        valid = metadata["digest"] == _digest(text.encode())
    except _MALFORMED as error:
        raise Rejected("it has no manifest of this program") from error
    if not valid:
        raise Rejected("its manifest does not have its digest")
    return _read(Manifest, body, "manifest")


def decode(content: bytes) -> tuple[Manifest, dict[str, np.ndarray]]:
    """Decode an untrusted file and verify every byte of it.

    Returns:
      The manifest, and the arrays by path, which are views of ``content``.

    Raises:
      Rejected: the file is damaged, incomplete, or not of this program.
      OtherVersion: a different version of this program wrote it.
    """
    start = HEADER_BYTES + header_length(content)
    header = content[HEADER_BYTES:start]
    about = manifest_in(header)
    fields, arrays, end = json.loads(header), {}, start
    text = fields.pop(_METADATA)["manifest"]
    try:
        for path, entry in fields.items():
            dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
            arrays[path] = np.frombuffer(content, dtype, math.prod(shape), end).reshape(shape)
            end += arrays[path].nbytes
        # A header with anything else, or with a key twice, is not that of its own content.
        valid = header == _header(text, arrays) and end == len(content)
    except _MALFORMED:
        valid = False
    if not valid:
        raise Rejected("it is incomplete, or its header is damaged")
    for path in sorted(arrays.keys() | about.arrays.keys()):
        if path not in arrays or digest_of(arrays[path]) != about.arrays.get(path):
            raise Rejected(f"array {shown(path)} does not have the digest of the manifest")
    return about, arrays


def as_tree(arrays: Mapping[str, np.ndarray], like: PyTree) -> PyTree:
    """Return the arrays of a checkpoint in a tree like ``like``.

    Raises:
      OtherVersion: names, shapes or dtypes differ from ``like``.
    """
    wanted = by_path(like)
    for path in sorted(arrays.keys() | wanted.keys()):
        then, now = (
            f"{tree[path].shape} {tree[path].dtype}" if path in tree else "not there"
            for tree in (arrays, wanted)
        )
        if then != now:
            raise OtherVersion(f"array {path} is {then}, expected {now}")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[path] for path in wanted])


def _header(text: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the header of a file with this manifest and these arrays, in their order."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    fields: dict[str, Any] = {_METADATA: {"manifest": text, "digest": _digest(text.encode())}}
    end = 0
    for path, array in arrays.items():
        begin, end = end, end + array.nbytes
        fields[path] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    return header + b" " * (-len(header) % 8)


def _text(about: Manifest) -> str:
    """Return a manifest as strict JSON, which has neither NaN nor the infinities."""
    progress = {f.name: getattr(about.progress, f.name) for f in dataclasses.fields(Progress)}
    for field in dataclasses.fields(Progress):
        if field.type in (int, float):  # the value may be of another library
            number = field.type(progress[field.name])
            progress[field.name] = number if math.isfinite(number) else repr(number)
    body = dataclasses.asdict(about) | {"format": FORMAT, "progress": progress}
    return json.dumps(plain(body), sort_keys=True, allow_nan=False)


def _elements(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def digest_of(array: np.ndarray) -> str:
    """Return the digest of an array's dtype, shape and values."""
    return _digest(f"{array.dtype.name} {array.shape}".encode(), _elements(array))


def _digest(*parts: bytes | memoryview) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _read(kind: Any, value: Any, where: str) -> Any:
    """Convert a JSON value to the type of a field of the manifest.

    Args:
      kind: a dataclass, `int`, `float`, a tuple, a mapping, or `Any`.
      value: the value.
      where: its name, for messages.

    Raises:
      OtherVersion: it is not of this type.
    """
    inner = typing.get_args(kind)
    match value:
        case dict() if dataclasses.is_dataclass(kind):
            types = {field.name: field.type for field in dataclasses.fields(kind)}
            if unlike := sorted(types.keys() ^ value.keys()):
                raise OtherVersion(f"{where}.{shown(unlike[0])} is unknown or missing")
            return kind(**{k: _read(types[k], v, f"{where}.{k}") for k, v in value.items()})
        case dict() if typing.get_origin(kind) is dict:
            return {k: _read(inner[1], v, f"{where}.{shown(k)}") for k, v in value.items()}
        case list() if typing.get_origin(kind) is tuple and len(value) == len(inner):
            return tuple(_read(each, v, where) for each, v in zip(inner, value, strict=True))
        case int() if kind is int and not isinstance(value, bool) and 0 <= value < 2**61:
            return value
        case float() | "inf" | "-inf" | "nan" if kind is float:
            return float(value)
        case str() if kind is str:
            return value
        case _ if kind is Any:
            return value
    raise OtherVersion(f"{where} is {shown(value)}")
