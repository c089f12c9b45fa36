"""Pictures of a session: each view paints a list of runs on a figure.

A further view is a paint function, a function for the numbers of one run, and its line in `VIEWS`. matplotlib
is loaded when the first figure is drawn, so that a table costs none of its start-up.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfkit.errors import one_of
from perfkit.results.run import RUNG, Run
from perfkit.show import sentences, style, units
from perfkit.show.document import Figure
from perfkit.show.style import Look
from perfkit.show.units import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_LOADS = Look("loads", style.GREEN, "\\\\")
_WAITS = Look("waits for data", style.ORANGE, "///")
_REST = Look("rest of the step", style.BLUE)
_BUSY = Look("busy: a share, not places", style.SKY, "..")
_RATE = Look("samples/s", style.SKY)
_DROPPED = Look("dropped", "none")
_AGAIN = Look("the baseline again", style.GREY, "..")


class View(NamedTuple):
    """One kind of picture."""

    title: str
    numbers: Callable[[Run], str]
    """The numbers of one run that it shows, with units; empty where there are none."""
    paint: "Callable[[Sequence[Run], Drawing], None]"
    """Paints the runs on an empty figure."""
    height: Callable[[Sequence[Run]], float]
    """Inches."""


def view(name: str, runs: Sequence[Run]) -> Figure:
    """A view of runs of one session, in the order of the ladder.

    Raises:
        InvalidValue: no such view.
    """
    if name not in VIEWS:
        raise one_of(name, list(VIEWS), "view")
    kind = VIEWS[name]
    if name != "throughput":
        runs = sentences.stages(runs)
    nothing = "" if any(map(kind.numbers, runs)) else "Nothing of this was measured."
    title = kind.title
    if runs:
        first = runs[0]
        device = f"simulated {first.simulated.gpu}" if first.simulated else first.device
        where = [clean(part, 32) for part in (first.workload.rpartition(":")[2], device)]
        title = " · ".join([title, *filter(None, where)])
    alt = f"{kind.title}. {sentences.enumerated(runs, kind.numbers) if runs else nothing}"
    return Figure(name, title, alt, lambda drawing: kind.paint(runs, drawing), kind.height(runs), nothing)


def headline(runs: Sequence[Run]) -> Figure:
    """The one picture of a result: before above after on one axis of time, its title the result in words."""
    both, _ = sentences.pair(runs)
    picture, title = view("step_time", both or runs), sentences.headline(runs)
    return replace(picture, title=title, alt=f"{title} · {picture.alt}") if title else picture


def _unit(runs: Sequence[Run], unit: str) -> str:
    return f"simulated {unit}" if any(run.simulated for run in runs) else unit


# ---------------------------------------------------------------- time of a step


def _step_time(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A step of each run as timelines of loader, host and device, all for the same number of samples."""
    ax, counts = drawing.add_subplot(), [run.samples_per_step for run in runs if run.step_s]
    samples = max(counts) if counts and all(counts) else 0
    ends = [_end(run, samples) for run in runs]
    scale, unit = (1.0, "s") if max(ends) >= 2 else (1e3, "ms")
    lanes, used, row = dict[int, str](), list[Look](), 0
    for run, end in zip(runs, ends, strict=True):
        words = _step_numbers(run) or sentences.outcome(run) or "the time of a step is not known"
        style.words(ax, row, f"{sentences.name(run)}: {words}", weight="bold")
        for lane, pieces, why in _lanes(run, end * scale):
            row += 1
            lanes[row] = lane
            style.stack(ax, row, pieces)
            style.words(ax, row, why, style="italic")
            used += [look for width, look in pieces if width]
            if run.step_s and lane.startswith("host"):
                style.whisker(ax, row, run.step_s, scale * end / run.step_s.value)
        row += 1
    what = f"{unit} for {samples:,} samples" if samples else f"{unit}, a step"
    several = "; of several steps: shares, not places" * any(count != samples for count in counts)
    style.rows(ax, lanes, row, _unit(runs, f"{what}, medians{several}"))
    ax.set_xlim(0, 1.06 * max(ends) * scale or 1)
    style.legend(ax, used)


def _step_height(runs: Sequence[Run]) -> float:
    return 1.05 + 0.21 * sum(1 + len(_lanes(run, 1.0)) for run in runs)


def _end(run: Run, samples: int) -> float:
    """Seconds that a number of samples takes; of a step if the number is not known; 0 if nothing is."""
    if not run.step_s:
        return 0.0
    return run.step_s.value * (samples / run.samples_per_step if samples else 1.0)


