"""Tables of Markdown pages, and the blocks that a command generates in them."""

import re
from collections.abc import Iterable, Mapping, Sequence

_BLOCK = re.compile(r"<!-- generated: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)


def table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def insert(page: str, blocks: Mapping[str, str]) -> str:
    """Return a page with its generated blocks replaced; all else is written by hand.

    A block lies between ``<!-- generated: NAME -->`` and ``<!-- end -->``.

    Raises:
      ValueError: the page does not have exactly these blocks.
    """
    found = [name for name, _ in _BLOCK.findall(page)]
    if sorted(found) != sorted(blocks):
        raise ValueError(f"the page has the blocks {sorted(found)}, expected {sorted(blocks)}")
    return _BLOCK.sub(
        lambda m: f"<!-- generated: {m[1]} -->\n\n{blocks[m[1]]}\n\n<!-- end -->", page
    )


def percent(share: float, digits: int = 1) -> str:
    """Return a share in percent with its sign."""
    return f"{100 * share:+.{digits}f} %".replace("-", "−")


def ms(seconds: float, digits: int = 1) -> str:
    """Return seconds in milliseconds."""
    return f"{1e3 * seconds:,.{digits}f}"
