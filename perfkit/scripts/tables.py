"""What watching a script has shown, as sections: its steps, what it waits for, what to try."""

from collections.abc import Mapping, Sequence

from perfkit.recipe import Value, shown, switches
from perfkit.results.parity import Check
from perfkit.results.run import Comparison
from perfkit.scripts.suggest import Suggestion
from perfkit.scripts.watching import Watched
from perfkit.show import units
from perfkit.show.document import Bullets, Col, Content, Notice, Section, Table, tabulate
from perfkit.show.tables import checks, syncs
from perfkit.show.units import clean

_WITHOUT_SWITCH = {"edit": "edit the script", "refused": "no", "on": "has it"}


def watched(result: Watched) -> list[Content]:
    """Everything that watching a script has shown."""
    return [
        clean(result.command),
        Section("Its steps", [_steps(result)]),
        Section("What to try", [_suggestions(result.suggestions)]),
        *_bullets(
            "What stands out in a profile",
            [f"{each.bottleneck}, {each.message}" for each in result.bottlenecks],
        ),
        *(syncs(result.syncs) if result.syncs else []),
        *_bullets("Take note", result.warnings),
    ]


def _bullets(title: str, texts: Sequence[str]) -> list[Content]:
    return [Section(title, [Bullets([clean(text) for text in texts])])] if texts else []


def settings(values: Mapping[str, Value]) -> str:
    """Settings as one types them."""
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def _steps(result: Watched) -> Table:
    seen, script, peak = result.seen, result.script, result.peak
    changed = {name: value for name, value in script.settings.items() if value != switches()[name].default}
    trains = f"{', '.join(script.models)} ({script.parameters:,} parameters) on {script.device}"
    rows = [
        ["samples/s", units.number(seen.block.samples_per_s)],
        ["tokens/s", units.number(seen.tokens / seen.block.seconds or None)],
        ["step", f"{units.duration(seen.step_s)} ({script.step_is}; samples: {script.samples_per_step})"],
        ["waiting for data", units.percent(seen.waiting if script.loader else None)],
        ["samples/s on a held batch", units.number(result.ceiling.samples_per_s if result.ceiling else None)],
        ["peak memory", units.size(peak.allocated)],
        ["reserved memory", units.size(peak.reserved)],
        ["start to first batch", units.duration(script.startup_s)],
        ["profile", result.trace or units.NOT_AVAILABLE],
    ]
    for name, (count, seconds) in sorted(seen.outside.items()):
        each = f"{count} ({units.duration(seconds / count)} each, not counted above)"
        rows.append([f"steps with {name}", each])
    rows += [["trains", trains.strip()], ["is set", settings(changed) or "torch's defaults"]]
    count = len(seen.block.step_s)
    title = f"{count} plain step{'s' * (count > 1)}, no profiler"
    return Table(("what", "how much"), [row for row in rows if row[1] != units.NOT_AVAILABLE], title)


def _suggestions(ideas: Sequence[Suggestion]) -> Table:
    """What to try, the most promising first."""

    def gain(idea: Suggestion) -> str:
        if idea.gain is None:
            return units.NOT_AVAILABLE if idea.state == "try" else ""
        return f"{'≤ ' * idea.at_most}{units.times(idea.gain)}"

    def measured(idea: Suggestion) -> str:
        gave = idea.measured
        return f"{units.ratio(gave)}, {gave.verdict}" if gave else ""

    columns = [
        Col("switch", lambda idea: clean(idea.title)),
        Col("predicted", gain),
        *([Col("measured", measured)] if any(idea.measured for idea in ideas) else []),
        Col("set", lambda idea: _WITHOUT_SWITCH.get(idea.state) or settings(idea.settings)),
        Col("why", lambda idea: clean(idea.why)),
    ]
    note = "≤ is a bound: as if its part took no time; n/a: only measuring tells."
    return tabulate(columns, ideas, note=note)


def sides(result: Comparison, proofs: Sequence[Check]) -> list[Content]:
    """What was set from outside in a script, with its proof, what was not, and what both sides train."""
    start, facts = "not applied: ", result.b.facts
    notices = [
        Notice(f"{fact.removeprefix(start)} was not set: {why}")
        for fact, why in facts.items()
        if fact.startswith(start)
    ]
    if "ended" in facts:
        notices.append(Notice(facts["ended"]))
    return [*notices, checks("Checks", [*result.b.mechanism, *proofs])]
