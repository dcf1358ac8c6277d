"""Manifest of a checkpoint: progress, options, facts, and the arrays with their digests.

A manifest is untrusted data. The decoder checks types, ranges and names, and the text must be
byte-identical to the encoding of its content. It executes nothing.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from largebatch.config import Facts, Plan
from largebatch.files import plain

FORMAT = 5
"""Format of the checkpoint; increment it with each change of the fields below."""
NAME = "manifest"
"""The entry of the metadata of the file."""

_DIGEST = re.compile(r"[0-9a-f]{32}")
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_PATH = re.compile(r"[^\x00-\x1f]{1,500}")


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
class Array:
    """An array of a checkpoint."""

    shape: tuple[int, ...]
    dtype: str
    """Name of the dtype, such as ``float32`` or ``bfloat16``."""
    digest: str
    """BLAKE2b of the elements in C order, little-endian: 16 bytes in hexadecimal."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Content of a checkpoint except the values of its arrays."""

    progress: Progress
    config: dict[str, dict[str, Any]]
    """Options of the run as JSON values, not yet checked."""
    facts: Facts
    arrays: dict[str, Array] = dataclasses.field(default_factory=dict)
    """Arrays by '/'-joined path in the state."""


def described(progress: Progress, plan: Plan) -> Manifest:
    """Return the manifest of a checkpoint before its arrays are written."""
    return Manifest(progress, plain(dataclasses.asdict(plan.config)), plan.facts)


def encode(manifest: Manifest, arrays: Mapping[str, Array]) -> str:
    """Encode a manifest together with its digest.

    Args:
      manifest: without arrays.
      arrays: those of the checkpoint, by path.

    Raises:
      ValueError: JSON cannot represent a number.
    """
    body = plain(dataclasses.asdict(dataclasses.replace(manifest, arrays=dict(arrays))))
    return _sealed({"format": FORMAT, **body, "progress": _written(manifest.progress)})


def decode(text: Any) -> Manifest:
    """Decode an untrusted manifest; the inverse of `encode`.

    Raises:
      Rejected: the text is not an encoded manifest; the message has the field.
      OtherVersion: the digest is correct, but format or fields are those of a different version.
    """
    body = _opened(text)
    version = body.get("format")
    if version != FORMAT or type(version) is not int:
        raise OtherVersion(f"its format is {shown(version)}, expected {FORMAT}")
    _same_names(body, {"format", *(f.name for f in dataclasses.fields(Manifest))}, "")
    progress = _numbers(Progress, body["progress"], "progress")
    config = _mapping(body["config"], "config")
    for section, options in config.items():
        _mapping(options, f"config.{shown(section)}")
    facts = _numbers(Facts, body["facts"], "facts")
    return Manifest(progress, config, facts, _arrays(body["arrays"]))


def _sealed(body: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(_text(body).encode(), digest_size=16).hexdigest()
    return _text({**body, "digest": digest})


def _opened(text: Any) -> dict[str, Any]:
    """Decode a text and check that it is the result of `_sealed`."""
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise Rejected(f"its manifest is {shown(body)}, expected an object")
        body.pop("digest", None)
        valid = _sealed(body) == text
    except (TypeError, ValueError, RecursionError) as error:
        raise Rejected(f"its manifest is not JSON ({shown(str(error))})") from error
    if not valid:
        raise Rejected("its manifest does not match its digest")
    return body


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, allow_nan=False)


def _written(progress: Progress) -> dict[str, Any]:
    """Convert each number to its field's type; non-finite numbers become strings."""
    numbers = [f for f in dataclasses.fields(progress) if f.type in (int, float)]
    built = {f.name: f.type(getattr(progress, f.name)) for f in numbers}
    shown = {name: v if math.isfinite(v) else repr(v) for name, v in built.items()}
    return shown | {"memory": plain(progress.memory)}


def _numbers(cls: type, value: Any, where: str) -> Any:
    """Decode a dataclass of numbers, tuples and mappings; integers must not be negative."""
    fields = {field.name: field.type for field in dataclasses.fields(cls)}
    _same_names(_mapping(value, where), fields, f"{where}.")
    built = {}
    for name, kind in fields.items():
        given, place = value[name], f"{where}.{name}"
        if kind is int:
            built[name] = _whole(given, place)
        elif kind is float:
            built[name] = _real(given, place)
        elif kind == dict[str, Any]:
            built[name] = _mapping(given, place)
        else:
            built[name] = _shape(given, place)
            if len(built[name]) != len(kind.__args__):
                raise Rejected(f"{place} is {shown(given)}")
    return cls(**built)


def _arrays(value: Any) -> dict[str, Array]:
    """Decode the entries of the arrays."""
    found = {}
    for path, entry in _mapping(value, "arrays").items():
        place = f"arrays.{shown(path)}"
        if not _PATH.fullmatch(path):
            raise Rejected(f"{place} is not a valid name")
        _same_names(_mapping(entry, place), ("shape", "dtype", "digest"), f"{place}.")
        found[path] = Array(
            _shape(entry["shape"], f"{place}.shape"),
            _word(entry["dtype"], f"{place}.dtype", _TYPE),
            _word(entry["digest"], f"{place}.digest", _DIGEST),
        )
    return found


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Rejected(f"{where} is {shown(value)}")
    return value


def _same_names(found: Iterable[str], wanted: Iterable[str], where: str) -> None:
    for name in sorted(set(found) ^ set(wanted)):
        if name in found:
            raise OtherVersion(f"{where}{shown(name)} is an unknown field")
        raise OtherVersion(f"the field {where}{name} is missing")


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**61:
        raise Rejected(f"{where} is {shown(value)}")
    return value


def _real(value: Any, where: str) -> float:
    if type(value) is not float and value not in ("inf", "-inf", "nan"):
        raise Rejected(f"{where} is {shown(value)}")
    return float(value)


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 32:
        raise Rejected(f"{where} is {shown(value)}")
    return tuple(_whole(size, where) for size in value)


def _word(value: Any, where: str, pattern: re.Pattern) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Rejected(f"{where} is {shown(value)}")
    return value


def shown(value: Any) -> str:
    """Format any value in one short line."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
