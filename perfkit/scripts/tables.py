"""What watching a script has shown, as sections: its steps, what it waits for, what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.recipe import shown, switches
from perfkit.results.parity import Check
from perfkit.results.run import Comparison
from perfkit.scripts.suggest import Suggestion
from perfkit.scripts.watching import Watched
from perfkit.show import style, units
from perfkit.show.document import Bullets, Col, Content, Figure, Notice, Section, Table, tabulate
from perfkit.show.inside import syncs
from perfkit.show.tables import checks
from perfkit.show.units import clean
from perfkit.trace.report import diagnosis

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from perfkit.scripts.loop import Tracked

_STATES = {"try": "try", "edit": "edit the script", "refused": "no", "on": "has it"}


def watched(result: Watched) -> list[Content]:
    """Everything that watching a script has shown."""
    sections: list[Content] = [
        clean(result.command),
        Section("Its steps", [_steps(result)]),
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
    seen, script, peak = result.seen, result.script, result.peak
    tokens_per_s = seen.tokens / seen.block.seconds if seen.tokens else None
    changed = {name: value for name, value in script.settings.items() if value != switches()[name].default}
    settings = ", ".join(f"{name}={shown(value)}" for name, value in changed.items())
    reserved = (
        "of the process" if peak.reserved is None else f"allocated, {units.size(peak.reserved)} reserved"
    )
    rows = [
        ["samples/s", units.number(seen.block.samples_per_s if seen.block.samples else None)],
        ["tokens/s", units.number(tokens_per_s)],
        ["step", f"{units.duration(seen.step_s)} ({script.step_is}; samples: {script.samples_per_step})"],
        ["waiting for data", units.percent(seen.waiting if script.loader else None)],
        ["samples/s on a held batch", units.number(result.ceiling.samples_per_s if result.ceiling else None)],
        ["peak memory", f"{units.size(peak.allocated)} {reserved}"],
        ["start", units.duration(result.startup_s)],
    ]
    rows += [
        [f"steps with {name}", f"{count} ({units.duration(seconds / count)} each, not counted above)"]
        for name, (count, seconds) in sorted(seen.outside.items())
    ]
    rows += [
        ["trains", f"{', '.join(script.models)} ({script.parameters:,} parameters) on {script.device}"],
        ["is set", settings or "torch's defaults"],
    ]
    known = [row for row in rows if row[1] != units.NOT_AVAILABLE]
    return Table(("what", "how much"), known, f"{len(seen.block.step_s)} plain steps, no profiler")


def suggestions(ideas: Sequence[Suggestion]) -> Table:
    """What to try, the most promising first."""

    def gain(idea: Suggestion) -> str:
        bound = "≤ " if idea.at_most else ""
        return units.NOT_AVAILABLE if idea.gain is None else f"{bound}{units.times(idea.gain)}"

    columns = (
        Col("switch", lambda idea: clean(idea.title)),
        Col("verdict", lambda idea: _STATES[idea.state], narrow=False),
        Col("predicted", gain),
        Col("how", lambda idea: idea.set_options + " (changes training)" * idea.changes_training),
        Col("why", lambda idea: clean(idea.why)),
        Col("the prediction", lambda idea: clean(idea.basis), narrow=False),
    )
    return tabulate(columns, ideas, none="Nothing stands out.")


def sides(result: Comparison, losses: Check) -> list[Content]:
    """What was set from outside in a script, with its proof, what was not, and the losses of both sides."""
    start = "not applied: "
    refused = {
        fact.removeprefix(start): why for fact, why in result.b.facts.items() if fact.startswith(start)
    }
    notices = [Notice(f"{name} was not set: {why}") for name, why in refused.items()]
    return [*notices, checks("Checks", [*result.b.mechanism, losses])]


def tracked(result: Tracked) -> list[Content]:
    """The steps of a loop that was observed: a table, and a picture of the steps one by one."""
    if not result.step_s:
        return [Notice("No step was seen: no batch of a loader was followed by an optimizer step.")]
    rows = [
        ["samples/s", units.number(result.rate(result.samples))],
        ["tokens/s", units.number(result.rate(result.tokens))],
        ["step (median)", units.duration_interval(result.step)],
        ["waiting for data", units.percent(result.waiting)],
        ["steps", str(len(result.step_s))],
    ]
    left_out = result.counted.start
    note = f"The first {left_out} steps are left out." if left_out else ""

    def paint(figure: Drawing) -> None:
        ax = figure.add_subplot()
        steps = range(1, len(result.step_s) + 1)
        ax.plot(steps, [1e3 * value for value in result.step_s], color=style.BLUE, label="step")
        waits = [1e3 * value for value in result.wait_s]
        ax.plot(steps, waits, "--", color=style.VERMILLION, label="waiting for data")
        kept, _ = style.split_outliers(result.step_s)
        outliers = style.outliers_note(result.step_s, "step", units.duration)
        ax.set_ylim(0, 1.08e3 * max(kept) or 1)
        ax.set(xlabel="; ".join(filter(None, ("step", outliers))), ylabel="ms")
        style.legend_below(ax, 2)

    picture = Figure("steps", "Each step of the loop", f"Times of {result.describe()}", paint, height=2.6)
    return [Table(("what", "how much"), rows, "The loop", note), picture]
