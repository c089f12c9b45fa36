"""What watching a script has shown, as sections: its steps, what it waits for, what to try."""

from collections.abc import Sequence
from dataclasses import replace

from perfkit.recipe import shown, switches
from perfkit.results.parity import Check
from perfkit.results.run import Comparison
from perfkit.scripts.suggest import Suggestion
from perfkit.scripts.watching import Watched
from perfkit.show import units
from perfkit.show.document import Bullets, Col, Content, Notice, Section, Table, tabulate
from perfkit.show.inside import syncs
from perfkit.show.tables import checks
from perfkit.show.units import clean
from perfkit.trace.report import diagnosis

_WITHOUT_SWITCH = {"edit": "edit the script", "refused": "no", "on": "has it"}


def watched(result: Watched) -> list[Content]:
    """Everything that watching a script has shown."""
    sections: list[Content] = [
        clean(result.command),
        Section("Its steps", [_steps(result)]),
        Section("What to try", [suggestions(result.suggestions)]),
    ]
    if result.bottlenecks:
        table = replace(diagnosis(result.bottlenecks), title="")
        sections.append(Section("What stands out in a profile", [table]))
    if result.syncs:
        sections += syncs(result.syncs)
    if result.warnings:
        sections.append(Section("Take note", [Bullets([clean(text) for text in result.warnings])]))
    return sections


def _steps(result: Watched) -> Table:
    seen, script, peak = result.seen, result.script, result.peak
    changed = {name: value for name, value in script.settings.items() if value != switches()[name].default}
    settings = ", ".join(f"{name}={shown(value)}" for name, value in changed.items())
    rows = [
        ["samples/s", units.number(seen.block.samples_per_s)],
        ["tokens/s", units.number(seen.tokens / seen.block.seconds or None)],
        ["step", f"{units.duration(seen.step_s)} ({script.step_is}; samples: {script.samples_per_step})"],
        ["waiting for data", units.percent(seen.waiting if script.loader else None)],
        ["samples/s on a held batch", units.number(result.ceiling.samples_per_s if result.ceiling else None)],
        ["peak memory", units.size(peak.allocated)],
        ["reserved memory", units.size(peak.reserved)],
        ["start", units.duration(result.startup_s)],
        ["profile", result.trace or units.NOT_AVAILABLE],
    ]
    rows += [
        [f"steps with {name}", f"{count} ({units.duration(seconds / count)} each, not counted above)"]
        for name, (count, seconds) in sorted(seen.outside.items())
    ]
    rows += [
        [
            "trains",
            f"{', '.join(script.models)} ({script.parameters:,} parameters) on {script.device}".strip(),
        ],
        ["is set", settings or "torch's defaults"],
    ]
    known = [row for row in rows if row[1] != units.NOT_AVAILABLE]
    count = len(seen.block.step_s)
    return Table(("what", "how much"), known, f"{count} plain step{'s' * (count > 1)}, no profiler")


def suggestions(ideas: Sequence[Suggestion]) -> Table:
    """What to try, the most promising first."""

    def gain(idea: Suggestion) -> str:
        if idea.gain is None:
            return units.NOT_AVAILABLE if idea.state == "try" else ""
        return f"{'≤ ' * idea.at_most}{units.times(idea.gain)}"

    def measured(idea: Suggestion) -> str:
        gave = idea.measured
        return f"{units.ratio(gave)}, {gave.verdict}" if gave else ""

    def how(idea: Suggestion) -> str:
        options = ", ".join(f"{name}={shown(value)}" for name, value in idea.settings.items())
        return _WITHOUT_SWITCH.get(idea.state, options)

    columns = [
        Col("switch", lambda idea: clean(idea.title)),
        Col("predicted", gain),
        *([Col("measured", measured)] if any(idea.measured for idea in ideas) else []),
        Col("set", how),
        Col("why", lambda idea: clean(idea.why)),
        Col("basis", lambda idea: clean(idea.basis)),
    ]
    return tabulate(columns, ideas, none="Nothing stands out.")


def sides(result: Comparison, proofs: Sequence[Check]) -> list[Content]:
    """What was set from outside in a script, with its proof, what was not, and what both sides train."""
    start, facts = "not applied: ", result.b.facts
    refused = {fact.removeprefix(start): why for fact, why in facts.items() if fact.startswith(start)}
    notices = [Notice(f"{name} was not set: {why}") for name, why in refused.items()]
    if "ended" in facts:
        notices.append(Notice(facts["ended"]))
    return [*notices, checks("Checks", [*result.b.mechanism, *proofs])]
