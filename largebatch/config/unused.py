"""Options that the chosen network, optimizer, schedule or dataset does not use.

A recipe's options are ignored where they are not used, so that a user can replace one part of a
recipe with a single option. Options that the user gave are refused instead.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from largebatch.config.registries import DEPTHS, MODELS, OF_FACTORIES, OPTIMIZERS
from largebatch.config.schema import Config, options, replaced
from largebatch.config.sections.model import RESNET_OPTIONS
from largebatch.config.sections.optimizer import Optimizer
from largebatch.config.stages import KEY, split_stage, stages_of
from largebatch.config.values import written
from largebatch.errors import ConfigError, UserError
from largebatch.registry import is_reference

T = TypeVar("T")

_PAIRS = (
    ("schedule.peak", "schedule.per_256"),
    ("augment.policy", "data.crops"),
    ("batch.deadline_s", "health.replay_every"),
)
"""Options of which at most one differs from its default; the user's one replaces the recipe's."""
_DECAYS = {
    "points": ("pieces", "lines"),
    "end": ("polynomial", "linear", "cosine"),
}
"""Options of ``schedule`` and the decays that use them."""
_NO_DURATION = re.compile(r"\s*0+(\.0*)?\s*[a-z%]*\s*")


def ignore_unused(config: Config, given: Collection[str]) -> tuple[Config, dict[str, str]]:
    """Reset the recipe's options that have no effect to their defaults.

    Args:
      config: the configuration of a recipe with the user's options.
      given: the user's options.

    Returns:
      The configuration, and the choice that makes each ignored option useless.

    Raises:
      ConfigError: an option that the user gave has no effect.
    """
    ignored = dict(_replaced(config, given))
    config = reset(config, ignored)
    found = list(_without_effect(config))
    if theirs := [each for each in found if each.key in given or (each.staged and KEY in given)]:
        raise _refusal(theirs)
    ignored |= {each.key: each.choice for each in found}
    return reset(config, ignored), ignored


def check_used(config: Config) -> None:
    """Check that all options have an effect, in a configuration that is not a recipe's.

    Options of one built-in optimizer are accepted with another one.

    Raises:
      ConfigError: an option has none.
    """
    found = list(_without_effect(config))
    if config.optimizer.name in OPTIMIZERS:
        strict = ("options", "rate", "nesterov")
        found = [
            each
            for each in found
            if not each.key.startswith("optimizer.") or each.key.partition(".")[2] in strict
        ]
    if found:
        raise _refusal(found)


def settled(
    config: Config,
    given: Collection[str] | None,
    use: Callable[[Config], T],
    note: Callable[[str], None],
) -> tuple[Config, T]:
    """Call ``use`` with ``config``; without the recipe's options that it has no use for.

    Args:
      config: the configuration.
      given: the user's options, which are not ignored; None for all.
      use: raises an error with `UserError.unused` for such an option.
      note: called with a line for each ignored option.

    Returns:
      The configuration that ``use`` accepted, and its result.

    Raises:
      UserError: any other error of ``use``.
    """
    while True:
        try:
            return config, use(config)
        except UserError as error:
            fewer = config
            if given is not None:
                fewer = reset(config, [key for key in error.unused if key not in given])
            if fewer == config:
                raise
            note(f"an option of the recipe is ignored: {str(error).partition('; ')[0]}")
            config = fewer


def reset(config: Config, keys: Collection[str]) -> Config:
    """Return the configuration with the defaults of the options ``keys``, in all stages."""
    usual = _defaults()
    texts = []
    for text in config.batch.stages:
        begin, changes = split_stage(text)
        kept = [change for change in changes if change.partition("=")[0] not in keys]
        if kept:
            texts.append(text if kept == changes else f"{begin}: {' '.join(kept)}")
    return replaced(config, {key: usual[key] for key in keys} | {KEY: tuple(texts)})


@dataclasses.dataclass(frozen=True)
class _Useless:
    """An option without effect."""

    key: str
    value: Any
    choice: str
    """The choice that does not use the option."""
    needed: str
    """A choice that does."""
    staged: bool
    """Whether only a stage sets the option."""


def _without_effect(config: Config) -> Iterator[_Useless]:
    """Yield the options that differ from their defaults and are used by no stage."""
    stages = [stage.config for stage in stages_of(config)]
    found, values = [dict(_unused(each)) for each in stages], [dict(_values(s)) for s in stages]
    usual = _defaults()
    for key, (choice, needed) in found[0].items():
        chosen = [each[key] for each in values if each[key] != usual[key]]
        if chosen and all(key in each for each in found):
            staged = values[0][key] == usual[key]
            yield _Useless(key, chosen[0], choice, needed, staged)


def _refusal(found: Sequence[_Useless]) -> ConfigError:
    """Return the error of options without effect because of the same choice."""
    first, usual = found[0], _defaults()
    alike = [each for each in found if each.choice == first.choice]
    given = ", ".join(f"{each.key}={written(each.value)}" for each in alike)
    remedy = " ".join(f"--config.{each.key}={written(usual[each.key])}" for each in alike)
    verb = "has" if len(alike) == 1 else "have"
    return ConfigError(
        f"{given} {verb} no effect with {first.choice}; use {remedy}, or {first.needed}"
    )


def _replaced(config: Config, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the recipe's options of `_PAIRS` that an option of the user replaces."""
    values, usual = dict(_values(config)), _defaults()
    for pair in _PAIRS:
        if all(values[key] != usual[key] for key in pair):
            for key, other in (pair, reversed(pair)):
                if key not in given and other in given:
                    yield key, f"{other}={written(values[other])}"


