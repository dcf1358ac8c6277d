"""Pieces of HTML; every text from outside is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape

from largebatch.report.facts import Fact


def text(value: object) -> str:
    """Any value as text within HTML, in attributes too; no line ends before a per cent sign."""
    return escape(str(value), quote=True).replace(" %", "\u00a0%")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A table in a box of its own, which scrolls where the window is narrow.

    The box can be reached by keyboard and says what it holds.
    """
    cells = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{text(row[0])}</th>'
        + "".join(f"<td>{text(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def tiles(facts: Iterable[Fact]) -> str:
    """Facts large, side by side."""
    return (
        '<dl class="tiles">'
        + "".join(
            f'<div><dt>{text(fact.name)}</dt><dd class="value">{text(fact.value)}</dd>'
            f'<dd class="more">{text(fact.more)}</dd></div>'
            for fact in facts
        )
        + "</dl>"
    )


def listing(facts: Iterable[Fact]) -> str:
    """Facts small, one a line."""
    rows = "".join(f"<dt>{text(f.name)}</dt><dd>{text(f.value)}</dd>" for f in facts)
    return f'<dl class="facts">{rows}</dl>'


def figure(title: str, caption: str, pictures: Sequence[tuple[str, str]], order: int = 0) -> str:
    """A figure with its heading; pictures are (axis, SVG), of which the page shows one.

    Order is its place where a narrow window has one column.
    """
    drawn = "".join(
        f'<div class="on-{text(axis)}">{svg}</div>' if axis else f"<div>{svg}</div>"
        for axis, svg in pictures
    )
    place = f' style="order:{order}"' if order else ""
    said = f"<figcaption>{text(caption)}</figcaption>"
    return f"<figure{place}><h3>{text(title)}</h3>{drawn}{said}</figure>"


def section(key: str, title: str, body: str) -> str:
    """A part of the page; none where it would be empty."""
    if not body:
        return ""
    return f'<section id="{text(key)}"><h2>{text(title)}</h2>{body}</section>'
