"""The command line that train.py and all scripts share. Imports no JAX: mistakes come first.

A command has flags (``--workdir=runs/a``) and, where it trains or plans, options of the recipe
(``--config.section.key=value``). The recipe is ``--config=RECIPE`` or a word of its own, a name
from ``configs/`` or a file. Dashes in flags may be written as underscores and the other way round.
A mistake is one line, ``error: …``, and exit code 2.
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
from largebatch.config import command_line, recipe_file
from largebatch.config.synonyms import advice
from largebatch.config.values import any_of
from largebatch.errors import ConfigError

Overrides = list[tuple[str, str]]
_KINDS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises every mistake as a `ConfigError`.

    `largebatch.fault_tolerance.exit_code` prints it as one line, and exit code 2 follows.
    """

    def __init__(self, description: str | None = None, **options: Any) -> None:
        """Make a parser without flags of its own.

        Args:
          description: for ``--help``; the docstring of the command.
          **options: of `argparse.ArgumentParser`.
        """
        # Room for the longest flag, so that each has one line.
        shape = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=26)
        options = {"formatter_class": shape, "allow_abbrev": False, "add_help": False} | options
        super().__init__(description=description, **options)
        self._takes_recipe, self._default, self._optional = False, None, False
        self.add_argument(
            "-h", "--help", action="help", help="show this text; --version: the version"
        )
        self.add_argument(
            "--version",
            action="version",
            version=f"largebatch {__version__}",
            help=argparse.SUPPRESS,  # named in the line of --help
        )

    def add_recipe(self, help: str, *, default: str | None = None, optional: bool = False) -> None:
        """Add ``--config``, which may also be given as a word without a flag.

        Args:
          help: text behind the flag.
          default: name of the recipe where none is given.
          optional: whether a command line without a recipe, and without a default, is complete.
        """
        self._takes_recipe, self._default, self._optional = True, default, optional
        self.add_argument("--config", metavar="RECIPE", help=help)

    def add_record(self, *, required: bool = False) -> None:
        """Add ``--json FILE``, the file of a record; ``--out`` is its old name."""
        self.add_argument(
            *("--json", "--out"),
            type=Path,
            required=required,
            metavar="FILE",
            help="file for the record; --out is the old name",
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse a command line without options of a recipe.

        Raises:
          ConfigError: a mistake of any kind.
        """
        flags, overrides = self.parse_run(args, namespace)
        if overrides:
            raise ConfigError(
                f"--config.{overrides[0][0]}: this command takes no --config.section.key=value"
            )
        return flags

    def parse_run(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, Overrides]:
        """Parse a command line with options of a recipe.

        Returns:
          The flags, where ``config`` is the recipe's path; and the options, as (key, text).

        Raises:
          ConfigError: a mistake of any kind.
        """
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        overrides, others = command_line.split(words[:end])
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
        """As argparse, but ``--a-b`` and ``--a_b`` are the same flag."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        spelled = {_plain(flag): flag for flag in self._option_string_actions}
        for i, word in enumerate(words[:end]):
            name, equals, value = word.partition("=")
            if name.startswith("--") and name not in self._option_string_actions:
                words[i] = spelled.get(_plain(name), name) + equals + value
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise a mistake as what the other mistakes are, in place of argparse's usage and exit.

        Raises:
          ConfigError: always.
        """
        raise ConfigError(_reworded(message))

    def _check_known(self, rest: Sequence[str], words: Sequence[str]) -> None:
        """Refuse flags that do not exist, with what to write in their place."""
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
        """The recipe's path, from the flag, the word or the default."""
        given = [*([flag] if flag else []), *rest]
        if len(given) > 1:
            raise ConfigError(f"one recipe can be given, got {' and '.join(map(repr, given))}")
        if not given and self._default is None and not self._optional:
            raise ConfigError(
                "no recipe is given; write --config=NAME, one that scripts/recipes.py lists, or a "
                "file"
            )
        name = given[0] if given else self._default
        return recipe_file.find(name) if name else None


def written(overrides: Overrides) -> list[str]:
    """Options as words of a command line, to pass on to another command."""
    return [f"--config.{key}={text}" for key, text in overrides]


def _plain(flag: str) -> str:
    return flag.replace("-", "_")


def _reworded(message: str) -> str:
    """A message of argparse in the form of our own."""
    found = re.fullmatch(r"argument (\S+?)(?:/\S+)?: (.*)", message, re.DOTALL)
    if found is None:
        missing = re.fullmatch(r"the following arguments are required: (.*)", message)
        if missing is None:
            return message
        names = [name.partition("/")[0] for name in missing[1].split(", ")]  # without old names
        return f"{' and '.join(names)} must be given; see --help"
    name, said = found[1], found[2]
    if choice := re.fullmatch(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", said):
        words = [word.strip(" '") for word in choice[2].split(",")]
        near = difflib.get_close_matches(choice[1], words, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{name}={choice[1]}: expected {any_of(words)}{hint}"
    if value := re.fullmatch(r"invalid (\w+) value: '?(.*?)'?", said):
        return f"{name}={value[2]}: expected {_KINDS.get(value[1], value[1])}"
    if said.startswith("expected "):
        return f"{name} has no value; write {name}=VALUE"
    return f"{name}: {said}"
