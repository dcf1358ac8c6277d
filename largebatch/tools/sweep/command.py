"""Commands of trials."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from largebatch.tools.sweep.space import Choice


def options(
    recipe: Path, overrides: Sequence[tuple[str, str]], choice: Choice, workdir: Path
) -> tuple[str, ...]:
    """The arguments of train.py that run a trial."""
    pairs = [*overrides, *choice.items()]
    return (
        f"--config={recipe}",
        f"--workdir={workdir}",
        *(f"--config.{key}={value}" for key, value in pairs),
    )


def pasteable(arguments: Sequence[str]) -> str:
    """The command line of train.py with these arguments, quoted for a shell."""
    return "python train.py " + " ".join(map(_quoted, arguments))


def _quoted(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"{name}{equals}{shlex.quote(value)}" if equals else shlex.quote(argument)
