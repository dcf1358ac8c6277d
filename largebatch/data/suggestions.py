"""What messages say of a directory that is not what it should be, and where else to look."""

import os
from collections.abc import Callable, Iterator

from largebatch.files import folders

_LOOKED_AT = 200  # folders within a folder that `nearby` tries


def nearby(directory: str, fits: Callable[[str], bool]) -> str | None:
    """Return a directory near a wrong path that holds what is expected there, for messages.

    Args:
        directory: Absolute path that was given; it need not exist.
        fits: Whether a directory holds what is expected.

    Returns:
        The first that fits of the two parents, the folders within and the siblings; or None.
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
    """Return what a directory holds, for messages: a clause after its name."""
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
