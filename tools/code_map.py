"""The picture of the rooms and the table beneath it, from the imports as they are now.

python tools/code_map.py            write docs/contributors/rooms.svg and the table of code-map.md
python tools/code_map.py --check    fail if either is out of date
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from itertools import pairwise

from pages import CONTRIBUTORS, PAGE, replace_part
from rooms import LAYERS, LEVEL, PACKAGE, room_imports

PICTURE = CONTRIBUTORS / "rooms.svg"

TITLES = {
    "apps": "the programs",
    "estimators": "scikit-learn classes",
    "judging": "is the fit right?",
    "training": "how to fit",
    "metrics": "scores",
    "losses": "how far apart?",
    "balls": "which rows are near?",
    "distribution": "predicted laws",
    "storage": "files",
    "models": "what to learn",
    "plots": "pictures",
    "datasets": "problems",
    "_validation": "checked arguments, for every room",
    "_wording": "text for people",
}
# The column of each room, chosen by eye; its row is its layer. The lowest layer is a bar beneath all others.
COLUMNS = {
    "apps": 2,
    "estimators": 2,
    "judging": 3,
    "training": 0,
    "metrics": 3,
    "losses": 2,
    "balls": 2,
    "distribution": 4,
    "storage": 0,
    "models": 1,
    "plots": 2,
    "datasets": 5,
}
COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 176, 86, 158, 54, 20
# Fill and outline: rooms of the method, rooms around it, single files.
CORE, AROUND, SINGLE = ("#dcebfb", "#2f6fb0"), ("#e3f3e1", "#3d8b44"), ("#f1f1ee", "#85857d")
KINDS = dict.fromkeys(("balls", "losses", "models", "training"), CORE)
KINDS |= dict.fromkeys(("judging", "storage", "estimators", "apps"), AROUND)
STYLE = """
text { font-family: system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; text-anchor: middle }
.name { font-size: 17px; font-weight: 600; fill: #1d2733 }
.title { font-size: 13px; fill: #475260 }
.arrow { fill: none; stroke: #5b6775; stroke-width: 1.8 }
"""
Point = tuple[float, float]
Route = list[Point]


def needed(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that no chain of other imports implies: few enough to be drawn."""

    def reaches(start: str, goal: str) -> bool:
        return any(room == goal or reaches(room, goal) for room in edges[start])

    return [
        (room, other)
        for room in sorted(edges, key=lambda room: -LEVEL[room])
        for other in sorted(edges[room])
        if LEVEL[other] and not any(reaches(middle, other) for middle in edges[room] - {other})
    ]


def center(room: str) -> Point:
    """The middle of a room's box."""
    row = len(LAYERS) - 1 - LEVEL[room]
    return MARGIN + WIDTH / 2 + COLUMN * COLUMNS[room], MARGIN + HEIGHT / 2 + ROW * row


def routes(start: str, goal: str) -> list[Route]:
    """Ways to draw an arrow: straight, or sideways and then down, or down and then sideways."""
    (x, y), (to_x, to_y) = center(start), center(goal)
    side = WIDTH / 2 if to_x > x else -WIDTH / 2
    lean = 26 * ((to_x > x) - (to_x < x))
    return [
        [(x + lean, y + HEIGHT / 2), (to_x - lean, to_y - HEIGHT / 2)],
        [(x + side, y), (to_x, y), (to_x, to_y - HEIGHT / 2)],
        [(x + lean, y + HEIGHT / 2), (x + lean, to_y), (to_x - side, to_y)],
    ]


def points(way: Route) -> Route:
    """Places along a way, close enough for finding what is in it."""
    found = []
    for (x, y), (to_x, to_y) in pairwise(way):
        found += [(x + (to_x - x) * s / 60, y + (to_y - y) * s / 60) for s in range(1, 60)]
    return found


def obstructed(way: Route, ends: tuple[str, str]) -> int:
    """How many places of a way lie in the box of a third room."""
    boxes = [center(room) for room in COLUMNS if room not in ends]
    return sum(
        abs(x - a) < WIDTH / 2 + 6 and abs(y - b) < HEIGHT / 2 + 6 for x, y in points(way) for a, b in boxes
    )


def route(start: str, goal: str) -> Route:
    """The way that meets no other room, the straight one if it can be had."""
    return min(routes(start, goal), key=lambda way: (obstructed(way, (start, goal)), len(way)))


def arrow(start: str, goal: str) -> str:
    """An arrow with rounded corners."""
    (x, y), *rest = route(start, goal)
    path = f"M{x:g} {y:g}"
    if len(rest) == 2:
        (a, b), (to_x, to_y) = rest
        back = 14 * ((a > x) - (a < x)), 14 * ((b > y) - (b < y))
        on = 14 * ((to_x > a) - (to_x < a)), 14 * ((to_y > b) - (to_y < b))
        path += f" L{a - back[0]:g} {b - back[1]:g} Q{a:g} {b:g} {a + on[0]:g} {b + on[1]:g}"
    path += f" L{rest[-1][0]:g} {rest[-1][1]:g}"
    title = f"{start} imports {goal}"
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"><title>{title}</title></path>'


def box(room: str, x: float, y: float, width: float) -> str:
    """A room: its name, what it is about, its colour."""
    fill, line = KINDS.get(room, SINGLE)
    name = room if (PACKAGE / room).is_dir() else f"{room}.py"
    return (
        f'<rect x="{x - width / 2:g}" y="{y - HEIGHT / 2:g}" width="{width:g}" height="{HEIGHT}" rx="9" '
        f'fill="{fill}" stroke="{line}" stroke-width="1.6"/>'
        f'<text class="name" x="{x:g}" y="{y - 4:g}">{name}</text>'
        f'<text class="title" x="{x:g}" y="{y + 16:g}">{escape(TITLES[room])}</text>'
    )


def draw(edges: dict[str, set[str]]) -> str:
    """The picture. Its background is its own, so that it can be read on light and on dark pages."""
    columns = max(COLUMNS.values())
    width, height = 2 * MARGIN + WIDTH + COLUMN * columns, 2 * MARGIN + HEIGHT + ROW * (len(LAYERS) - 1)
    bar = (width - 2 * MARGIN - 16 * (len(LAYERS[0]) - 1)) / len(LAYERS[0])
    low = MARGIN + HEIGHT / 2 + ROW * (len(LAYERS) - 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-label="The rooms of the package. Arrows lead from a room to those that it imports.">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9.4" refY="5" markerWidth="7.5" '
        'markerHeight="7.5" orient="auto"><path d="M0 0.8 10 5 0 9.2 2.6 5Z" fill="#5b6775"/></marker>'
        "</defs>",
        f'<rect x="1" y="1" width="{width - 2:g}" height="{height - 2:g}" rx="14" fill="#fff" '
        'stroke="#d3d9e0"/>',
        *(arrow(*edge) for edge in needed(edges)),
        *(box(room, *center(room), WIDTH) for room in COLUMNS),
        *(box(room, MARGIN + bar / 2 + (bar + 16) * place, low, bar) for place, room in enumerate(LAYERS[0])),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def listed(edges: dict[str, set[str]]) -> str:
    """What each room imports, highest room first; rooms that import the same share a line."""
    alike: dict[str, list[str]] = {}
    for room in (room for layer in reversed(LAYERS) for room in layer if edges[room]):
        below = sorted(edges[room], key=lambda other: (-LEVEL[other], other))
        alike.setdefault(", ".join(f"`{other}`" for other in below), []).append(f"`{room}`")
    lines = [f"| {', '.join(alike[below])} | {below} |" for below in alike]
    return "\n".join(["| room | imports |", "|---|---|", *lines])


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the picture or the list is out of date")
    check = parser.parse_args().check
    edges = room_imports()
    page = PAGE.read_text(encoding="utf-8")
    made = {PICTURE: draw(edges), PAGE: replace_part(page, "imports", listed(edges))}
    for path, text in made.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is out of date: run `make code-map`.")


if __name__ == "__main__":
    main()
