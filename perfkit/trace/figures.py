"""Pictures of a trace: where the steps' time goes, and the timeline of a step."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import msgspec

from perfkit.show import style, units
from perfkit.show.document import Figure, Interactive
from perfkit.show.style import Look
from perfkit.trace.model import Analysis
from perfkit.trace.timeline import PARTS, Lanes

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
    colours = {part: LOOKS[part][0] if part in LOOKS else _LIGHT for part in PARTS}
    used = {number for lane in window.lanes for row in lane.rows for number in row[5]}
    legend = {part: colours[part] for number, part in enumerate(PARTS) if number in used}
    data = {**msgspec.to_builtins(window), "parts": PARTS, "colours": list(colours.values())}
    name = window.steps[2][window.step]
    markup = _template().render(legend=legend, name=name, data=data)
    script = Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")
    height = 270 + sum(15 * len(lane.rows) + 7 for lane in window.lanes)
    return Interactive(f"Timeline of {name}", markup, script, height)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(loader=jinja2.PackageLoader("perfkit.trace", "."), autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template("timeline.jinja")
