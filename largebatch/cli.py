"""The command-line parser of train.py and all scripts. It does not import JAX.

A command has flags (``--workdir=runs/a``). A command that trains or plans also takes a recipe and
overrides of its options (``--config.section.key=value``). The recipe is ``--config=RECIPE`` or a
positional argument, a name from ``configs/`` or a file. In flags, dashes and underscores are
equivalent. A mistake prints one line, ``error: …``, and the exit code is 2.
"""

import argparse
import difflib
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from largebatch import __version__
from largebatch.config import recipe_file
from largebatch.config.synonyms import advice
from largebatch.environment import command_path
from largebatch.errors import ConfigError, did_you_mean, shown

Overrides = list[tuple[str, str]]
_PREFIX = "--config."
_KINDS = {"int": "an integer", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises a `ConfigError` for every mistake.

    `largebatch.fault_tolerance.exit_code` prints the error in one line and returns exit code 2.
    """

    def __init__(self, description: str | None = None, **options: Any) -> None:
        """Create a parser with the flags ``--help`` and ``--version``.

        Args:
          description: text for ``--help``, usually the docstring of the command.
          **options: arguments of `argparse.ArgumentParser`.
        """
        # Wide enough for the longest flag, so that each flag has one line.
        shape = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=26)
        options = {"formatter_class": shape, "allow_abbrev": False, "add_help": False} | options
        super().__init__(description=description, **options)
        self._takes_recipe, self._default, self._optional = False, None, False
        self.add_argument(
            "-h", "--help", action="help", help="print this help; --version prints the version"
        )
        self.add_argument(
            "--version",
            action="version",
            version=f"largebatch {__version__}",
            help=argparse.SUPPRESS,  # the line of --help mentions it
        )

    def add_recipe(self, help: str, *, default: str | None = None, optional: bool = False) -> None:
        """Add ``--config``, which is also accepted as a positional argument.

        Args:
          help: help text of the flag.
          default: name of the default recipe.
          optional: whether the recipe may be missing without a default.
        """
        self._takes_recipe, self._default, self._optional = True, default, optional
        self.add_argument("--config", metavar="RECIPE", help=help)

    def add_trust(self) -> None:
        """Add ``--trust MODULE``, the user's own modules that may be imported."""
        self.add_argument(
            "--trust",
            action="append",
            default=[],
            metavar="MODULE",
            help="import this module of yours if WEIGHTS names it: mine or folder/mine.py",
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse a command line that has no overrides.

        Raises:
          ConfigError: an argument is invalid.
        """
        flags, overrides = self.parse_run(args, namespace)
        if overrides:
            raise ConfigError(
                f"--config.{overrides[0][0]}: this command takes no options of a recipe; remove it"
            )
        return flags

    def parse_run(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, Overrides]:
        """Parse a command line with overrides of a recipe's options.

        Returns:
          The flags, with the recipe's path as ``config``; and the overrides as (key, text).

        Raises:
          ConfigError: an argument is invalid.
        """
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        overrides, others = split_overrides(words[:end])
        flags, rest = self.parse_known_args([*others, *words[end:]], namespace)
        self._check_known(rest, words[:end])
        if self._takes_recipe:
            flags.config = self._recipe_of(flags.config, rest)
        elif rest:
            raise ConfigError(f"unknown argument {rest[0]!r}; see --help")
        return flags, overrides

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse known arguments like argparse, with ``--a-b`` equivalent to ``--a_b``."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        spelled = {_plain(flag): flag for flag in self._option_string_actions}
        for i, word in enumerate(words[:end]):
            name, equals, value = word.partition("=")
            if name.startswith("--") and name not in self._option_string_actions:
                words[i] = spelled.get(_plain(name), name) + equals + value
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse as a `ConfigError` instead of printing the usage.

        Raises:
          ConfigError: always.
        """
        flag = re.fullmatch(r"argument (\S+?)(?:/\S+)?: expected (?:one|\d+) argument", message)
        action = self._option_string_actions.get(flag[1]) if flag else None
        if action is not None and action.help:
            value = action.metavar if isinstance(action.metavar, str) else "VALUE"
            raise ConfigError(f"{flag[1]} has no value; use {flag[1]}={value}: {action.help}")
        raise ConfigError(_reworded(message))

    def _check_known(self, rest: Sequence[str], words: Sequence[str]) -> None:
        """Raise a ConfigError for unknown flags, with a suggestion."""
        for word in rest:
            if not word.startswith("-") or word in ("-", "--"):
                continue
            name, equals, value = word.partition("=")
            if not equals:  # its value may be the next word
                after = words[words.index(word) + 1 :] if word in words else ()
                value = after[0] if after and not after[0].startswith("-") else ""
            known = {flag.strip("-"): flag for flag in self._option_string_actions}
            near = difflib.get_close_matches(name.strip("-"), known, n=1)
            hint = f"did you mean {known[near[0]]!r}?" if near else ""
            if self._takes_recipe:
                hint = advice(name, value) or hint
                hint = hint or "options are written --config.section.key=value, flags are in --help"
            raise ConfigError(f"unknown argument {word!r}; {hint or 'see --help'}")

    def _recipe_of(self, flag: str | None, rest: Sequence[str]) -> Path | None:
        """Return the path of the recipe from the flag, the positional argument or the default."""
        given = [*([flag] if flag else []), *rest]
        if len(given) > 1:
            raise ConfigError(
                f"--config: expected one recipe, got {' and '.join(map(repr, given))}"
            )
        if not given and self._default is None and not self._optional:
            raise ConfigError(
                "--config: no recipe is given; use a file, or a name that python "
                f"{command_path('scripts/recipes.py')} lists"
            )
        name = given[0] if given else self._default
        return recipe_file.find(name) if name else None


def written(overrides: Overrides) -> list[str]:
    """Return overrides as arguments for the command line of another program."""
    return [f"--config.{key}={text}" for key, text in overrides]


def _plain(flag: str) -> str:
    return flag.replace("-", "_")


def _reworded(message: str) -> str:
    """Rephrase a message of argparse in the form of our own messages."""
    found = re.fullmatch(r"argument (\S+?)(?:/\S+)?: (.*)", message, re.DOTALL)
    if found is None:
        missing = re.fullmatch(r"the following arguments are required: (.*)", message)
        if missing is None:
            return message
        names = [name.partition("/")[0] for name in missing[1].split(", ")]  # without old names
        return f"{' and '.join(names)} must be given; see --help"
    name, problem = found[1], found[2]
    if choice := re.fullmatch(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", problem):
        words = [word.strip(" '") for word in choice[2].split(",")]
        return f"{name}={choice[1]}: {did_you_mean(choice[1], words)}"
    if value := re.fullmatch(r"invalid (\w+) value: '?(.*?)'?", problem):
        return f"{name}={value[2]}: expected {_KINDS.get(value[1], value[1])}"
    if re.match(r"expected (one|at least one|\d+) argument", problem):
        return f"{name} has no value; use {name}=VALUE"
    return f"{name}: {problem}"


def split_overrides(arguments: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split command-line arguments into overrides and other arguments.

    Returns:
      (section.key, text) of each ``--config.section.key=value`` or ``--config.section.key value``;
      and the other arguments.

    Raises:
      ConfigError: an override has no value.
    """
    pairs, others, rest = [], [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith(_PREFIX):
            others.append(argument)
            continue
        key, equals, text = argument.removeprefix(_PREFIX).partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                option = shown(argument)[1:-1]
                raise ConfigError(f"{option} has no value; use {option}=VALUE")
            text = rest.pop(0)
        pairs.append((key, text))
    return pairs, others
