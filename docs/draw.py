"""Draws docs/architecture.svg: the rooms of perfkit on their floors, and the imports between them.

    python docs/draw.py            # or: make diagram
    python docs/draw.py --check    # exits with 1 where the picture no longer shows the code

Rooms are the packages and modules directly below perfkit/, the floor of a room is the length of its longest
chain of imports (grimp reads them), an arrow is an import. What follows from other arrows is left out.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
WIDTH, ROOM, HEIGHT, GAP = 980, 150, 46, 34
STYLE = (
    "rect{fill:#eef3f8;stroke:#456}text{font:14px system-ui,sans-serif;fill:#123;text-anchor:middle}"
    ".n{font-size:11px;fill:#456}path{stroke:#789;fill:none;marker-end:url(#a)}"
    "@media(prefers-color-scheme:dark){rect{fill:#223;stroke:#9ab}text{fill:#eef}.n{fill:#9ab}path{stroke:#789}}"
)


def imports() -> dict[str, set[str]]:
    """The rooms that each room imports from."""
    sys.path.insert(0, str(ROOT))
    graph = grimp.build_graph("perfkit")
    rooms = {name.split(".")[1] for name in graph.modules if "." in name} - {"__main__"}
    return {
        room: {
            other
            for other in rooms - {room}
            if graph.direct_import_exists(
                importer=f"perfkit.{room}", imported=f"perfkit.{other}", as_packages=True
            )
        }
        for room in rooms
    }


def floors(uses: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each room, from 0; a circle is an error."""
    known: dict[str, int] = {}

    def floor(room: str, above: tuple[str, ...] = ()) -> int:
        if room in above:
            raise SystemExit(f"imports run in a circle: {' -> '.join([*above, room])}")
        if room not in known:
            known[room] = max((floor(other, (*above, room)) + 1 for other in uses[room]), default=0)
        return known[room]

    for room in uses:
        floor(room)
    return known


def direct(uses: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from longer ways."""

    def reached(room: str) -> set[str]:
        return uses[room].union(*(reached(other) for other in uses[room]))

    return [
        (room, other)
        for room in sorted(uses)
        for other in sorted(uses[room])
        if not any(other in reached(third) for third in uses[room] - {other})
    ]


def lines(room: str) -> int:
    """Lines of Python in a room."""
    place = ROOT / "perfkit" / room
    files = place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def structure(picture: str) -> str:
    """A picture without its line counts, which nearly every change of the code changes."""
    return re.sub(r'<text class="n".*?</text>', "", picture)


def draw() -> str:
    """The picture."""
    uses = imports()
    level = floors(uses)
    top = max(level.values())
    place: dict[str, tuple[float, float]] = {}
    for floor in range(top + 1):
        row = sorted(room for room in uses if level[room] == floor)
        for at, room in enumerate(row):
            x = WIDTH / 2 + (at - (len(row) - 1) / 2) * (ROOM + 2 * GAP)
            place[room] = x, 20 + (top - floor) * (HEIGHT + GAP)
    parts = []
    for room, other in direct(uses):
        (x, y), (to_x, to_y) = place[room], place[other]
        start, end = y + HEIGHT, to_y - 3
        bend = f"{x:g},{start + 20:g} {to_x:g},{end - 20:g}"
        parts.append(f'<path d="M{x:g},{start:g} C{bend} {to_x:g},{end:g}"/>')
    for room, (x, y) in sorted(place.items()):
        size = f"{round(lines(room), -2):,} lines" if lines(room) >= 100 else "under 100 lines"
        parts.append(f'<rect x="{x - ROOM / 2:g}" y="{y:g}" width="{ROOM}" height="{HEIGHT}" rx="5"/>')
        parts.append(f'<text x="{x:g}" y="{y + 20:g}">{escape(room)}</text>')
        parts.append(f'<text class="n" x="{x:g}" y="{y + 37:g}">{size}</text>')
    height = 40 + (top + 1) * (HEIGHT + GAP)
    marker = '<marker id="a" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="The rooms of perfkit on {top + 1} floors; imports run downwards only">'
        f'<style>{STYLE}</style><defs>{marker}<path d="M0,0 L7,3 L0,6 z" style="fill:#789;stroke:none"/>'
        f"</marker></defs>{''.join(parts)}</svg>\n"
    )


def main() -> int:
    """Writes the picture, or compares it."""
    picture = draw()
    if "--check" in sys.argv:
        kept = PICTURE.read_text(encoding="utf-8") if PICTURE.is_file() else ""
        same = structure(kept) == structure(picture)
        print("the picture shows the code" if same else "docs/architecture.svg is out of date: make diagram")
        return int(not same)
    PICTURE.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
