"""Markdown of generated pages: tables, numbers, prose filled to the page's width."""

import re
import textwrap
from collections.abc import Iterable, Sequence

_WIDTH = 110


def flowed(section: str) -> str:
    """Prose and items of lists filled to the page's width; all else as it is."""
    blocks = []
    # A blank line inside of a fence divides nothing.
    for block in re.findall(r"```.*?```|[^\n](?:(?!\n\n).)*", section.strip(), re.DOTALL):
        head, _, rest = block.partition("\n")
        if head.startswith("#") and rest:
            blocks.append(f"{head}\n{flowed(rest)}")
        elif block.startswith(("#", "|", "!", "```")):
            blocks.append(block)
        else:
            items = re.split(r"\n(?=- )", block)
            lines = [
                textwrap.fill(
                    " ".join(item.split()),
                    _WIDTH,
                    subsequent_indent="  " if item.startswith("- ") else "",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                for item in items
            ]
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def percent(share: float, digits: int = 1) -> str:
    """A share with its sign, as in an error."""
    return f"{100 * share:+.{digits}f} %".replace("-", "−")


def ms(seconds: float, digits: int = 1) -> str:
    """Milliseconds of seconds."""
    return f"{1e3 * seconds:.{digits}f}"
