"""Pictures of a session: each view paints a list of runs on a figure, most with a row for each stage.

A further view is a paint function, a function for the numbers of one run, and its line in `VIEWS`. matplotlib
is loaded when the first figure is drawn, so that a table costs none of its start-up.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.errors import one_of
from perfkit.results.run import RUNG, Run
from perfkit.show import sentences, style, units
from perfkit.show.document import Figure
from perfkit.show.style import Look
from perfkit.show.units import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_PREDICTED = Look("simulated", style.PURPLE, "--")
_WAITS = Look("waits for data", style.ORANGE, "///")
_REST = Look("everything else", style.BLUE)
_FREE = Look("end if data were free", style.VERMILLION, "|")
_RATE = Look("samples/s", style.SKY)
_DROPPED = Look("dropped", "none")
_AGAIN = Look("the baseline again", style.GREY, "..")
_CEILING = Look("ceiling: data free", style.VERMILLION, "|")
_ALLOCATED = Look("allocated", style.BLUE)
_RESERVED = Look("reserved on top", style.SKY, "\\\\")
_MOST_ROOM = 1.25
"""The end of an axis, in multiples of the longest bar: a wider interval is cut off."""
_LOG_FROM = 8
"""Samples that span more than this factor need a logarithmic axis, else small batches are squeezed."""


@dataclass(frozen=True)
class View:
    """One kind of picture."""

    title: str
    numbers: Callable[[Run], str]
    """The numbers of one run that it shows, with units; empty where there are none."""
    paint: "Callable[[Sequence[Run], Drawing], None]"
    """Paints the runs on an empty figure."""
    height: float = 0.0
    """Inches; a row for each run if 0."""


def view(name: str, runs: Sequence[Run]) -> Figure:
    """A view of runs of one session, in the order of the ladder.

    Raises:
        InvalidValue: no such view.
    """
    if name not in VIEWS:
        raise one_of(name, list(VIEWS), "view")
    kind, runs = VIEWS[name], runs if name == "throughput" else sentences.stages(runs)
    nothing, title = "" if runs else "Nothing was measured yet.", kind.title
    if name == "losses" and runs and not any(run.losses for run in runs):
        nothing = "There are no losses: nothing was trained here."
    if runs:
        first = runs[0]
        device = f"simulated {first.simulated.gpu}" if first.simulated else first.device
        where = [clean(part, 32) for part in (first.workload.rpartition(":")[2], device)]
        title = " · ".join([title, *filter(None, where)])
    alt = f"{kind.title}. {nothing or sentences.enumerated(runs, kind.numbers)}"
    height = kind.height or style.rows_height(len(runs))
    return Figure(name, title, alt, lambda drawing: kind.paint(runs, drawing), height, nothing)


def headline(runs: Sequence[Run]) -> Figure:
    """The one picture of a result: before above after on one axis of time, its title the result in words."""
    both, _ = sentences.pair(runs)
    picture, title = view("step_time", both or runs), sentences.headline(runs)
    return replace(picture, title=title, alt=f"{title} · {picture.alt}") if title else picture


def figure(name: str, runs: Sequence[Run], dark: bool = False) -> "Drawing":
    """A view as a matplotlib figure; see `view`."""
    return view(name, runs).draw(dark)


def _frame(drawing: "Drawing", runs: Sequence[Run], numbers: Callable[[Run], str], unit: str) -> Any:
    """A row for each run: names, numbers and axis; without numbers, the reason in place of the bar."""
    ax, texts = drawing.add_subplot(), [numbers(run) for run in runs]
    simulated = "simulated " * sentences.any_simulated(runs)
    style.named(ax, [sentences.name(run) for run in runs], texts, simulated + unit)
    for at, (run, text) in enumerate(zip(runs, texts, strict=True)):
        if not text:
            style.reason(ax, at, sentences.outcome(run) or "n/a: this was not measured")
    return ax


def _look(run: Run, look: Look) -> Look:
    """The look of a run's bar: simulated ones differ."""
    return _PREDICTED._replace(label=f"{look.label}, simulated") if run.simulated else look


