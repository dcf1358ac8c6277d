"""Errors that users can fix: one line with the option or file, the value found and the fix."""

import difflib
import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_LONGEST = 200
"""Characters of a value in a message."""


class UserError(Exception):
    """A mistake that the user can fix; printed without a traceback, exit code 2."""

    def __init__(self, *arguments: object, unused: tuple[str, ...] = ()) -> None:
        """Create an error.

        Args:
          arguments: the message.
          unused: options that the run has no use for, so that their defaults avoid the error.
        """
        super().__init__(*arguments)
        self.unused = unused


class ConfigError(UserError):
    """An unknown option, an invalid value or an impossible combination of options."""


class DataError(UserError):
    """A dataset that is missing, unreadable or different from the configuration."""


class CheckpointError(UserError):
    """A checkpoint that is missing, unreadable or from a different run."""


class HealthError(UserError):
    """Training diverged, became non-finite or made no progress."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest known name, or the list of all known names."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def counted(number: int, noun: str) -> str:
    """Return '1 device' or '8 devices'; a noun in -ch or -s gets -es."""
    plural = f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def own_line(error: BaseException) -> str:
    """Return where a user's own module raised an error: ' (FILE:LINE)', or an empty text.

    It is the innermost line outside this package and outside installed packages.
    """
    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "purelib", "platlib")]
    others = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parent, *installed))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *others)):
            return f" ({os.path.relpath(frame.filename)}:{frame.lineno})"
    return ""


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type."""
    return str(error).partition("\n")[0] or type(error).__name__


def shown(value: Any) -> str:
    """Format any value for a message: one line, truncated if long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # repr() of the value may raise anything, also for too many digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
