"""Colours that are read on white and on near-black, by most who see colours differently too."""

from typing import NamedTuple


class Colour(NamedTuple):
    """One colour by day and by night, and its name among the page's variables."""

    name: str
    light: str
    dark: str


INK = Colour("ink", "#20242c", "#e7eaf0")
MUTED = Colour("muted", "#5b6371", "#9aa4b4")
GRID = Colour("grid", "#e4e7ec", "#2b313b")
SURFACE = Colour("surface", "#ffffff", "#161a21")
PAGE = Colour("page", "#f5f6f8", "#0e1116")
GOOD = Colour("good", "#1c7f52", "#54cf97")
BAD = Colour("bad", "#b3362c", "#ff8a7a")
WAIT = Colour("wait", "#9a6a00", "#e8b84a")

SERIES = (
    Colour("s1", "#1d6fb8", "#69b1f2"),
    Colour("s2", "#c4561b", "#f2955c"),
    Colour("s3", "#1b8a5b", "#4ecb95"),
    Colour("s4", "#8750a8", "#c69ae2"),
    Colour("s5", "#a67a02", "#e2b93e"),
    Colour("s6", "#0c8891", "#4cc6cf"),
    Colour("s7", "#c13a6d", "#f386af"),
    Colour("s8", "#69717d", "#abb3be"),
)
"""Curves, in the order in which they are given out."""

ALL = (INK, MUTED, GRID, SURFACE, PAGE, GOOD, BAD, WAIT, *SERIES)
HEAT = "viridis"
"""Of heat maps: dark to bright in equal steps, both ends distinct from either background."""


def series(index: int) -> str:
    """Colour of a curve by day."""
    return SERIES[index % len(SERIES)].light


def dash(index: int) -> str:
    """Curves that share a colour differ in their dashes."""
    return ("-", "--", ":", "-.")[index // len(SERIES) % 4]
