"""What our own exported files say beside their arrays: texts by name, each of them JSON.

A file may come from anywhere: every value is checked, nothing is executed.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from largebatch.models import MODELS, Model
from largebatch.registry import is_reference
from largebatch.weights.weights import About, WeightsError

MARK = "largebatch"
"""The name whose presence tells our files from others; its value is the version below."""
VERSION = 1

_MODEL = {"name": str, "classes": int, "channels": int, "width": int, "stem": str, "epsilon": float}
_STEMS = ("conv7", "space_to_depth", "small")


# Where the weights were read says where that machine keeps things, which is nobody's business.
_WRITTEN = tuple(field.name for field in dataclasses.fields(About) if field.name != "origin")


def encode(weights: About) -> dict[str, str]:
    """The texts of a file."""
    body = {name: getattr(weights, name) for name in _WRITTEN}
    body["model"] = {name: getattr(weights.model, name) for name in _MODEL}
    return {
        MARK: str(VERSION),
        **{name: json.dumps(value, ensure_ascii=False) for name, value in body.items()},
    }


def decode(texts: Mapping[str, str] | None, where: str) -> About | None:
    """The inverse of `encode`; None for a file that is not ours.

    Raises:
      WeightsError: a text is missing or is not what `encode` writes.
    """
    if not texts or MARK not in texts:
        return None
    if texts[MARK] != str(VERSION):
        raise WeightsError(
            f"{where}: its metadata are of version {texts[MARK][:20]!r}, this program reads "
            f"{VERSION}; export it anew"
        )
    body = {name: _parsed(texts, name, where) for name in _WRITTEN}
    return checked(body | {"model": _model(body["model"], where), "origin": where}, where)


def checked(body: Mapping[str, Any], where: str) -> About:
    """An `About` of values of unknown types; the model is one already.

    Raises:
      WeightsError: a value is not of its kind, or normalisation and model do not fit.
    """
    model = body["model"]
    classes = body["classes"]
    if not isinstance(classes, list | tuple) or not all(isinstance(c, str) for c in classes):
        raise WeightsError(f"{where}: classes are {_shown(classes)}, no list of names")
    if classes and len(classes) != model.classes:
        raise WeightsError(
            f"{where}: {len(classes):,} names of classes for a head of {model.classes:,}"
        )
    means, deviations = (
        _numbers(body[name], name, model.channels, where) for name in ("mean", "std")
    )
    if min(deviations) <= 0:
        raise WeightsError(f"{where}: std is {deviations}; it must be above 0")
    shape = body["image_shape"]
    if (
        not isinstance(shape, list | tuple)
        or len(shape) != 3
        or not all(type(side) is int and 0 < side < 2**16 for side in shape)
        or shape[2] != model.channels
    ):
        raise WeightsError(
            f"{where}: image_shape is {_shown(shape)}, no height, width and {model.channels} "
            "channels"
        )
    (crop,) = _numbers([body["evaluation_crop"]], "evaluation_crop", 1, where)
    if not 0 < crop <= 1:
        raise WeightsError(f"{where}: evaluation_crop is {crop}; it must be in (0, 1]")
    if body["resampling"] not in ("linear", "antialias"):
        raise WeightsError(
            f"{where}: resampling is {_shown(body['resampling'])}, linear or antialias"
        )
    for name in ("origin", "data"):
        if not isinstance(body[name], str):
            raise WeightsError(f"{where}: {name} is {_shown(body[name])}, no text")
    return About(
        model=model,
        classes=tuple(classes),
        mean=means,
        std=deviations,
        image_shape=tuple(shape),
        evaluation_crop=crop,
        **{name: body[name] for name in ("resampling", "origin", "data")},
    )


def _model(value: Any, where: str) -> Model:
    if not isinstance(value, dict) or value.keys() != _MODEL.keys():
        raise WeightsError(f"{where}: model is {_shown(value)}, not {', '.join(_MODEL)}")
    for name, kind in _MODEL.items():
        if type(value[name]) is not kind or (kind is not str and not 0 < value[name] < 2**31):
            raise WeightsError(f"{where}: model.{name} is {_shown(value[name])}")
    if is_reference(value["name"]):
        raise WeightsError(
            f"{where} holds a user's module, model.name={_shown(value['name'])}, which is not "
            "imported because a file names it; give the run or checkpoint that it is from"
        )
    for name, known in (("name", MODELS), ("stem", _STEMS)):
        if value[name] not in known:
            raise WeightsError(
                f"{where}: model.{name} is {_shown(value[name])}; known: {', '.join(known)}"
            )
    return Model(**value)


def _parsed(texts: Mapping[str, str], name: str, where: str) -> Any:
    if name not in texts:
        raise WeightsError(f"{where}: its metadata lack {name}")
    try:
        return json.loads(texts[name])
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{where}: its metadata {name} are no JSON") from error


def _numbers(value: Any, name: str, count: int, where: str) -> tuple[float, ...]:
    good = (
        isinstance(value, list | tuple)
        and len(value) == count
        and all(type(x) in (int, float) and math.isfinite(x) for x in value)
    )
    if not good:
        raise WeightsError(f"{where}: {name} is {_shown(value)}; it takes {count} number(s)")
    return tuple(map(float, value))


def _shown(value: Any) -> str:
    """A value of unknown size, on one short line."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