def _lanes(run: Run, end: float) -> list[tuple[str, list[tuple[float, Look]], str]]:
    """Loader, host, copies and device until the end of a step: name, pieces from its start, words instead.

    A step starts with the request for its batch: that is the place of the host's wait. Worker processes are
    not timed; of copies the bytes are known, and of a GPU at most the share of the step in which it is busy.
    """
    if not run.step_s:
        return []
    wait, workers = (run.data_wait_share or 0.0) * end, run.recipe.get("workers")
    beside = f"{workers} worker{'s' * (workers != 1)} beside the step: not timed" if workers else ""
    loader = ("loader", [] if workers else [(wait, _LOADS)], beside)
    lanes = [] if workers is None else [loader]
    host = [(wait, _WAITS), (end - wait, _REST)]
    if run.device == "cpu":
        return [*lanes, ("host and device", host, "")]
    lanes.append(("host", host, ""))
    if run.h2d_bytes_per_sample is not None:
        copied = units.size(run.h2d_bytes_per_sample * run.samples_per_step)
        lanes.append(("copies", [], f"{copied} a step to the device; only a profile times them"))
    busy = sentences.busy_share(run)
    return [*lanes, ("device", [((busy or 0.0) * end, _BUSY)], "not timed" if busy is None else "")]


def _step_numbers(run: Run) -> str:
    """Step time with its interval, the share of waiting, the share in which the device is busy."""
    if not run.step_s:
        return ""
    share, busy = run.data_wait_share, sentences.busy_share(run)
    facts = [f"{sentences.step_time(run)} a step{_disturbed(run)}"]
    facts += [] if share is None else [f"{units.percent(share)} waits for data"]
    facts += [] if busy is None else [f"device busy {units.percent(busy)} of it"]
    return ", ".join(facts)


def _disturbed(run: Run) -> str:
    return f" {sentences.SIGNS['disturbed']} disturbed" if run.disturbed is not None else ""


# ---------------------------------------------------------------- throughput


def _throughput(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A bar for each stage with its interval. Of a ladder, a line climbs through what was kept."""
    ax, used, climb = drawing.add_subplot(), list[Look](), list[tuple[float, float]]()
    unit = _unit(runs, "samples/s: mean, 95% interval; ratio to the stage, or what was kept, before")
    style.named(ax, list(map(sentences.name, runs)), list(map(_throughput_numbers, runs)), unit)
    is_climb = any(RUNG in run.facts for run in runs)
    for at, run in enumerate(runs):
        if not (rate := run.samples_per_s):
            style.words(ax, at, sentences.outcome(run), 0.44, 2, style="italic")
            continue
        look = _AGAIN if run.is_again else _RATE
        if run.facts.get(RUNG, "").startswith("dropped"):
            look = _DROPPED
        elif is_climb and not run.is_again:
            climb.append((rate.value, at))
        style.stack(ax, at, [(rate.value, look)])
        style.whisker(ax, at, rate)
        used.append(look)
    if climb:
        ax.plot(*zip(*climb, strict=True), "o-", color=style.BLUE, linewidth=2.5, zorder=3)
    ax.set_xlim(left=0)
    style.legend(ax, used)


def _throughput_numbers(run: Run) -> str:
    """Rate with its interval; ratio to the stage before, with interval and verdict."""
    if not run.samples_per_s:
        return ""
    line = f"{sentences.rate(run, run.samples_per_s)} samples/s{_disturbed(run)}"
    if run.is_again and (again := run.speedup("baseline")):
        return f"{line}\nA/A {units.ratio(again)} of the baseline"
    if against := run.speedup("previous"):
        return f"{line}\n{sentences.SIGNS[against.verdict]} {units.ratio(against)} {against.verdict}"
    return line


# ---------------------------------------------------------------- losses


def _losses(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A curve for each stage over samples, because batch sizes differ; equal ones lie on each other."""
    ax = drawing.add_subplot()
    ax.set_prop_cycle(marker=list("osD^vP*Xd<>"), color=[*style.COLOURS, *style.COLOURS][:11])
    for run in runs:
        if run.losses:
            ax.plot(*_curve(run), linewidth=1.4, markersize=4.5, label=clean(sentences.name(run), 24))
    ax.set(xlabel="samples trained on", ylabel="training loss")
    ax.grid()
    drawing.legend(ncols=3, loc="outside lower center")


def _curve(run: Run) -> tuple[Any, Any]:
    """(samples, losses): one value for each step."""
    losses = np.array(run.losses, dtype=float)
    return (run.samples_per_step or 1) * np.arange(1, len(losses) + 1), losses


def _loss_numbers(run: Run) -> str:
    """First and last loss, or the sample at which the loss was no longer finite."""
    if not run.losses or run.status != "ok":
        return ""
    samples, losses = _curve(run)
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        return f"{units.number(losses[bad[0]])} from sample {samples[bad[0]]:,} on"
    return f"{units.number(losses[0])} → {units.number(losses[-1], losses[0])}"


VIEWS = {
    "step_time": View("Where a step's time goes", _step_numbers, _step_time, _step_height),
    "throughput": View(
        "Throughput, stage by stage",
        _throughput_numbers,
        _throughput,
        lambda runs: style.rows_height(len(runs)),
    ),
    "losses": View("Training loss over the first steps", _loss_numbers, _losses, lambda runs: 4.2),
}
