"""Where a data set probably is, when it is not where it was said to be."""

import os
from collections.abc import Callable, Iterator

from largebatch.files import folders

_LOOKED_AT = 200  # folders within a folder: a glance, not a search


def nearby(directory: str, fits: Callable[[str], bool]) -> str | None:
    """A directory near another that holds what that one should.

    A path is mostly one level too long or too short, or a sibling's.

    Args:
        directory: Absolute path of what was given, whether it exists or not.
        fits: Whether a directory is such as was expected.

    Returns:
        The first that fits of: the two levels above, the folders within, the folders beside.
    """
    above = os.path.dirname(directory)
    for candidate in (
        above,
        os.path.dirname(above),
        *_within(directory),
        *(beside for beside in _within(above) if beside != directory),
    ):
        if fits(candidate):
            return candidate
    return None


def holds(directory: str) -> str:
    """What a directory holds, for a message."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be listed ({error.strerror})"
    examples = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"holds {len(names):,} entries: {examples}" if names else "is empty"


def _within(directory: str) -> Iterator[str]:
    try:
        found = folders(directory)
    except OSError:
        return
    for name in found[:_LOOKED_AT]:
        yield os.path.join(directory, name)