def _disturbed(run: Run) -> str:
    return f" {sentences.SIGNS['disturbed']} disturbed" if run.disturbed is not None else ""


# ---------------------------------------------------------------- time of a step


def _step_time(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A bar for each run, all for the same number of samples: waiting for data, then everything else.

    A run holds how long its steps take, how long they wait for data, and the step on a batch that is already
    on the device. It does not hold when the device is busy: that share stands in words, at no place.
    """
    timed = {at: run for at, run in enumerate(runs) if run.step_s}
    counts = [run.samples_per_step for run in timed.values()]
    samples = max(counts) if counts and all(counts) else 0
    steps = {at: samples / run.samples_per_step if samples else 1.0 for at, run in timed.items()}
    ends = {at: run.step_s.value * steps[at] for at, run in timed.items() if run.step_s}
    widest = max((run.step_s.high * steps[at] for at, run in timed.items() if run.step_s), default=0.0)
    longest = max(ends.values(), default=0.0)
    scale, unit = (1.0, "s") if longest >= 2 else (1e3, "ms")
    shares = "; the colours are shares, not places" * any(count != 1 for count in steps.values())
    what = f"{unit} for {samples:,} samples" if samples else f"{unit}, a step"
    ax = _frame(drawing, runs, _step_numbers, f"{what}, medians{shares}")
    used = []
    for at, run in timed.items():
        wait, rest = (run.data_wait_share or 0.0) * ends[at], _look(run, _REST)
        style.stack(ax, at, [(wait * scale, _WAITS), ((ends[at] - wait) * scale, rest)])
        used += [_WAITS, rest] if wait else [rest]
        if run.step_s:
            style.whisker(ax, at, run.step_s, steps[at] * scale)
        if (ceiling := run.ceiling_samples_per_s) and run.samples_per_step:
            style.line(ax, at, run.samples_per_step / ceiling * steps[at] * scale, _FREE)
            used.append(_FREE)
    ax.set_xlim(0, max(1.06 * longest, min(1.03 * widest, _MOST_ROOM * longest)) * scale or 1)
    style.legend(ax, list(dict.fromkeys(used)))


def _step_numbers(run: Run) -> str:
    """Step time with its interval, the share of waiting, the share in which the device is busy."""
    if not run.step_s:
        return ""
    share, busy = run.data_wait_share, sentences.busy_share(run)
    shares = [] if share is None else [f"{units.percent(share)} waits for data"]
    shares += [] if busy is None else [f"device busy {units.percent(busy)} of it"]
    return "\n".join(filter(None, (f"{sentences.step_time(run)} a step{_disturbed(run)}", ", ".join(shares))))


# ---------------------------------------------------------------- throughput


def _throughput(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A bar for each stage with its interval. Of a ladder, a line climbs through what was kept.

    Elsewhere each stage has the rate that it would have if data were free.
    """
    is_ladder = any(_rung(run) for run in runs)
    before = "what was kept" if is_ladder else "the stage"
    unit = f"samples/s: mean, 95% interval; ratio to {before} before"
    ax = _frame(drawing, runs, _throughput_numbers, unit)
    used, ends, climb = [], [0.0], []
    for at, run in enumerate(runs):
        if not (rate := run.samples_per_s):
            continue
        is_dropped = _rung(run).startswith("dropped")
        look = _AGAIN if run.is_again else _DROPPED if is_dropped else _look(run, _RATE)
        style.bar(ax, at, 0, rate.value, look)
        style.whisker(ax, at, rate)
        used.append(look)
        ends.append(min(rate.high, _MOST_ROOM * rate.value))
        if is_ladder:
            climb += [] if is_dropped or run.is_again else [(rate.value, at)]
        elif ceiling := run.ceiling_samples_per_s:
            style.line(ax, at, ceiling, _CEILING)
            used.append(_CEILING)
            ends.append(ceiling)
    ax.plot(*zip(*climb, strict=True) if climb else ([], []), "o-", color=style.BLUE, linewidth=2.5, zorder=3)
    ax.set_xlim(0, 1.03 * max(ends) or 1)
    style.legend(ax, list(dict.fromkeys(used)))


def _rung(run: Run) -> str:
    """Of a rung that was tried: `kept`, or `dropped: ` with the reason."""
    return run.facts.get(RUNG, "")


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


# ---------------------------------------------------------------- memory


def _memory(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A bar for each stage; on a GPU with the memory that was reserved but not allocated."""
    gpu = any(run.on_gpu for run in runs)
    most = max([max(run.peak_memory_bytes or 0, _reserved(run)) for run in runs], default=0)
    scale, unit = units.size_unit(most)
    what = "GPU memory, allocator's peak" if gpu else "memory of the training process (RSS, without workers)"
    ax = _frame(drawing, runs, _memory_numbers, f"{what} [{unit}]")
    for at, run in enumerate(runs):
        if _memory_numbers(run):
            held = (run.peak_memory_bytes or 0) / scale
            pieces = [(held, _look(run, _ALLOCATED)), (_reserved(run) / scale - held, _RESERVED)]
            style.stack(ax, at, pieces)
    ax.set_xlim(0, most / scale * 1.03 or 1)
    if any(map(_reserved, runs)):
        style.legend(ax, [_look(runs[0], _ALLOCATED), _RESERVED])


def _reserved(run: Run) -> int:
    return (run.peak_reserved_bytes or 0) if run.on_gpu else 0


def _memory_numbers(run: Run) -> str:
    """Peaks with their unit."""
    if run.status != "ok" or run.peak_memory_bytes is None:
        return ""
    if not run.on_gpu:
        return f"{sentences.memory(run)} RSS"
    reserved = f"\n{units.size(_reserved(run))} reserved" if _reserved(run) else ""
    return f"{sentences.memory(run)} allocated{reserved}"


# ---------------------------------------------------------------- losses


def _losses(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A curve for each stage over samples, because batch sizes differ; equal ones lie on each other."""
    ax, curves = drawing.add_subplot(), {sentences.name(run): _curve(run) for run in runs if run.losses}
    colours = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY)
    looks = zip(itertools.cycle("osD^vP*Xd<>"), itertools.cycle(colours), strict=False)
    for (name, curve), (mark, colour) in zip(curves.items(), looks, strict=False):
        ax.plot(*curve, f"{mark}-", color=colour, linewidth=1.4, markersize=4.5, label=clean(name, 24))
    values = [float(value) for _, losses in curves.values() for value in losses]
    reach, _ = style.split_outliers(values)
    low, high = (min(reach), max(reach)) if reach else (0.0, 1.0)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    ax.set_ylim(low - room, high + room)
    ends = [samples[at] for samples, _ in curves.values() for at in (0, -1)]
    if max(ends) > _LOG_FROM * min(ends):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:,g}")
    note = style.outliers_note(values, "value", units.number)
    ax.set(xlabel="; ".join(filter(None, ("samples trained on", note))), ylabel="training loss")
    ax.grid()
    style.legend_below(ax, 4)


def _curve(run: Run) -> tuple[Any, Any]:
    """(samples, losses): one value for each step."""
    losses = np.array(run.losses, dtype=float)
    each = run.samples_per_step or int(run.recipe.get("batch_size", 1)) or 1
    return each * np.arange(1, len(losses) + 1), losses


def _loss_numbers(run: Run) -> str:
    """First and last loss, or the sample at which the loss was no longer finite."""
    if not run.losses or run.status != "ok":
        return ""
    samples, losses = _curve(run)
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        return f"{units.number(losses[bad[0]])} from sample {samples[bad[0]]:,} on"
    return f"{units.number(losses[0])} → {units.number(losses[-1], losses[0])}"


VIEWS: dict[str, View] = {
    "step_time": View("Where a step's time goes", _step_numbers, _step_time),
    "throughput": View("Throughput, stage by stage", _throughput_numbers, _throughput),
    "memory": View("Peak memory", _memory_numbers, _memory),
    "losses": View("Training loss over the first steps", _loss_numbers, _losses, 4.2),
}
