"""A trained network with what is needed to use it, and the metadata of exported files.

Metadata are texts by name, each of them JSON. A file may come from anywhere: every value is checked
and nothing is executed unless the user names it (``trust``).
"""

import dataclasses
import json
import math
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
_STEMS = ("conv7", "space_to_depth", "small")


class WeightsError(UserError):
    """Weights that are missing, unreadable, or of an unknown network."""


@dataclasses.dataclass(frozen=True)
class About:
    """All of `Weights` except the arrays."""

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

    def weights(self, params: PyTree, stats: PyTree) -> "Weights":
        """Return these metadata with arrays."""
        return Weights(**vars(self), params=params, stats=stats)


@dataclasses.dataclass(frozen=True, eq=False)
class Weights(About):
    """A network in evaluation mode: logits are ``model.apply(params, stats, images)``."""

    params: PyTree
    """Nested dicts of float32 NumPy arrays, as from ``Model.init``."""
    stats: PyTree
    """{…: {mean, var}}, float32: the statistics that evaluation uses."""
    options: Config | None = None
    """Sections model, norm, data and loss of the run at the checkpoint's step; None for files."""


# `origin` is left out: it is a path of the machine that wrote the file.
_WRITTEN = tuple(field.name for field in dataclasses.fields(About) if field.name != "origin")


def by_path(weights: Weights) -> dict[str, np.ndarray]:
    """Return all arrays, parameters first, by '/'-joined path."""
    return {**flatten_paths(weights.params), **flatten_paths(weights.stats)}


def few(names: Iterable[str]) -> str:
    """Return the first three of several names, for a message."""
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def encode(weights: About) -> dict[str, str]:
    """Return the metadata of a file."""
    body = {name: getattr(weights, name) for name in _WRITTEN}
    body["model"] = {name: getattr(weights.model, name) for name in _MODEL}
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in body.items()}
    return {MARK: VERSION, **texts}


def decode(texts: Mapping[str, str] | None, where: str, trust: Sequence[str] = ()) -> About | None:
    """Invert `encode`; None for a file that is not ours.

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


def checked(body: Mapping[str, Any], where: str) -> About:
    """Return an `About` of values of unknown types, except that ``model`` is a `Model`.

    Raises:
      WeightsError: a value has the wrong type or range, or does not fit the model.
    """
    model = body["model"]

    def numbers(name: str, count: int) -> tuple[float, ...]:
        value = body[name]
        if _is_list(value, count) and all(type(x) in (int, float) for x in value):
            found = tuple(map(float, value))
            if all(map(math.isfinite, found)):
                return found
        raise _unexpected(where, name, value, f"{count} number(s)")

    def expect(name: str, condition: bool, expected: str) -> None:
        if not condition:
            raise _unexpected(where, name, body[name], expected)

    classes, shape, crop = body["classes"], body["image_shape"], body["evaluation_crop"]
    expect("classes", _is_list(classes) and all(isinstance(c, str) for c in classes), "names")
    expect("classes", len(classes) in (0, model.classes), f"{model.classes:,} names, as the head")
    mean, std = numbers("mean", model.channels), numbers("std", model.channels)
    expect("std", min(std) > 0, "numbers above 0")
    is_shape = _is_list(shape, 3) and all(type(n) is int and 0 < n < 2**16 for n in shape)
    expected = f"height, width and {model.channels} channels"
    expect("image_shape", is_shape and shape[2] == model.channels, expected)
    is_crop = type(crop) in (int, float) and 0 < crop <= 1
    expect("evaluation_crop", is_crop, "a number above 0, up to 1")
    expect("resampling", body["resampling"] in ("linear", "antialias"), "linear or antialias")
    for name in ("origin", "data"):
        expect(name, isinstance(body[name], str), "a text")
    return About(
        model=model,
        classes=tuple(classes),
        mean=mean,
        std=std,
        image_shape=tuple(shape),
        evaluation_crop=float(crop),
        resampling=body["resampling"],
        origin=body["origin"],
        data=body["data"],
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


def _is_list(value: Any, length: int | None = None) -> bool:
    return isinstance(value, list | tuple) and (length is None or len(value) == length)


def _unexpected(where: str, name: str, value: Any, expected: str) -> WeightsError:
    return WeightsError(f"{where}: {name}: expected {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """A value of unknown size, on one short line."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
