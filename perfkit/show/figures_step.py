"""Where a step's time goes: the lanes of each run above those of the next, on one axis of time.

A run holds how long its steps take and wait for data, the step on a batch that is already on the device, and
of a simulated GPU the time of kernels and copies. What it does not hold is named below the axis, not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfkit.results.run import Run
from perfkit.results.stats import MIN_EFFECT, Ratio
from perfkit.show import results, rows, sentences, simulated, style, units
from perfkit.show.rows import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOADS = ("loads data", style.GREEN, "..")
_AHEAD = ("workers load ahead", "none", "..")
_WAITS = ("waits for data", style.ORANGE, style.WAIT_HATCH)
_COMPUTES = ("computes", style.BLUE, "")
_HOST = ("copies, launches, waits", style.SKY, "")
_COPIES = ("copies, simulated", style.YELLOW, style.SIMULATED_HATCH)
_KERNELS = ("kernels, simulated", style.SIMULATED, style.SIMULATED_HATCH)
_BUSY = ("busy, by NVML", style.BLUE, "\\\\")
_FREE = ("end if data were free", style.VERMILLION, "|")
_LOOKS = (_LOADS, _AHEAD, _WAITS, _COMPUTES, _HOST, _COPIES, _KERNELS, _BUSY, _FREE)

_LANE, _HEADING, _GAP = 0.21, 0.27, 0.12
"""Inches at ordinary type."""
_BEHIND = 0.05
"""Workers are behind where steps wait for more than this share of their time."""
_MOST_ROOM = 1.25
"""Of the axis, in multiples of the longest step: an interval that is wider is cut off."""
_MOST_STEPS = 8
"""Steps that are drawn one by one beside a larger batch; more of them are drawn as one."""


class Lane(NamedTuple):
    """One row of a step: pieces of (start, seconds, look), within the step."""

    name: str
    pieces: Sequence[tuple[float, float, Look]]


def lanes(run: Run) -> list[Lane]:
    """The lanes of a run's median step, in seconds; none where nothing was measured."""
    step = results.step_s(run)
    if not step:
        return []
    whole, workers = step.value, int(run.recipe.get("workers", 0) or 0)
    wait = whole * (results.wait_share(run) or 0.0)
    then = _HOST if results.on_gpu(run) else _COMPUTES
    found = [Lane("loop", [(0.0, wait, _WAITS), (wait, whole - wait, then)])]
    if not run.recipe.get("device_dataset"):
        look = _LOADS if not workers or wait > _BEHIND * whole else _AHEAD
        count = f"{workers} worker{'s' * (workers > 1)}" if workers else "loader"
        found.insert(0, Lane(count, [(0.0, whole if workers else wait, look)]))
    if run.simulated:
        kernel, copy = (min(whole, of) for of in (run.simulated.kernel_s, run.simulated.copy_s))
        if copy:
            found.append(Lane("copies", _around(whole, wait, copy, _COPIES)))
        start = wait + copy * (not run.simulated.copies_ahead)
        found.append(Lane("device", _around(whole, start, kernel, _KERNELS)))
    elif samples := sorted(run.raw.gpu_utilization_nvml):
        busy = whole * min(1.0, samples[len(samples) // 2] / 100)
        found.append(Lane("device", [(whole - busy, busy, _BUSY)]))
    return found


def _around(whole: float, start: float, seconds: float, look: Look) -> list[tuple[float, float, Look]]:
    """What begins in this step and may end in the next one, where that of the step before it is drawn."""
    start %= whole
    rest = start + seconds - whole
    return [(start, seconds, look)] if rest <= 0 else [(0.0, rest, look), (start, whole - start, look)]


def unmeasured(runs: Sequence[Run]) -> str:
    """What these runs do not hold of a step, as a clause; empty where nothing was measured."""
    missing = {
        _COMPUTES: "forward, backward and optimizer", _HOST: "each copy and launch",
        _COPIES: "when copies run", _KERNELS: "when kernels run", _BUSY: "when the device is busy",
        _AHEAD: "how long workers load",
    }  # fmt: skip
    looks = {look for run in runs for lane in lanes(run) for *_, look in lane.pieces}
    clauses = [text for look, text in missing.items() if look in looks]
    return f"a profile also shows {', and '.join(clauses)}" if clauses else ""


def height(runs: Sequence[Run]) -> float:
    """Inches at ordinary type."""
    return 1.5 + sum(_HEADING + _GAP + _LANE * len(lanes(run)) for run in runs)


def draw(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A group of lanes for each run, from the top, all for the same number of samples."""
    style.plain_axes(ax, ink)
    size, samples = style.type_size(ax), _samples(runs)
    timed = [(step, _steps(run, samples)) for run in runs if (step := results.step_s(run))]
    longest = max([step.value * count for step, count in timed] or [0])
    widest = max([1.03 * step.high * count for step, count in timed] or [0])
    scale, unit = (1.0, "s") if longest >= 2 else (1e3, "ms")
    ticks, names, y = list[float](), list[str](), -_GAP
    used = set[Look]()
    for run in runs:
        step, count = results.step_s(run), _steps(run, samples)
        top = y = y + _GAP + _HEADING
        _heading(ax, ink, top - _HEADING / 2, run, count)
        if not step:
            continue
        for lane in lanes(run):
            used |= _lane(ax, ink, y + _LANE / 2, lane, step.value, count, scale)
            ticks.append(y + _LANE / 2)
            names.append(lane.name)
            y += _LANE
        rows.whisker(ax, ink, y - _LANE / 2, step, count * scale)  # cut off at the edge where very wide
        if (ceiling := results.ceiling(run)) and run.samples_per_step:
            free = run.samples_per_step / ceiling * count * scale
            ax.plot([free, free], [top, y], color=style.VERMILLION, linewidth=2.5)
            used.add(_FREE)
    ax.set_yticks(ticks, names, fontsize=0.9 * size, color=ink)
    ax.set_ylim(y + _GAP or 1, 0)
    ax.set_xlim(0, max(1.06 * longest, min(widest, _MOST_ROOM * longest)) * scale or 1)
    ax.spines["left"].set_visible(False)
    what = f"{unit} for {samples:,} samples" if samples else f"{unit}, a step"
    text = "; ".join(filter(None, (simulated.axis(f"{what}, medians", runs), unmeasured(runs))))
    rows.scale(ax, ink, sentences.wrapped(text, style.characters(ax, 0.85), 2))
    rows.legend(ax, ink, [look for look in _LOOKS if look in used], columns=3)


def _samples(runs: Sequence[Run]) -> int:
    """For how many samples all are drawn: the most that a step has; 0 where that is not known."""
    counts = [run.samples_per_step for run in runs if lanes(run)]
    return max(counts) if counts and all(counts) else 0


def _steps(run: Run, samples: int) -> float:
    """Steps of this run for as many samples."""
    return samples / run.samples_per_step if samples and run.samples_per_step else 1.0


def _drawn(steps: float) -> int:
    """How many of them are drawn one by one."""
    return round(steps) if steps.is_integer() and steps <= _MOST_STEPS else 1


def _heading(ax: Axes, ink: str, at: float, run: Run, steps: float) -> None:
    """The run's name and its numbers, or why there are none."""
    text = numbers(run).replace("\n", ", ") or sentences.outcome(run) or "n/a: this was not measured"
    if steps > 1 and numbers(run):
        text = f"{steps:,g} steps{' as one' * (_drawn(steps) == 1)}, each {text}"
    fits, size = style.characters(ax, 0.8), style.type_size(ax)
    title = sentences.clean(sentences.name(run), max(20, fits // 3))
    line = f"{title}:  {sentences.clean(text, max(10, fits - len(title)))}"
    place = ax.get_yaxis_transform()
    ax.text(0.0, at, style.mark(line), transform=place, va="center", color=ink, fontsize=size)


def _lane(ax: Axes, ink: str, at: float, lane: Lane, step_s: float, steps: float, scale: float) -> set[Look]:
    """The pieces of a lane, for each step; returns the looks that it used."""
    repeats = _drawn(steps)
    stretch, starts = scale * steps / repeats, step_s * np.arange(repeats)
    pieces = [piece for piece in lane.pieces if piece[1] > 0]
    for start, seconds, (_, colour, hatch) in pieces:
        ax.barh(
            at, seconds * stretch, 0.8 * _LANE, left=stretch * (starts + start), color=colour, edgecolor=ink,
            hatch=hatch, linewidth=0.7,
        )  # fmt: skip
    return {look for *_, look in pieces}


def numbers(run: Run) -> str:
    """Step time with its interval, share of waiting, and time per sample."""
    step, share = results.step_s(run), results.wait_share(run)
    if not step:
        return ""
    clauses = [] if share is None else [f"{units.percent(share)} waits for data"]
    if run.samples_per_step:
        clauses.append(f"{units.duration(step.value / run.samples_per_step)} a sample")
    mark = f" {sentences.SIGNS['disturbed']} disturbed" if results.disturbed(run) is not None else ""
    return "\n".join(filter(None, (simulated.step_time(run) + mark, ", ".join(clauses))))


def pair(runs: Sequence[Run]) -> tuple[list[Run], Ratio | None]:
    """Before and after, and how they compare: the last run that was compared with another of these.

    Where none was compared, the last measured one alone; none where nothing was measured.
    """
    measured = [run for run in results.stages(runs) if results.rate(run)]
    for run in reversed(measured):
        for role in ("baseline", "previous"):
            pairing = run.pairing(role)
            before = [other for other in measured if pairing and other.id == pairing.against]
            if before and (ratio := results.speedup(run, role)):
                return [before[0], run], ratio
    return measured[-1:], None


def headline(runs: Sequence[Run]) -> str:
    """The result in words: `1.36× faster (1.21–1.52) · AMP against baseline`; empty where there is none."""
    both, ratio = pair(runs)
    if ratio is None:
        return f"{sentences.name(both[0])}: {simulated.step_time(both[0])} a step" if both else ""
    before, after = (sentences.clean(sentences.name(run), 40) for run in both)
    times, versus = units.ratio(ratio), f"{after} against {before}"
    match ratio.verdict:
        case "faster" | "predicted faster":
            text = ratio.verdict.replace("faster", times.replace("×", "× faster", 1))
        case "slower" | "predicted slower":
            text = ratio.verdict.replace("slower", times.replace("×", "× as fast, slower", 1))
        case "no measurable difference":
            effect = units.percent(max(ratio.half_width, MIN_EFFECT))
            text = f"no measurable difference: an effect over {effect} would show; {times}"
        case "disturbed":
            text = f"no verdict, disturbed by other programs: {times}"
        case "too few rounds":
            text = f"no verdict from so few rounds: {times}"
        case "too close to predict":
            text = f"too close to predict: {times}"
    return f"{text[0].upper()}{text[1:]} · {versus}"
