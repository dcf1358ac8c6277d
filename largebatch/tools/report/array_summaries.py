"""What a run's files may hold where a page counts on a kind: they can be any JSON."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from largebatch.tracking.summary import Summary

Row = Mapping[str, Any]
Kind = Callable[[Any], bool]
_LARGEST = 2**63


def is_number(value: object) -> bool:
    """Whether a value can be counted with: finite, and no larger than any count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < _LARGEST


def config(found: Row, remarks: list[str]) -> Row:
    """`config.json` with sections that are mappings and a plan of numbers."""
    where = "config.json"
    found = _sound(found, dict.fromkeys(("config", "plan", "environment"), _is_row), where, remarks)
    inner = {
        "config": dict.fromkeys(found.get("config", ()), _is_row),
        "plan": dict.fromkeys(("steps", "samples_per_step"), _is_number_or_none),
        "environment": {"versions": _is_row},
    }
    return {
        key: _sound(value, inner[key], where, remarks, f"{key}.") if key in inner else value
        for key, value in found.items()
    }


def summary(found: Row, remarks: list[str]) -> Row:
    """`summary.json` with numbers and a status."""
    return _sound(found, _SUMMARY, "summary.json", remarks)


def row(found: Row, file: str, remarks: list[str]) -> Row:
    """A row of a log with its position, and the columns that are shown as they are.

    Other columns are asked for by `Rows.column`, which takes numbers only.
    """
    return _sound(found, _ROWS[file], file, remarks)


def _sound(
    found: Row, kinds: Mapping[str, Kind], where: str, remarks: list[str], prefix: str = ""
) -> Row:
    """Without the values that are not of their kind, each of which is remarked on once."""
    wrong = [key for key, kind in kinds.items() if key in found and not kind(found[key])]
    for key in wrong:
        remark = f"{where}: {prefix}{key} is not what it should be and was left out."
        if remark not in remarks:
            remarks.append(remark)
    return {key: value for key, value in found.items() if key not in wrong} if wrong else found


def _is_row(value: object) -> bool:
    return isinstance(value, dict)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number_or_none(value: object) -> bool:
    return value is None or is_number(value)


def _is_loggable(value: object) -> bool:
    """NaN and the infinities stand in logs of a run that diverged."""
    return isinstance(value, float) or _is_number_or_none(value)


def _is_step(value: object) -> bool:
    return isinstance(value, int) and is_number(value)


_SUMMARY: Mapping[str, Kind] = {
    field.name: _is_text if field.name == "status" else _is_number_or_none
    for field in dataclasses.fields(Summary)
}
_VALIDATION = tuple(f"validation/{name}" for name in ("top1", "top5", "loss"))
_SHOWN = ("samples", "epoch", "images_per_s", *_VALIDATION)
_ROWS: Mapping[str, Mapping[str, Kind]] = {
    "metrics.jsonl": {"step": _is_step, **dict.fromkeys(_SHOWN, _is_loggable)},
    "layers.jsonl": {"step": _is_step, "samples": _is_loggable, "layers": _is_row},
    "events.jsonl": {
        "event": _is_text,
        **dict.fromkeys(("time", "step", "samples"), _is_number_or_none),
    },
}
