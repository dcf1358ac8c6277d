"""What a checkpoint says of itself: the run, its arrays and its files, each with a digest.

A manifest is read as data from a place that nobody vouches for: types, ranges and names are
checked, and the whole must be, to the byte, what this module would write. Nothing is executed.
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

FORMAT = 4
"""Of a checkpoint's directory; to be raised with every change of the fields below."""
NAME = "manifest.json"
LARGEST = 64 * 2**20
"""Bytes; that of ResNet-50 has 100 thousand."""

_DIGEST = re.compile(r"[0-9a-f]{32}")
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_FILE = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*")
_PATH = re.compile(r"[^\x00-\x1f]{1,500}")


class Rejected(Exception):
    """A checkpoint that is not as it was written; the message is the reason, in one line."""


class OtherVersion(Exception):
    """A checkpoint that is sound, but of another version of this program; says what differs."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run is, and its timers."""

    step: int = 0
    """Steps done."""
    samples: int = 0
    """Training samples consumed: the sample position."""
    wall_s: float = 0.0
    """Seconds, all turns at this run together."""
    compile_s: float = 0.0
    train_s: float = 0.0
    """Seconds of training alone: without compilation, evaluation and checkpoints."""
    skips: int = 0
    """Steps whose update was left out because it was not finite."""
    rollbacks: int = 0
    """How often the run went back to a checkpoint."""
    evaluation_due: int = 0
    """1: the run was stopped in the evaluation after this step, whose metrics follow."""
    loss: float = 0.0
    top1: float = 0.0
    top5: float = 0.0
    gradient_norm: float = 0.0


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of a checkpoint."""

    shape: tuple[int, ...]
    dtype: str
    """Its name in NumPy, such as ``float32`` or ``bfloat16``."""
    digest: str
    """Of its elements in C order, little-endian (`digest_of`)."""


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a checkpoint."""

    bytes: int
    digest: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """All that a checkpoint holds beside the values of its arrays."""

    progress: Progress
    config: dict[str, dict[str, Any]]
    """Options of the run, as JSON can hold them: not yet checked."""
    facts: Facts
    arrays: dict[str, Array] = dataclasses.field(default_factory=dict)
    """By '/'-joined path in the state."""
    files: dict[str, File] = dataclasses.field(default_factory=dict)
    """By path in the checkpoint's directory; the manifest itself is not among them."""


def described(progress: Progress, plan: Plan) -> Manifest:
    """The manifest of a checkpoint whose arrays are still to be written."""
    return Manifest(progress, plain(dataclasses.asdict(plan.config)), plan.facts)


