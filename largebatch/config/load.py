"""From a recipe file and command-line overrides to one checked, frozen ``Config``."""

import dataclasses
import importlib.util
import sys
import traceback
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from largebatch.config import values
from largebatch.config.schema import Config
from largebatch.errors import ConfigError, did_you_mean


def default_config() -> ConfigDict:
    """Every option at its default, for a recipe's ``get_config()`` to change."""
    # Not type-safe here: an option such as 'auto' or a number changes its type lawfully; freeze()
    # checks each value against the schema.
    return ConfigDict(dataclasses.asdict(Config()), type_safe=False).lock()


def freeze(config: Mapping[str, Any]) -> Config:
    """The typed form of a nested mapping of options.

    Raises:
      ConfigError: an unknown section or key (with the nearest known one), or a value of a wrong
      type.
    """
    sections = _fields(Config)
    built = {}
    for section, options in config.items():
        if section not in sections:
            raise ConfigError(
                f"unknown section {section!r} in the configuration; "
                f"{did_you_mean(str(section), sections)}"
            )
        if not isinstance(options, Mapping | ConfigDict):
            raise ConfigError(f"section {section!r} is {options!r}; give its options by name")
        known = _fields(sections[section])
        for key in options:
            if key not in known:
                raise ConfigError(_unknown(section, str(key)))
        built[section] = sections[section](
            **{key: values.check(known[key], v, f"{section}.{key}") for key, v in options.items()}
        )
    return Config(**built)


def load(path: str | Path, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Read the recipe file at ``path`` and apply ``overrides`` such as ('run.seed', '3').

    The file is Python with a ``get_config()`` that returns ``default_config()`` changed.

    Raises:
      ConfigError: no such file; it raises; or an option is unknown or has a wrong value.
    """
    config = freeze(_execute(Path(path)))
    for key, text in overrides:
        config = override(config, key, text)
    return config


def override(config: Config, key: str, text: str) -> Config:
    """``config`` with the option ``section.key`` read from ``text``."""
    section, dot, name = key.partition(".")
    sections = _fields(Config)
    if section not in sections:
        raise ConfigError(
            f"unknown option {key!r}; " + _nearest_option(key, did_you_mean(section, sections))
        )
    known = _fields(sections[section])
    if not dot or name not in known:
        raise ConfigError(_unknown(section, name))
    value = values.read(known[name], text, key)
    changed = dataclasses.replace(getattr(config, section), **{name: value})
    return dataclasses.replace(config, **{section: changed})


def options(config: Config) -> Iterator[tuple[str, Any, dataclasses.Field]]:
    """Each option of ``config`` as ('section.key', value, its declaration)."""
    for section in dataclasses.fields(config):
        chosen = getattr(config, section.name)
        for field in dataclasses.fields(chosen):
            yield f"{section.name}.{field.name}", getattr(chosen, field.name), field


def changed(config: Config) -> dict[str, Any]:
    """The options that differ from their defaults."""
    return {key: value for key, value, field in options(config) if value != field.default}


def _execute(path: Path) -> ConfigDict:
    if path.suffix != ".py" or not path.is_file():
        where = path.parent if path.parent.is_dir() else Path("configs")
        recipes = sorted(str(p) for p in where.glob("*.py"))
        raise ConfigError(
            f"no recipe file {path}; {did_you_mean(str(path), recipes)}"
            if recipes
            else f"no recipe file {path}; give a Python file with get_config()"
        )
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = (
        sys.dont_write_bytecode,
        True,
    )  # a recipe leaves no cache behind
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise ConfigError(
                f"{path} has no get_config(); add one that returns default_config() changed"
            )
        result = module.get_config()
    except ConfigError:
        raise
    except SyntaxError as error:
        raise ConfigError(f"{path} line {error.lineno}: {error.msg}; mend the file") from error
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"{path} line {lines[-1] if lines else '?'} raised {type(error).__name__}: {first}; "
            "mend the file"
        ) from error
    finally:
        sys.dont_write_bytecode = written
    if not isinstance(result, Mapping | ConfigDict):
        raise ConfigError(
            f"{path}: get_config() returned {type(result).__name__}, not a configuration"
        )
    return result


def _fields(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _unknown(section: str, key: str) -> str:
    known = _fields(_fields(Config)[section])
    hint = _nearest_option(f"{section}.{key}", did_you_mean(key, known))
    return f"unknown option '{section}.{key}'; {hint}"


def _nearest_option(key: str, otherwise: str) -> str:
    """A hint at the option whose last name is the one given, in whatever section it stands."""
    name = key.rpartition(".")[2]
    same = [known for known, _, _ in options(Config()) if known.rpartition(".")[2] == name]
    return f"did you mean {same[0]!r}?" if same else otherwise
