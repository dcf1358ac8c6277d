"""A trained network with what is needed to use it, and the metadata of exported files.

Metadata are texts by name, each of them JSON. A file may come from anywhere: every value is checked
and nothing is executed unless the user names it (``trust``).
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from largebatch.config import Config
from largebatch.errors import UserError
from largebatch.models import MODELS, Model
from largebatch.registry import check_trusted, is_reference
from largebatch.trees import flatten_paths

PyTree = Any

MARK = "largebatch"
"""The key of the metadata's version, which only our own files have."""
VERSION = "1"

_MODEL = {"name": str, "classes": int, "channels": int, "width": int, "stem": str, "epsilon": float}
_LARGEST = 1e30  # of numbers; NaN is not below it
_STEMS = ("conv7", "small")


class WeightsError(UserError):
    """Weights that are missing, unreadable, or of an unknown network."""


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """A network in evaluation mode: logits are ``model.apply(params, stats, images)``."""

    model: Model
    """As in the file or the run's options; its arithmetic is float32."""
    classes: tuple[str, ...]
    """Names in the order of labels; () if unknown."""
    mean: tuple[float, ...]
    """Mean of each channel, in 0..255: the network takes (pixel − mean) / std."""
    std: tuple[float, ...]
    """Standard deviation of each channel, in 0..255."""
    image_shape: tuple[int, int, int]
    """Height, width and channels of the images of an evaluation."""
    evaluation_crop: float
    """The option ``data.evaluation_crop``; 1 for data that are never cropped."""
    resampling: str
    """The option ``data.resampling``."""
    origin: str
    """The path that was read, and remarks on it, for the user."""
    data: str
    """``data.source`` of the run; '' for foreign files."""
    params: PyTree = dataclasses.field(default_factory=dict)
    """Nested dicts of float32 NumPy arrays, as from ``Model.init``; {} until they are read."""
    stats: PyTree = dataclasses.field(default_factory=dict)
    """{…: {mean, var}}, float32: the statistics that evaluation uses."""
    options: Config | None = None
    """Sections model, norm, data and loss of the run at the checkpoint's step; None for files."""


# In files. `origin` is a path of the machine that wrote the file.
_WRITTEN = (
    "model",
    "classes",
    "mean",
    "std",
    "image_shape",
    "evaluation_crop",
    "resampling",
    "data",
)


def by_path(weights: Weights) -> dict[str, np.ndarray]:
    """Return all arrays, parameters first, by '/'-joined path."""
    return {**flatten_paths(weights.params), **flatten_paths(weights.stats)}


def few(names: Iterable[str]) -> str:
    """Return the first three of several names, for a message."""
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def encode(weights: Weights) -> dict[str, str]:
    """Return the metadata of a file."""
    body = {name: getattr(weights, name) for name in _WRITTEN}
    body["model"] = {name: getattr(weights.model, name) for name in _MODEL}
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in body.items()}
    return {MARK: VERSION, **texts}


def decode(
    texts: Mapping[str, str] | None, where: str, trust: Sequence[str] = ()
) -> Weights | None:
    """Invert `encode`: return weights without arrays; None for a file that is not ours.

    Args:
      texts: the metadata of the file.
      where: the file, for messages.
      trust: modules of the user's own that may be imported (see `registry.check_trusted`).

    Raises:
      ConfigError: the network is code that is not in ``trust``.
      WeightsError: a text is missing or is not what `encode` writes.
    """
    if not texts or MARK not in texts:
        return None
    if texts[MARK] != VERSION:
        raise WeightsError(
            f"{where}: expected metadata of version {VERSION}, got {texts[MARK][:20]!r}; export it "
            "again"
        )
    body: dict[str, Any] = {"origin": where}
    for name in _WRITTEN:
        try:
            body[name] = json.loads(texts[name])
        except (KeyError, ValueError, RecursionError) as error:
            raise WeightsError(f"{where}: its metadata have no valid {name}") from error
    body["model"] = _model(body["model"], where, trust)
    return checked(body, where)


def checked(body: Mapping[str, Any], where: str) -> Weights:
    """Return weights without arrays from values of unknown types; ``model`` is a `Model`.

    Raises:
      WeightsError: a value has the wrong type or range, or does not fit the model.
    """
    channels, outputs = body["model"].channels, body["model"].classes
    classes, shape, crop = body["classes"], body["image_shape"], body["evaluation_crop"]
    rules = {
        "classes": (_is_list(classes, str), "a list of names"),
        "mean": (_is_list(body["mean"], int, float, length=channels), f"{channels} number(s)"),
        "std": (
            _is_list(body["std"], int, float, length=channels) and min(body["std"]) > 0,
            f"{channels} number(s) above 0",
        ),
        "image_shape": (
            _is_list(shape, int, length=3) and 0 < min(shape) <= max(shape) < 2**16,
            f"height, width and {channels} channels",
        ),
        "evaluation_crop": (type(crop) in (int, float) and 0 < crop <= 1, "above 0, up to 1"),
        "resampling": (body["resampling"] in ("linear", "antialias"), "linear or antialias"),
        "origin": (isinstance(body["origin"], str), "a text"),
        "data": (isinstance(body["data"], str), "a text"),
    }
    for name, (holds, expected) in rules.items():
        if not holds:
            raise _unexpected(where, name, body[name], expected)
    if len(classes) not in (0, outputs):
        raise _unexpected(where, "classes", classes, f"{outputs:,} names, as the head")
    if shape[2] != channels:
        raise _unexpected(where, "image_shape", shape, f"{channels} channels")
    return Weights(
        **{
            **body,
            "classes": tuple(classes),
            "mean": tuple(map(float, body["mean"])),
            "std": tuple(map(float, body["std"])),
            "image_shape": tuple(shape),
            "evaluation_crop": float(crop),
        }
    )


def _model(value: Any, where: str, trust: Sequence[str]) -> Model:
    if not isinstance(value, dict) or value.keys() != _MODEL.keys():
        raise _unexpected(where, "model", value, ", ".join(_MODEL))
    for name, kind in _MODEL.items():
        if type(value[name]) is not kind or (kind is not str and not 0 < value[name] < 2**31):
            raise _unexpected(where, f"model.{name}", value[name], f"{kind.__name__} above 0")
    if is_reference(value["name"]):
        check_trusted(value["name"], "model.name", where, trust)
        return Model(**value)
    for name, known in (("name", MODELS), ("stem", _STEMS)):
        if value[name] not in known:
            raise _unexpected(where, f"model.{name}", value[name], " or ".join(known))
    return Model(**value)


def _is_list(value: Any, *kinds: type, length: int | None = None) -> bool:
    """Whether a value is a list of these kinds, its numbers finite, of this length if given."""
    return (
        isinstance(value, list | tuple)
        and length in (None, len(value))
        and all(type(x) in kinds and (type(x) is str or abs(x) < _LARGEST) for x in value)
    )


def _unexpected(where: str, name: str, value: Any, expected: str) -> WeightsError:
    return WeightsError(f"{where}: {name}: expected {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """A value of unknown size, on one short line."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
