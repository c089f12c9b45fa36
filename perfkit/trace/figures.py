"""Pictures of a trace: where the steps' time goes, and the timeline of a step."""

import functools
import itertools
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from perfkit.show import style, units
from perfkit.show.document import Figure, Interactive
from perfkit.show.style import Look
from perfkit.trace.model import Analysis
from perfkit.trace.table import Texts
from perfkit.trace.timeline import Bar, Lanes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_LIGHT = "#bbbbbb"
LOOKS = {
    "kernel": (style.BLUE, ""),
    "memcpy": (style.ORANGE, "//"),
    "memset": (style.PURPLE, "xx"),
    "communication": (style.VERMILLION, "\\\\"),
    "runtime": (style.SKY, "--"),
    "dataloader": (style.GREEN, "oo"),
    "cpu_op": (style.YELLOW, ".."),
    "other": (_LIGHT, ""),
    "annotation": (_LIGHT, ""),
    "several kinds": (_LIGHT, ""),
    "fetch": (style.GREEN, ""),
    "collate": (style.SKY, ""),
}
_MOST = 12


def us(value: float | None) -> str:
    """A time in µs, in words."""
    return units.duration(None if value is None else value / 1e6)


def reason(analysis: Analysis, figure: str = "") -> str:
    """Why a figure is not known."""
    spoiled = (problem.message for problem in analysis.health if figure in problem.spoils)
    otherwise = analysis.device["reason"] or "the trace does not record it"
    return f"{units.NOT_AVAILABLE}: {next(spoiled, otherwise)}"


def breakdown(analysis: Analysis) -> Figure:
    """The parts of each step and of the mean."""
    title = f"{'Simulated: ' if analysis.device['simulated'] else ''}Where the steps' time goes"
    parts = [f"{part} {us(time)}" for part, time in analysis.mean_us.items() if time]
    nothing = "" if parts else reason(analysis)
    alt = f"{title}: {nothing or ', '.join(parts)}"
    return Figure("breakdown", title, alt, functools.partial(_breakdown, analysis), 5.0, nothing)


def _breakdown(analysis: Analysis, drawing: "Drawing") -> None:
    """A stacked bar for each step, and for the mean."""
    ax, steps = drawing.add_subplot(), analysis.steps[:_MOST]
    names = [*(step.name.replace("ProfilerStep#", "step ") for step in steps), "mean"]
    lengths = [*(step.duration_us for step in steps), analysis.mean_step_us or 0.0]
    style.named(ax, names, [us(time) for time in lengths], "ms")
    for at, parts in enumerate([*(step.breakdown_us for step in steps), analysis.mean_us]):
        style.stack(ax, at, [((time or 0.0) / 1e3, Look(part, *LOOKS[part])) for part, time in parts.items()])
    ax.set_xlim(0, max(lengths) * 1.03 / 1e3 or 1)
    style.legend(ax, [Look(part, *LOOKS[part]) for part, time in analysis.mean_us.items() if time])


def interactive(window: Lanes) -> Interactive:
    """The timeline of a recording to zoom and pan in, opened at its step."""
    colours = {part: colour for part, (colour, _) in LOOKS.items()}
    parts, texts = list(colours), Texts()
    texts[""]  # is number 0

    def numbers(bars: Iterable[Bar]) -> list[list[int]]:
        """Columns: starts (from the one before), durations, busy times (ns), events, text, part, place."""
        rows, before = [], 0
        for bar in bars:
            start, busy = round(bar.start_us * 1e3), round(bar.busy_us * 1e3) if bar.events > 1 else 0
            about = bar.events, texts[bar.name], parts.index(bar.colour), texts[bar.place]
            rows.append((start - before, round(bar.duration_us * 1e3), busy, *about))
            before = start
        return [list(column) for column in zip(*rows, strict=True)]

    depth = operator.attrgetter("depth")
    lanes = [
        {
            "label": lane.label,
            "kind": lane.kind,
            "rows": [numbers(bars) for _, bars in itertools.groupby(sorted(lane.bars, key=depth), key=depth)],
        }
        for lane in window.lanes
    ]
    used = {bar.colour for lane in window.lanes for bar in lane.bars}
    data = {
        "duration": round(window.duration_us * 1e3),
        "step": window.step,
        "steps": numbers(window.steps),
        "lanes": lanes,
        "texts": texts.each,
        "parts": parts,
        "colours": list(colours.values()),
    }
    name = window.steps[window.step].name
    legend = {part: colour for part, colour in colours.items() if part in used}
    markup = _template().render(legend=legend, name=name, data=data)
    script = Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")
    height = 270 + sum(15 * lane.levels + 7 for lane in window.lanes)
    return Interactive(f"Timeline of {name}", markup, script, height)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(loader=jinja2.PackageLoader("perfkit.trace", "."), autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template("timeline.jinja")
