"""Options that the chosen network, optimizer, schedule or dataset does not use.

A recipe's options are ignored where they are not used, so that a user can replace one part of a
recipe with a single option. Options that the user gave are refused instead.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from largebatch.config.registries import DEPTHS, MODELS, OF_FACTORIES, OPTIMIZERS
from largebatch.config.schema import Config, replaced, value_of
from largebatch.config.sections.model import RESNET_OPTIONS
from largebatch.config.sections.optimizer import Optimizer
from largebatch.config.stages import KEY, split_stage, stages_of
from largebatch.config.values import written
from largebatch.errors import ConfigError, UserError
from largebatch.registry import is_reference

T = TypeVar("T")

_PAIRS = (
    ("schedule.peak", "schedule.per_256"),
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
    ignored = {}
    for pair in _PAIRS:
        if all(_is_set(config, key) for key in pair):
            for key, other in (pair, reversed(pair)):
                if key not in given and other in given:
                    ignored[key] = f"{other}={written(value_of(config, other))}"
    config = reset(config, ignored)
    stages = [stage.config for stage in stages_of(config)]
    others = [{found[0] for found in _unused(each)} for each in stages[1:]]
    for key, choice, needed in _unused(config):
        chosen = [value_of(each, key) for each in stages if _is_set(each, key)]
        if not chosen or not all(key in each for each in others):
            continue
        if key in given or (KEY in given and not _is_set(config, key)):
            raise ConfigError(
                f"{key}={written(chosen[0])} has no effect with {choice}; use "
                f"--config.{key}={written(value_of(Config(), key))}, or {needed}"
            )
        ignored[key] = choice
    return reset(config, ignored), ignored


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
    texts = []
    for text in config.batch.stages:
        begin, changes = split_stage(text)
        kept = [change for change in changes if change.partition("=")[0] not in keys]
        if kept:
            texts.append(text if kept == changes else f"{begin}: {' '.join(kept)}")
    usual = {key: value_of(Config(), key) for key in keys}
    return replaced(config, usual | {KEY: tuple(texts)})


def _is_set(config: Config, key: str) -> bool:
    """Return whether an option differs from its default."""
    return value_of(config, key) != value_of(Config(), key)


def _unused(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield the options without effect, the choice that does not use them, and one that does."""
    name = config.model.name
    if name not in DEPTHS and (name in MODELS or is_reference(name)):
        for key in RESNET_OPTIONS:
            yield key, f"model.name={name}", "a built-in ResNet"
    yield from _unused_by_optimizer(config.optimizer)
    decay, warmup = config.schedule.decay, config.schedule.warmup
    for name, decays in _DECAYS.items():
        if decay not in decays:
            yield (
                f"schedule.{name}",
                f"schedule.decay={decay}",
                f"schedule.decay={' or '.join(decays)}",
            )
    if _NO_DURATION.fullmatch(warmup):
        choice = f"schedule.warmup={written(warmup)}"
        yield "schedule.warmup_start", choice, "a longer schedule.warmup"
    if config.loss.kind != "sigmoid":
        yield "loss.target_threshold", f"loss.kind={config.loss.kind}", "loss.kind=sigmoid"
    source = f"data.source={config.data.source}"
    scheme = config.data.source.partition(":")[0]
    if scheme != "folder":
        yield "data.validation_split", source, "data.source=folder:PATH"
    if scheme == "synthetic":
        for key in ("data.evaluation_size", "data.rectangular"):
            yield key, source, "a source of photographs"


def _unused_by_optimizer(rule: Optimizer) -> Iterator[tuple[str, str, str]]:
    """Yield the options of the section ``optimizer`` that the update rule does not use."""
    choice = f"optimizer.name={rule.name}"
    if rule.name not in OPTIMIZERS:
        for field in dataclasses.fields(rule):
            if field.name not in OF_FACTORIES:
                yield f"optimizer.{field.name}", choice, "optimizer.options for its arguments"
        return
    yield "optimizer.options", choice, "optimizer.name=optax:NAME or package.module:factory"
    for option in dict.fromkeys(option for each in OPTIMIZERS.values() for option in each.options):
        users = [name for name, each in OPTIMIZERS.items() if option in each.options]
        if rule.name not in users:
            yield f"optimizer.{option}", choice, f"optimizer.name={' or '.join(users)}"
