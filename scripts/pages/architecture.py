"""Draw the packages and their imports, from the code, as docs/images/architecture.svg.

    python scripts/pages/architecture.py

It needs grimp, which the extra test installs.
"""

import html
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
FIGURE = ROOT / "docs" / "images" / "architecture.svg"
_WIDTH, _BOX, _HEIGHT, _GAP = 900, 170, 44, 26
_STYLE = """
  text { font: 14px sans-serif; fill: #222 }
  .purpose { font-size: 12px; fill: #555 }
  rect { fill: #e8eaf6; stroke: #3f51b5 }
  path { fill: none; stroke: #7986cb }
  .page { fill: #fff; stroke: none }
"""


def imports() -> dict[str, set[str]]:
    """Return {package: packages that it imports}, inside functions too."""
    graph = grimp.build_graph("largebatch", cache_dir=None)
    packages = {
        module.partition(".")[2]
        for module in graph.find_children("largebatch")
        if graph.find_children(module)
    }
    found: dict[str, set[str]] = {package: set() for package in packages}
    for importer in graph.modules:
        of = importer.split(".")[1:2]
        for imported in graph.find_modules_directly_imported_by(importer):
            to = imported.split(".")[1:2]
            if of and to and of != to and {*of, *to} <= packages:
                found[of[0]].add(to[0])
    return found


def levels(edges: dict[str, set[str]]) -> dict[str, int]:
    """Return each package's distance from those that import nothing.

    Raises:
      ValueError: packages import each other.
    """
    found: dict[str, int] = {}
    while len(found) < len(edges):
        ready = [name for name in edges if name not in found and edges[name] <= found.keys()]
        if not ready:
            raise ValueError(f"packages import each other: {sorted(edges.keys() - found.keys())}")
        found |= {name: 1 + max((found[to] for to in edges[name]), default=-1) for name in ready}
    return found


def necessary(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that do not follow from others, for a figure with few lines."""

    def reach(name: str) -> set[str]:
        return edges[name].union(*(reach(to) for to in edges[name]))

    return sorted(
        (name, to)
        for name in edges
        for to in edges[name]
        if not any(to in reach(other) for other in edges[name] - {to})
    )


def draw(edges: dict[str, set[str]]) -> str:
    """Return the figure as SVG: a box for each package, above those that it imports."""
    level = levels(edges)
    top = max(level.values())
    places: dict[str, tuple[int, int]] = {}
    for row in range(top, -1, -1):
        names = sorted(name for name in edges if level[name] == row)
        for column, name in enumerate(names):
            places[name] = (20 + column * (_BOX + 270), 16 + (top - row) * (_HEIGHT + _GAP))
    height = 16 + (top + 1) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
    ]
    for name, to in necessary(edges):
        (x, y), (u, v) = places[name], places[to]
        start, end = (x + _BOX / 2, y + _HEIGHT), (u + _BOX / 2, v)
        bend = 0 if level[name] - level[to] == 1 and x == u else 60
        middle = (start[0] + end[0]) / 2 + (bend if x == u else 0)
        parts.append(
            f'<path d="M{start[0]:.0f} {start[1]} Q{middle:.0f} {(start[1] + end[1]) / 2:.0f} '
            f'{end[0]:.0f} {end[1]}"/>'
        )
    for name, (x, y) in sorted(places.items()):
        path = ROOT / "largebatch" / name / "__init__.py"
        purpose = path.read_text().split('"""')[1].splitlines()[0]
        parts += [
            f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HEIGHT}" rx="6"/>',
            f'<text x="{x + 12}" y="{y + 27}">{name}</text>',
        ]
        first, second = _halves(purpose)
        for offset, line in ((18, first), (34, second)):
            parts.append(
                f'<text class="purpose" x="{x + _BOX + 10}" y="{y + offset}">'
                f"{html.escape(line)}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


def _halves(text: str, width: int = 44) -> tuple[str, str]:
    """Return a text in two lines of about a width."""
    if len(text) <= width:
        return text, ""
    cut = text.rfind(" ", 0, width)
    return text[:cut], text[cut + 1 :]


def main() -> int:
    """Write the figure."""
    FIGURE.write_text(draw(imports()))
    print(f"wrote {FIGURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
