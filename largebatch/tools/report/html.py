"""HTML of the elements of a report: text, tables and figures."""

from collections.abc import Sequence
from html import escape

from largebatch.tools.report import figures
from largebatch.tools.report.figures import Bars, Chart, Figure
from largebatch.tools.report.summary import Cell


def text(value: object) -> str:
    """Escape a value for HTML text and attributes; a per cent sign stays with its number."""
    return escape(str(value), quote=True).replace(" %", "\u00a0%")


def table(head: Sequence[str], rows: Sequence[Sequence[str | Cell]], caption: str) -> str:
    """Return a table in a box that scrolls in narrow windows; one of `Cell` can be sorted."""
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
    best = ' class="best" title="best of the column, on its dataset"' if cell.best else ""
    return f'<{tag}{scope} data-value="{value}"{best}>{text(cell.text)}</{tag}>'


def figure(found: Figure) -> str:
    """Return a figure; `page.js` draws a chart or a map, bars are HTML."""
    if isinstance(found, Bars):
        inside = _bars(found)
    else:
        kind = "chart" if isinstance(found, Chart) else "map"
        inside = f'<div class="{kind}" data-figure="{text(found.key)}"></div>'
    caption = f"<figcaption>{text(found.caption)}</figcaption>"
    return f"<figure><h3>{text(found.title)}</h3>{inside}{caption}</figure>"


def _bars(found: Bars) -> str:
    """Bars with the value of each, and a key with the share of each part."""
    sums = [sum(parts.values()) for _, parts in found.rows]
    colours = {part: f"background:var(--s{index + 1})" for part, index in found.colours.items()}
    rows = ""
    for (title, parts), length in zip(found.rows, sums, strict=True):
        pieces = "".join(
            f'<i style="width:{100 * parts[part] / max(sums):.3f}%;{colour}" '
            f'title="{text(part)} {parts[part]:.3g} {text(found.unit)}"></i>'
            for part, colour in colours.items()
            if parts.get(part)
        )
        rows += (
            f'<span>{text(title)}</span><div class="bar">{pieces}</div><span>{length:.1f}</span>'
        )
    key = ""
    for part, colour in colours.items():
        share = sum(parts.get(part, 0.0) for _, parts in found.rows) / sum(sums)
        shown = f"{100 * share:.0f} %" if share >= 0.005 else "< 1 %"
        key += f'<li><i style="{colour}"></i>{text(part)} {text(shown)}</li>' if share else ""
    key = f'<ul class="key">{key}</ul>'
    return f'{key}<div class="bars">{rows}</div><p class="unit">{text(found.unit)}</p>'


def lead(words: str) -> str:
    """Return a paragraph that introduces a section."""
    return f'<p class="lead">{text(words)}</p>'


def heat_colours() -> list[str]:
    """Return the colours of heat maps, from the least to the greatest value."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[figures.HEAT](share / 255)) for share in range(256)]