def digest_of(parts: Iterable[bytes | memoryview]) -> str:
    """BLAKE2b of 16 bytes, in hexadecimal, of parts one after the other."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def encode(manifest: Manifest) -> bytes:
    """A manifest as the text of its file."""
    body = plain(dataclasses.asdict(manifest)) | {"progress": _written(manifest.progress)}
    run = {"config": body["config"], "facts": body["facts"]}
    return sealed(
        {"format": FORMAT, "step": manifest.progress.step, **body, "plan": _plan_hash(run)}
    )


def decode(text: bytes) -> Manifest:
    """The inverse of `encode`, for a text of unknown origin.

    Raises:
      Rejected: it is not what `encode` writes; says where.
      OtherVersion: its digest is right, but its format or fields are not those of this version.
    """
    body = _opened(text)
    version = body.get("format")
    if version != FORMAT or type(version) is not int:
        raise OtherVersion(f"its format is {_shown(version)}, this one reads {FORMAT}")
    names = {"step", "plan", "format"} | {f.name for f in dataclasses.fields(Manifest)}
    _same_names(body, names, "")
    progress = _numbers(Progress, body["progress"], "progress")
    if progress.step != body["step"] or type(body["step"]) is not int:
        raise Rejected(f"step is {_shown(body['step'])}, its progress says {progress.step}")
    config = _mapping(body["config"], "config")
    for section, options in config.items():
        _mapping(options, f"config.{_shown(section)}")
    facts = _numbers(Facts, body["facts"], "facts")
    if body["plan"] != _plan_hash({"config": config, "facts": body["facts"]}):
        raise Rejected("plan is not the hash of config and facts")
    arrays = _entries(Array, body["arrays"], "arrays", _PATH)
    files = _entries(File, body["files"], "files", _FILE)
    return Manifest(progress, config, facts, arrays, files)


def sealed(body: Mapping[str, Any]) -> bytes:
    """The text of a manifest's fields with their digest.

    Raises:
      ValueError: a number that JSON cannot hold.
    """
    digest = digest_of([_text(body).encode()])
    return (_text({**body, "digest": digest}) + "\n").encode()


def _opened(text: bytes) -> dict[str, Any]:
    """The fields of a text that is exactly what `sealed` makes of them."""
    if len(text) > LARGEST:
        raise Rejected(f"{NAME} has {len(text):,} bytes, more than {LARGEST:,}")
    try:
        body = json.loads(text.decode("ascii"))
        if not isinstance(body, dict):
            raise Rejected(f"{NAME} holds {_shown(body)}, no fields")
        body.pop("digest", None)
        sound = sealed(body) == text
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{NAME} is no JSON ({_shown(str(error))})") from error
    if not sound:
        raise Rejected(f"{NAME} does not have the digest that it states")
    return body


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=1, sort_keys=True, allow_nan=False)


def _plan_hash(run: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(run).encode()).hexdigest()


def _written(progress: Progress) -> dict[str, int | float | str]:
    """Each number as its field's type; the loss of a run that failed is no number in JSON."""
    built = {f.name: f.type(getattr(progress, f.name)) for f in dataclasses.fields(progress)}
    return {name: v if math.isfinite(v) else repr(v) for name, v in built.items()}


def _numbers(cls: type, value: Any, where: str) -> Any:
    """A dataclass of numbers and tuples of them, whole ones not below 0, from its mapping."""
    fields = {field.name: field.type for field in dataclasses.fields(cls)}
    _same_names(_mapping(value, where), fields, f"{where}.")
    built = {}
    for name, kind in fields.items():
        given, place = value[name], f"{where}.{name}"
        if kind is int:
            built[name] = _whole(given, place)
        elif kind is float:
            built[name] = _real(given, place)
        else:
            built[name] = _shape(given, place)
            if len(built[name]) != len(kind.__args__):
                raise Rejected(f"{place} is {_shown(given)}")
    return cls(**built)


def _entries(cls: type, value: Any, where: str, known: re.Pattern) -> dict[str, Any]:
    """What the manifest says of each array or file."""
    fields = {field.name for field in dataclasses.fields(cls)}
    found = {}
    for name, entry in _mapping(value, where).items():
        place = f"{where}.{_shown(name)}"
        if not known.fullmatch(name):
            raise Rejected(f"{place} is no name for one")
        _same_names(_mapping(entry, place), fields, f"{place}.")
        found[name] = cls(**{key: _CHECKS[key](entry[key], f"{place}.{key}") for key in fields})
    return found


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Rejected(f"{where} is {_shown(value)}")
    return value


def _same_names(found: Iterable[str], wanted: Iterable[str], where: str) -> None:
    for name in sorted(set(found) ^ set(wanted)):
        if name in found:
            raise OtherVersion(f"{where}{_shown(name)} is a field that this version does not know")
        raise OtherVersion(f"it has no field {where}{name}")


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**61:
        raise Rejected(f"{where} is {_shown(value)}")
    return value


def _real(value: Any, where: str) -> float:
    if type(value) is not float and value not in ("inf", "-inf", "nan"):
        raise Rejected(f"{where} is {_shown(value)}")
    return float(value)


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 32:
        raise Rejected(f"{where} is {_shown(value)}")
    return tuple(_whole(size, where) for size in value)


def _word(value: Any, where: str, pattern: re.Pattern) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Rejected(f"{where} is {_shown(value)}")
    return value


_CHECKS = {
    "shape": _shape,
    "dtype": lambda value, where: _word(value, where, _TYPE),
    "digest": lambda value, where: _word(value, where, _DIGEST),
    "bytes": _whole,
}


def _shown(value: Any) -> str:
    """A value of unknown size and content, on one short line."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
