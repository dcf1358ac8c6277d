"""Writing and reading of the arrays of a checkpoint with Orbax.

One process writes and each process reads. The module calls Orbax's handler directly, because the
barriers of Orbax's manager would block processes that have nothing to write.
"""

import contextlib
import logging
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from largebatch.checkpoint.manifest import Array, File, Manifest, OtherVersion, Rejected, digest_of

PyTree = Any
FOLDER = "arrays"
_PIECE = 2**20


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
    """Return an upper estimate of the disk space for a checkpoint of such arrays, in bytes."""
    leaves = jax.tree.leaves(tree)
    return sum(x.size * x.dtype.itemsize for x in leaves) + 1024 * len(leaves) + 2**16


def write(directory: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Write arrays into a directory and flush them to disk.

    Args:
      directory: directory of a checkpoint.
      arrays: arrays by path.

    Returns:
      The fields ``arrays`` and ``files`` of the manifest.

    Raises:
      Exception: the write fails; any type is possible.
    """
    described = {path: _described(value) for path, value in arrays.items()}
    folder = directory / FOLDER
    folder.mkdir()
    target = epath.Path(folder)
    # An array without elements is all in its manifest; Orbax refuses it.
    arguments = ocp.args.PyTreeSave({path: a for path, a in arrays.items() if a.size})
    one_by_one = _OneByOne(deepcopy_host_arrays=False)
    with _orbax(one_by_one) as handler:
        handler.save(target, args=arguments)
        if one_by_one.failures:
            raise one_by_one.failures[0]
        handler.finalize(target)
    files = {}
    for path in _files(folder):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        name = path.relative_to(directory).as_posix()
        files[name] = File(path.stat().st_size, _digest_of_file(path))
    for parent, _, _ in os.walk(folder):
        fsync_directory(Path(parent))
    return {"arrays": described, "files": files}


def read(directory: Path, manifest: Manifest, like: PyTree) -> PyTree:
    """Read the arrays of a checkpoint, after verifying its files; then verify the arrays.

    Args:
      directory: directory of the checkpoint.
      manifest: manifest of the checkpoint.
      like: shapes and dtypes of the state.

    Returns:
      NumPy arrays in a tree like ``like``.

    Raises:
      Rejected: a file or an array differs from the manifest, or cannot be read.
      OtherVersion: names, shapes or dtypes differ from ``like``.
    """
    wanted = by_path(like)
    _compare(manifest.arrays, wanted)
    _check_files(directory, manifest.files)
    stored = {path: 0 for path, array in wanted.items() if array.size}
    options = {path: ocp.RestoreArgs(restore_type=np.ndarray) for path in stored}
    try:
        arguments = ocp.args.PyTreeRestore(stored, restore_args=options)
        with _orbax(_OneByOne()) as handler:
            found = handler.restore(epath.Path(directory.absolute() / FOLDER), args=arguments)
    except Exception as error:
        raise Rejected(f"its arrays cannot be read ({first_line(error)})") from error
    for path, value in found.items():
        if not isinstance(value, np.ndarray) or _described(value) != manifest.arrays[path]:
            raise Rejected(f"array {path} does not have the shape, type or digest of the manifest")
    empty = {path: np.zeros(x.shape, x.dtype) for path, x in wanted.items() if not x.size}
    leaves = [(found | empty)[path] for path in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def fsync_directory(path: Path) -> None:
    """Flush the names in a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def first_line(error: BaseException) -> str:
    """Return one line that names a library's error and, where it has one, the system's reason."""
    text = (str(error).splitlines() or [""])[0]
    # TensorStore puts the specification of the array, of any length, before or after the reason.
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        text = os.strerror(int(code[1]))
    return f"{type(error).__name__}: {text[-200:]}"


class _OneByOne(ocp.type_handlers.NumpyHandler):
    """Array handler that leaves no write in progress after a failure.

    Otherwise the remaining writes of Orbax continue in a directory that is being removed, and each
    prints a traceback because its event loop is closed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.failures: list[Exception] = []

    async def _open_and_write(self, *args: Any, **options: Any) -> None:
        # If a later Orbax renames this method, only the tracebacks return.
        try:
            await super()._open_and_write(*args, **options)
        except Exception as error:
            self.failures.append(error)

    async def deserialize(self, infos: Sequence[Any], args: Sequence[Any]) -> list[np.ndarray]:
        """Read the arrays one after the other."""
        pairs = zip(infos, args, strict=True)
        return [(await super(_OneByOne, self).deserialize([i], [a]))[0] for i, a in pairs]


@contextlib.contextmanager
def _orbax(arrays: _OneByOne) -> Iterator[ocp.PyTreeCheckpointHandler]:
    registry = ocp.type_handlers.create_type_handler_registry((np.ndarray, arrays))
    # Orbax logs tracebacks of exceptions that it also raises; the caller reports them in one line.
    logger = logging.getLogger("absl")
    logger.addFilter(_is_not_of_orbax)
    try:
        handler = ocp.PyTreeCheckpointHandler(
            use_ocdbt=True,
            use_compression=False,  # would save 7 % of the bytes in twice the time
            type_handler_registry=registry,
        )
        with contextlib.closing(handler):
            yield handler
    finally:
        logger.removeFilter(_is_not_of_orbax)


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _compare(stored: Mapping[str, Array], wanted: Mapping[str, Any]) -> None:
    for path in sorted(stored.keys() | wanted.keys()):
        then, now = (
            f"{tree[path].shape} {tree[path].dtype}" if path in tree else "not there"
            for tree in (stored, wanted)
        )
        if then != now:
            raise OtherVersion(f"array {path} is {then}, expected {now}")


def _check_files(directory: Path, described: Mapping[str, File]) -> None:
    """Compare first the sizes, then the digests of all files with the manifest."""
    try:
        paths = _files(directory / FOLDER)
        found = {path.relative_to(directory).as_posix(): path for path in paths}
        if absent := sorted(described.keys() - found.keys()):
            raise Rejected(f"{absent[0]} is missing")
        if unknown := sorted(found.keys() - described.keys()):
            raise Rejected(f"{unknown[0]!a} is not in the manifest")
        for name, expected in described.items():
            size = found[name].stat().st_size
            if size != expected.bytes:
                raise Rejected(f"{name} has {size:,} bytes, the manifest has {expected.bytes:,}")
        for name, expected in described.items():
            if _digest_of_file(found[name]) != expected.digest:
                raise Rejected(f"{name} does not have the digest of the manifest")
    except OSError as error:
        raise Rejected(f"a file cannot be read ({error})") from error


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a directory.

    Raises:
      Rejected: there is a link, a pipe or a device.
    """
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            path = Path(parent, name)
            kind = path.lstat().st_mode
            if stat.S_ISREG(kind):
                yield path
            elif not stat.S_ISDIR(kind):
                raise Rejected(f"{name!a} is not a regular file")


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return digest_of(iter(lambda: stream.read(_PIECE), b""))


def _described(value: np.ndarray) -> Array:
    ordered = value.byteswap() if sys.byteorder == "big" else value
    data = np.ascontiguousarray(ordered).reshape(-1).view(np.uint8).data
    return Array(value.shape, value.dtype.name, digest_of([data]))
