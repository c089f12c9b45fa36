"""The interactive timeline of a step: `timeline.jinja` is its HTML, `timeline.js` draws it."""

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from perfkit.show import sentences
from perfkit.show.document import Interactive
from perfkit.trace import Lane, Lanes
from perfkit.trace.figures import PARTS


def timeline(lanes: Lanes) -> Interactive:
    """The lanes of a step, to zoom and pan in."""
    markup = _template().render(data=data(lanes), name=sentences.clean(lanes.name), parts=legend(lanes))
    script = Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")
    return Interactive(f"Timeline of {lanes.name}", markup, script, height(lanes))


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {}  # the order of the parts counts
    return environment.get_template("timeline.jinja")


def legend(lanes: Lanes) -> dict[str, str]:
    """The colours of the parts that occur."""
    used = {bar.colour for lane in lanes.lanes for bar in lane.bars}
    return {part: look[0] for part, look in PARTS.items() if part in used}


def height(lanes: Lanes) -> int:
    """Pixels of a frame that shows all rows, and what is above and below them."""
    return 270 + 15 * sum(map(_depth, lanes.lanes)) + 7 * len(lanes.lanes)


def _depth(lane: Lane) -> int:
    return 1 + max((bar.depth for bar in lane.bars), default=0)


def data(lanes: Lanes) -> dict[str, Any]:
    """What the script draws: for each row starts and durations in µs, colours and names by number."""
    parts, names, places = list(PARTS), dict[str, int](), dict[str, int]()
    rows: list[dict[str, Any]] = []
    for lane in lanes.lanes:
        levels = [dict[str, list[float]](s=[], d=[], c=[], n=[], p=[]) for _ in range(_depth(lane))]
        for bar in sorted(lane.bars, key=lambda bar: bar.start_us):
            row = levels[bar.depth]
            row["s"].append(round(bar.start_us, 3))
            row["d"].append(round(bar.duration_us, 3))
            row["c"].append(parts.index(bar.colour))
            row["n"].append(names.setdefault(sentences.clean(bar.name, 120), len(names)))
            place = sentences.clean(bar.place, 120)
            row["p"].append(places.setdefault(place, len(places)) if place else -1)
        rows.append({"label": sentences.clean(lane.label, 60), "kind": lane.kind, "rows": levels})
    return {
        "name": sentences.clean(lanes.name, 60), "duration_us": lanes.duration_us, "omitted": lanes.omitted,
        "parts": {part: look[0] for part, look in PARTS.items()}, "names": list(names),
        "places": list(places), "lanes": rows, "phases": msgspec.to_builtins(lanes.phases),
    }  # fmt: skip
