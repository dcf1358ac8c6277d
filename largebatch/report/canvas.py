"""Empty figures in the page's manner, and figures as text that takes the page's colours and font.

A figure is drawn once, in the colours of the day. As PNG it stays so; in the page each colour
becomes a variable, so that one picture serves light and dark.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from largebatch.report import palette

Axes = Any
WIDTH = 4.4
"""Inches. Small enough that on a phone text has about its own size; two stand side by side."""
_STYLE = {
    "font.size": 8.2,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 6.0,
    "axes.titlecolor": palette.INK.light,
    "axes.labelsize": 8.2,
    "axes.labelcolor": palette.MUTED.light,
    "axes.edgecolor": palette.GRID.light,
    "axes.linewidth": 0.9,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": palette.GRID.light,
    "grid.linewidth": 0.7,
    "xtick.color": palette.GRID.light,
    "ytick.color": palette.GRID.light,
    "xtick.labelcolor": palette.MUTED.light,
    "ytick.labelcolor": palette.MUTED.light,
    "xtick.labelsize": 7.8,
    "ytick.labelsize": 7.8,
    "ytick.major.size": 0,
    "lines.linewidth": 1.5,
    "lines.solid_joinstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 7.8,
    "legend.labelcolor": palette.MUTED.light,
    "legend.handlelength": 1.4,
    "text.color": palette.INK.light,
    "svg.fonttype": "none",
    "path.simplify": False,
}


class Drawing(NamedTuple):
    """A figure of the report.

    Attributes:
        key: of its file and within the page.
        title: a few words.
        caption: what is seen and how to read it.
        draw: the axis (see `series.AXES`; ignored where `axes` is empty) → the figure.
        axes: what it can be drawn against.
    """

    key: str
    title: str
    caption: str
    draw: Callable[[str], Any]
    axes: tuple[str, ...] = ()


def panels(rows: int, height: float, **options: Any) -> tuple[Any, list[Axes]]:
    """A figure of panels above each other, to be called within `styled`.

    Args:
        rows: panels.
        height: of all, in inches.
        **options: of `Figure.subplots`, such as `sharex`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="none")
    FigureCanvasAgg(made)
    found = made.subplots(rows, 1, squeeze=False, **options)
    return made, [row[0] for row in found]


def styled() -> Any:
    """A context in which what matplotlib draws looks like the page."""
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)


def svg(made: Any, key: str, label: str) -> str:
    """A figure as inline SVG: its colours are variables, its text is text, its ids begin with key.

    Args:
        made: the figure.
        key: letters, digits and dashes, of this figure alone.
        label: what it shows, for who cannot see it.
    """
    from html import escape

    stream = io.StringIO()
    with styled():
        made.get_layout_engine().execute(made)
        made.set_layout_engine("none")  # once is enough
        made.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<title>.*?</title>", "", text, flags=re.S)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.S)
    box = re.search(r'viewBox="([^"]*)"', text)[1]
    text = _own_ids(text.replace("xlink:href", "href"), key)
    text = _numbers(text)
    for colour in palette.ALL:
        text = text.replace(colour.light, f"var(--{colour.name})")
    text = re.sub(r"'DejaVu Sans'(?:, [^;\"]*)?", "var(--font)", text)
    head = f'<svg class="figure" viewBox="{box}" role="img" aria-label="{escape(label)}">'
    body = re.sub(r"\n\s*", "\n", text[text.index(">") + 1 :]).strip()
    return head + body


def png(made: Any, title: str, path: Path) -> None:
    """Writes the same figure on white with its title above it, for where no page is around it."""
    from matplotlib.transforms import Bbox

    width, height = made.get_size_inches()
    made.set_facecolor(palette.SURFACE.light)
    made.text(0.1 / width, 1 + 0.08 / height, title, fontsize=9.5, fontweight="bold")
    box = Bbox([[0, 0], [width, height + 0.3]])
    face = {"facecolor": palette.SURFACE.light, "metadata": {"Software": None}}
    with styled():
        made.savefig(path, dpi=180, bbox_inches=box, **face)


def _own_ids(text: str, key: str) -> str:
    """Only the ids that something refers to, each with the figure's key before it."""
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))

    def kept(match: re.Match[str]) -> str:
        return f' id="{key}-{match[1]}"' if match[1] in used else ""

    text = re.sub(r'\sid="([^"]*)"', kept, text)
    return re.sub(r'(href="|url\()#', rf"\1#{key}-", text)


def _numbers(text: str) -> str:
    """Coordinates to a hundredth of a point; what is read, or embedded as base64, is left alone."""

    def rounded(match: re.Match[str]) -> str:
        return match[0] if match[1] else f"{float(match[0]):.2f}".rstrip("0").rstrip(".")

    def within(tag: re.Match[str]) -> str:
        return re.sub(r'(base64,[^"]*)|-?\d+\.\d{3,}', rounded, tag[0])

    return re.sub(r"<[^>]*>", within, text)
