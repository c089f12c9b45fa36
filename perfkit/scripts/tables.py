"""What watching a script has shown, as sections: its steps, what it waits for, what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.recipe import shown, switches
from perfkit.results.parity import Check
from perfkit.results.run import Comparison
from perfkit.scripts.report import Watched
from perfkit.scripts.suggest import Suggestion
from perfkit.scripts.tracked import Tracked
from perfkit.show import style, units
from perfkit.show.document import Bullets, Content, Figure, Notice, Section, Table
from perfkit.show.inside import syncs
from perfkit.show.tables import checks
from perfkit.show.units import clean
from perfkit.trace.report import diagnosis

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_STATES = {"try": "try", "edit": "edit the script", "refused": "no", "on": "has it"}


def watched(result: Watched) -> list[Content]:
    """Everything that watching a script has shown."""
    sections: list[Content] = [
        clean(result.command),
        Section("Its steps", [_steps(result), *([_ranks(result)] if result.ranks else [])]),
        Section("What to try", [suggestions(result.suggestions)]),
    ]
    if result.bottlenecks:
        sections.append(Section("What stands out in a profile", [diagnosis(result.bottlenecks)]))
    if result.syncs:
        sections += syncs(result.syncs)
    if result.warnings:
        sections.append(Section("Take note", [Bullets([clean(text) for text in result.warnings])]))
    return sections


def _steps(result: Watched) -> Table:
    seen, script = result.seen, result.script
    own = units.number(seen.block.samples_per_s) if seen.block.samples else units.NOT_AVAILABLE
    held = units.number(result.ceiling.samples_per_s) if result.ceiling else units.NOT_AVAILABLE
    rows = [
        ["samples/s", own],
        ["tokens/s", units.number(result.tokens_per_s)],
        ["step", f"{units.duration(result.step_s)} ({script.step_is}; {script.samples_per_step} samples)"],
        ["waiting for data", units.percent(result.waiting)],
        ["samples/s on a held batch", held],
        ["peak memory", _peak(result)],
        ["start", units.duration(result.startup_s)],
    ]
    rows += [
        [f"steps with {name}", f"{count} ({units.duration(seconds / count)} each, not counted above)"]
        for name, (count, seconds) in sorted(seen.outside.items())
    ]
    rows += [
        ["trains", f"{', '.join(script.models)} ({script.parameters:,} parameters) on {script.device}"],
        ["is set", _settings(result)],
    ]
    return Table(("what", "how much"), rows, f"{len(seen.block.step_s)} plain steps, no profiler")


def _peak(result: Watched) -> str:
    if result.peak.reserved is None:
        return f"{units.size(result.peak.allocated)} of the process"
    return f"{units.size(result.peak.allocated)} allocated, {units.size(result.peak.reserved)} reserved"


def _settings(result: Watched) -> str:
    changed = {
        name: value for name, value in result.script.settings.items() if value != switches()[name].default
    }
    return ", ".join(f"{name}={shown(value)}" for name, value in changed.items()) or "torch's defaults"


def _ranks(result: Watched) -> Table:
    communication = result.communication
    compute = communication.rank_compute_s if communication else []
    rows = []
    for rank, block in enumerate(result.ranks):
        step_s, wait_s = (
            sum(values) / max(1, len(block.step_s)) for values in (block.step_s, block.data_wait_s)
        )
        own = units.duration(compute[rank]) if rank < len(compute) else units.NOT_AVAILABLE
        rows.append([str(rank), units.duration(step_s), units.duration(wait_s), own])
    note = ""
    if communication:
        note = (
            f"Averaging gradients lengthens a step by {units.duration(communication.exposed_s)}; the slowest "
            f"rank computes {communication.straggling:.2f} times as long as the median one."
        )
    return Table(("rank", "step", "waiting for data", "step without averaging"), rows, "Ranks", note)


def suggestions(ideas: Sequence[Suggestion]) -> Table:
    """What to try, the most promising first."""
    rows = []
    for idea in ideas:
        gain = units.NOT_AVAILABLE if idea.gain is None else f"{'≤ ' * idea.at_most}{units.times(idea.gain)}"
        how = idea.set_options + (" (changes training)" if idea.changes_training else "")
        rows.append([clean(idea.title), _STATES[idea.state], gain, how, clean(idea.why), clean(idea.basis)])
    columns = ("switch", "verdict", "predicted", "how", "why", "the prediction")
    return Table(
        columns, rows, "", "" if rows else "Nothing stands out.", ("switch", "predicted", "how", "why")
    )


def tracked(result: Tracked) -> list[Content]:
    """The steps of a loop that was observed: a table, and a picture of the steps one by one."""
    if not result.step_s:
        return [Notice("No step was seen: no batch of a loader was followed by an optimizer step.")]
    samples, tokens = result.rate(result.samples), result.rate(result.tokens)
    rows = [
        ["samples/s", units.number(samples)],
        ["tokens/s", units.number(tokens)],
        ["step (median)", units.duration_interval(result.step)],
        ["waiting for data", units.percent(result.waiting) if result.waiting is not None else "n/a"],
        ["steps", str(len(result.step_s))],
    ]
    left_out = result.counted.start
    note = f"The first {left_out} steps are left out." if left_out else ""
    table = Table(("what", "how much"), rows, "The loop", note)
    return [table, _each_step(result)]


def _each_step(result: Tracked) -> Figure:
    def paint(figure: Drawing) -> None:
        ax = figure.add_subplot()
        steps = range(1, len(result.step_s) + 1)
        ax.plot(steps, [1e3 * value for value in result.step_s], color=style.BLUE, label="step")
        waits = [1e3 * value for value in result.wait_s]
        ax.plot(steps, waits, "--", color=style.VERMILLION, label="waiting for data")
        kept, _ = style.split_outliers(result.step_s)
        note = style.outliers_note(result.step_s, "step", units.duration)
        ax.set_ylim(0, 1.08e3 * max(kept) or 1)
        ax.set(xlabel="; ".join(filter(None, ("step", note))), ylabel="ms")
        style.legend_below(ax, 2)

    return Figure("steps", "Each step of the loop", f"Times of {result.describe()}", paint, height=2.6)


def sides(result: Comparison, losses: Check) -> list[Content]:
    """What was set from outside in a script, with its proof, what was not, and the losses of both sides."""
    refused = [
        f"{fact.removeprefix('not applied: ')} was not set: {why}"
        for fact, why in result.b.facts.items()
        if fact.startswith("not applied: ")
    ]
    return [*map(Notice, refused), checks("Checks", [*result.b.mechanism, losses])]