def _unused(config: Config) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the options without effect, the choice that does not use them, and one that does."""
    name = config.model.name
    if name not in DEPTHS and (name in MODELS or is_reference(name)):
        for key in RESNET_OPTIONS:
            yield key, (f"model.name={name}", "a built-in ResNet")
    yield from _unused_by_optimizer(config.optimizer)
    decay, chosen = config.schedule.decay, config.schedule
    for name, decays in _DECAYS.items():
        if decay not in decays:
            yield (
                f"schedule.{name}",
                (f"schedule.decay={decay}", f"schedule.decay={' or '.join(decays)}"),
            )
    if _NO_DURATION.fullmatch(chosen.warmup):
        yield (
            "schedule.warmup_start",
            (f"schedule.warmup={written(chosen.warmup)}", "a longer schedule.warmup"),
        )
    if config.loss.kind != "sigmoid":
        yield "loss.target_threshold", (f"loss.kind={config.loss.kind}", "loss.kind=sigmoid")
    source = f"data.source={config.data.source}"
    scheme = config.data.source.partition(":")[0]
    if scheme != "folder":
        yield "data.validation_split", (source, "data.source=folder:PATH")
    if scheme == "synthetic":
        for name in ("evaluation_size", "rectangular"):
            yield f"data.{name}", (source, "a source of photographs")
    if scheme in ("digits", "synthetic", "folder"):
        yield "data.crops", (source, "data.source=decoded:PATH")


def _unused_by_optimizer(rule: Optimizer) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the options of the section ``optimizer`` that the update rule does not use."""
    choice = f"optimizer.name={rule.name}"
    if rule.name not in OPTIMIZERS:
        for field in dataclasses.fields(rule):
            if field.name not in OF_FACTORIES:
                yield f"optimizer.{field.name}", (choice, "optimizer.options for its arguments")
        return
    yield "optimizer.options", (choice, "optimizer.name=optax:NAME or package.module:factory")
    users: dict[str, list[str]] = {}
    for name, other in OPTIMIZERS.items():
        for option in other.options:
            users.setdefault(option, []).append(name)
    for option, names in users.items():
        if rule.name not in names:
            yield f"optimizer.{option}", (choice, f"optimizer.name={' or '.join(names)}")


def _values(config: Config) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value, _ in options(config))


def _defaults() -> Mapping[str, Any]:
    return {key: field.default for key, _, field in options(Config())}
