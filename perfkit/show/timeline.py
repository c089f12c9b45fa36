"""The timeline of a step to zoom and pan in: HTML with its own script, nothing fetched."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from perfkit.show import sentences
from perfkit.show.figures_trace import PARTS
from perfkit.trace import Lane, Lanes

_PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Timeline</title>
<meta http-equiv="Content-Security-Policy" content="{policy}"><style>
:root {{ color-scheme: {scheme} }} body {{ margin: 0; font: 14px system-ui, sans-serif }}
</style></head><body>{body}</body></html>"""


# A sandboxed frame cannot know the theme of the notebook around it, and Chromium gives it a white sheet where
# the colour schemes differ: the notebook's own style sheet darkens it, hues kept. VS Code shows a widget on
# white in every theme (vscode-jupyter #7161), so there it stays light.
_FOLLOWS = """<style>body[data-jp-theme-light="false"] .pk-frame, body.vscode-dark .pk-frame {
filter: invert(.93) hue-rotate(180deg) }
body.vscode-dark .cell-output-ipywidget-background .pk-frame { filter: none }</style>"""


class _Row(NamedTuple):
    """Bars that do not overlap: starts and durations in µs, colours and names by number."""

    s: list[float]
    d: list[float]
    c: list[int]
    n: list[int]


@cache
def _script() -> str:
    return Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")


def policy() -> str:
    """What a page with the timeline in it may do: run this script, show itself, fetch nothing."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


def html(lanes: Lanes) -> str:
    """The timeline as a piece of a page (one to a page)."""
    text = msgspec.json.encode(_document(lanes)).decode()
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(sign, code)  # names come from outside: none may end the element
    used = {bar.colour for lane in lanes.lanes for bar in lane.bars}
    key = " ".join(
        f'<span style="display:inline-block;width:.9em;height:.9em;background:{PARTS[part][0]};'
        f'border:1px solid currentColor"></span> {part}'
        for part in PARTS
        if part in used
    )
    name = escape(sentences.clean(lanes.name), quote=True)
    label = f"Timeline of {name}: drag to pan, wheel or arrow keys to zoom"
    return (
        f'<div class="pk-timeline"><p style="margin:.3em 0">{key}</p><canvas id="pk-timeline" tabindex="0" '
        f'role="img" aria-label="{label}" style="width:100%;touch-action:none;cursor:grab"></canvas>'
        f'<p style="margin:.3em 0"><span id="pk-timeline-said" aria-live="polite"></span>. '
        "Wheel or ↑ ↓ to zoom, drag or ← → to pan, 0 for all.</p>"
        f'<script type="application/json" id="pk-timeline-data">{text}</script>'
        f"<script>{_script()}</script></div>"
    )


def page(lanes: Lanes, scheme: str = "light dark") -> str:
    """The timeline as a page of its own; `scheme` is CSS's `color-scheme`."""
    return _PAGE.format(policy=policy(), body=html(lanes), scheme=scheme)


def frame(lanes: Lanes) -> str:
    """The timeline for a notebook: a sandboxed frame that holds its page."""
    rows = sum(_depth(lane) for lane in lanes.lanes)
    height = 110 + 15 * rows + 7 * len(lanes.lanes)
    document = escape(page(lanes, "light"), quote=True)
    title = escape(f"Timeline of {lanes.name}", quote=True)
    return (
        f'{_FOLLOWS}<iframe class="pk-frame" sandbox="allow-scripts" title="{title}" '
        f'style="width:100%;height:{height}px;border:0" srcdoc="{document}"></iframe>'
    )


def _depth(lane: Lane) -> int:
    return 1 + max((bar.depth for bar in lane.bars), default=0)


def _document(lanes: Lanes) -> dict[str, Any]:
    parts, names = list(PARTS), dict[str, int]()
    rows: list[dict[str, Any]] = []
    for lane in lanes.lanes:
        made = [_Row([], [], [], []) for _ in range(_depth(lane))]
        for bar in sorted(lane.bars, key=lambda bar: bar.start_us):
            row = made[bar.depth]
            row.s.append(round(bar.start_us, 3))
            row.d.append(round(bar.duration_us, 3))
            row.c.append(parts.index(bar.colour))
            row.n.append(names.setdefault(sentences.clean(bar.name, 120), len(names)))
        rows.append({"label": sentences.clean(lane.label, 60), "rows": [row._asdict() for row in made]})
    return {
        "name": sentences.clean(lanes.name, 60), "duration_us": lanes.duration_us, "omitted": lanes.omitted,
        "parts": {part: look[0] for part, look in PARTS.items()}, "names": list(names), "lanes": rows,
        "phases": msgspec.to_builtins(lanes.phases),
    }  # fmt: skip
