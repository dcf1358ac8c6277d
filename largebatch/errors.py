"""What a user can get wrong, each told in one line: the field or file, the numbers, the remedy."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend; printed without a traceback, exit code 2."""


class ConfigError(UserError):
    """A configuration key, value or combination that cannot be run."""


class DataError(UserError):
    """A data set that is missing, unreadable or not what the configuration says."""


class CheckpointError(UserError):
    """A checkpoint that is missing, unreadable or of another run."""


class HealthError(UserError):
    """A training that comes to nothing: not finite, diverged or stuck."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known name, or the list of all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def one_line(error: BaseException) -> str:
    """The first line of an error's message, or its type's name."""
    return str(error).partition("\n")[0] or type(error).__name__
