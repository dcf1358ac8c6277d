"""Pieces of HTML; every text from outside is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape

from largebatch.tools.report.charts import Bars
from largebatch.tools.report.summary import Cell, Fact


def text(value: object) -> str:
    """Any value as text within HTML, in attributes too; no line ends before a per cent sign."""
    return escape(str(value), quote=True).replace(" %", "\u00a0%")


def table(head: Sequence[str], rows: Iterable[Sequence[str | Cell]], caption: str) -> str:
    """A table in a box that scrolls where the window is narrow.

    The box can be reached by keyboard and says what it holds. A table of `Cell` can be sorted by
    its columns.
    """
    rows = [list(row) for row in rows]
    sortable = any(isinstance(cell, Cell) for row in rows for cell in row)
    names = (f"<button>{text(name)}</button>" if sortable else text(name) for name in head)
    cells = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(
        f"<tr>{_cell('th', row[0])}{''.join(_cell('td', cell) for cell in row[1:])}</tr>"
        for row in rows
    )
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table{kind}><thead><tr>{cells}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(tag: str, cell: str | Cell) -> str:
    scope = ' scope="row"' if tag == "th" else ""
    if not isinstance(cell, Cell):
        return f"<{tag}{scope}>{text(cell)}</{tag}>"
    value = "" if cell.value is None else text(cell.value)
    best = ' class="best" title="best of the column"' if cell.best else ""
    return f'<{tag}{scope} data-value="{value}"{best}>{text(cell.text)}</{tag}>'


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


def figure(title: str, caption: str, body: str, classes: str = "") -> str:
    """A figure with its heading and caption."""
    said = f"<figcaption>{text(caption)}</figcaption>"
    kind = f' class="{classes}"' if classes else ""
    return f"<figure{kind}><h3>{text(title)}</h3>{body}{said}</figure>"


def bars(found: Bars) -> str:
    """Horizontal bars with the value of each, or the parts of each with their shares."""
    sums = [sum(parts.values()) for _, parts in found.rows]
    longest, total = max(sums), sum(sums)
    one = len(found.colours) == 1
    rows = "".join(
        f'<span>{text(title)}</span><div class="bar">'
        + "".join(
            f'<i style="width:{100 * parts[part] / longest:.3f}%;'
            f'background:var(--s{found.colours[part] + 1})" '
            f'title="{text(part)} {parts[part]:.3g} {text(found.unit)}"></i>'
            for part in found.colours
            if parts.get(part)
        )
        + f"</div><span>{length:.1f}</span>"
        for (title, parts), length in zip(found.rows, sums, strict=True)
    )
    key = ""
    for part, colour in found.colours.items():
        share = sum(parts.get(part, 0.0) for _, parts in found.rows) / total
        shown = f"{100 * share:.0f} %" if share >= 0.005 else "< 1 %"
        if share and not one:
            mark = f'<i style="background:var(--s{colour + 1})"></i>'
            key += f"<li>{mark}{text(part)} {text(shown)}</li>"
    parts = f'<ul class="key">{key}</ul>' if key else ""
    return f'{parts}<div class="bars">{rows}</div><p class="unit">{text(found.unit)}</p>'


def section(key: str, title: str, body: str) -> str:
    """A part of the page; none where it would be empty."""
    if not body:
        return ""
    return f'<section id="{text(key)}"><h2>{text(title)}</h2>{body}</section>'
