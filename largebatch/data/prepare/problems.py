"""What goes wrong, in words."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from largebatch.errors import DataError

_LISTED = 20


def counted(what: str, lines: Sequence[str]) -> str:
    """How many there are, the first of them, and how many more.

    Args:
        what: Such as `corrupt images`.
        lines: One for each.
    """
    more = f"; and {len(lines) - _LISTED:,} more" if len(lines) > _LISTED else ""
    return f"{len(lines):,} {what}: {'; '.join(lines[:_LISTED])}{more}"


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Tells in a line what the operating system refuses while the body runs.

    Args:
        path: What the body reads or writes, named where the error names no file (such as that of
            a full disk).

    Raises:
        DataError: Instead of any OSError.
    """
    try:
        yield
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise DataError(
            f"{error.filename or path}: {reason}; give the same command again once that is mended"
        ) from error
