"""Which options runs set differently, which of these have an effect, and short names from them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from largebatch.config.optimizers import OPTIMIZERS
from largebatch.config.options import options
from largebatch.config.schema import Config
from largebatch.tools.report.runs import Run

NONE = "–"
_NAMED = 3
"""Most options in the label of a run."""
_LETTERS = 60
"""Most characters of a label."""
_RMSPROP = ("rmsprop_sgd",)
EFFECTIVE: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    **{
        f"optimizer.{option}": (
            "optimizer.name",
            tuple(name for name, rule in OPTIMIZERS.items() if option in rule.options),
        )
        for option in dict.fromkeys(o for rule in OPTIMIZERS.values() for o in rule.options)
    },
    "schedule.blend_centre": ("optimizer.name", _RMSPROP),
    "schedule.blend_period": ("optimizer.name", _RMSPROP),
    "schedule.power": ("schedule.decay", ("polynomial",)),
    "schedule.steps": ("schedule.decay", ("step",)),
    "schedule.factor": ("schedule.decay", ("step",)),
    "schedule.points": ("schedule.decay", ("pieces", "lines")),
    **dict.fromkeys(
        ("schedule.turn", "schedule.width", "schedule.rescale"),
        ("schedule.decay", ("arctangent",)),
    ),
    "schedule.warmup_power": ("schedule.warmup_shape", ("power",)),
    "schedule.weight_decay_warmup": ("schedule.weight_decay", ("follow",)),
}
"""Option → the option that decides whether it has an effect, and the values with which it has."""


class Difference(NamedTuple):
    """An option that runs set differently.

    Attributes:
        key: of the option.
        values: of each run; None where the run has no configuration.
        mathematics: whether it changes what is computed; None where the option is unknown here.
    """

    key: str
    values: tuple[Any, ...]
    mathematics: bool | None


def differing(runs: Sequence[Run]) -> tuple[Difference, ...]:
    """Return the options that not all runs have alike, in the order of the schema.

    Plain dictionaries are compared, so that runs of other versions can be: an option that a version
    did not have is at its default here, or None where it is unknown here. A run without a
    configuration makes no difference. Options without effect in every run are left out.
    """
    known = {key: field for key, _, field in options(Config())}
    every = [run.options for run in runs]
    keys = [*known, *dict.fromkeys(key for found in every for key in found if key not in known)]

    def value(found: Mapping[str, Any], key: str) -> Any:
        default = known[key].default if key in known else None
        default = list(default) if isinstance(default, tuple) else default
        return found.get(key, default) if found else None

    def has_effect(key: str) -> bool:
        decider, values = EFFECTIVE.get(key, (None, ()))
        return decider is None or any(value(found, decider) in values for found in every if found)

    rows = []
    for key in keys:
        values = tuple(value(found, key) for found in every)
        distinct = {repr(each) for each, found in zip(values, every, strict=True) if found}
        if len(distinct) > 1 and has_effect(key):
            mathematics = known[key].metadata["mathematics"] if key in known else None
            rows.append(Difference(key, values, mathematics))
    return tuple(rows)


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a distinct name of each run: the options that distinguish it, or its directory.

    Runs are named by their options (`schedule.peak=0.5`) where one to three options that change
    the mathematics differ, without their sections if there are several. A label that several runs
    would share gets the directory as well.
    """
    found = [each for each in differing(runs) if each.mathematics is not False]
    if not 1 <= len(found) <= _NAMED:
        return [run.name for run in runs]
    keys = [each.key for each in found]
    if len(found) > 1:  # without the section, where that leaves them different
        last = [key.rpartition(".")[2] for key in keys]
        keys = [n if last.count(n) == 1 else k for k, n in zip(keys, last, strict=True)]
    values = [tuple(map(value_text, each.values)) for each in found]
    made = [
        ", ".join(f"{key}={of[index]}" for key, of in zip(keys, values, strict=True))
        if run.options
        else run.name
        for index, run in enumerate(runs)
    ]
    if max(map(len, made)) > _LETTERS:
        return [run.name for run in runs]
    shared = Counter(made)
    return [
        f"{label} ({run.name})" if shared[label] > 1 else label
        for label, run in zip(made, runs, strict=True)
    ]


def value_text(value: object) -> str:
    """Return the value of an option for people; floats with six significant digits."""
    if isinstance(value, str):
        return value or "(empty)"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return NONE if value is None else json.dumps(value, ensure_ascii=False)
