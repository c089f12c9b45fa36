"""A script, watched as it stands: where the time of its steps goes, and what to try."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from perfkit.additions import trace as traces
from perfkit.additions.inside import SYNCS, SyncReport, looks
from perfkit.additions.scripts import suggest
from perfkit.additions.scripts.messages import Observation, ScriptFacts
from perfkit.additions.scripts.study import ScriptSource, script_plan
from perfkit.additions.scripts.suggest import Seen, Suggestion
from perfkit.additions.scripts.watched import Launch
from perfkit.additions.trace import Bottleneck
from perfkit.errors import RunFailed
from perfkit.machine import cores
from perfkit.results.stats import CLEAN
from perfkit.show import units
from perfkit.show.document import Bullets, Content, Section, Table
from perfkit.show.units import clean
from perfkit.studies import rungs
from perfkit.studies.sources import Progress, opened
from perfkit.worker.messages import Block, Peak

BUDGET_S, TRY_S = 60.0, 30.0
"""Seconds for watching once the script trains, and for each suggestion that is tried."""
_STEPS, _OBSERVING, _TRIED, _TRIED_STEPS, _SYNC_STEPS = 60, 0.2, 2, 5, 4
_PROFILED = {"wait": 1, "warmup": 2, "active": 3, "stacks": False}
_COSTS = 20
"""How many plain steps a further question takes, at most."""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What watching a script has shown; a part that was not measured is None or empty.

    `command`: as one types it. `ceiling`: steps on a held batch. `trace`: the file with the profiled steps;
    `bottlenecks`: what stands out in them, besides waiting for data, which the plain steps tell.
    """

    command: str
    script: ScriptFacts
    seen: Observation
    ceiling: Block | None = None
    peak: Peak = Peak(None, None, 0)
    syncs: SyncReport | None = None
    trace: str | None = None
    bottlenecks: list[Bottleneck] = []
    suggestions: list[Suggestion] = []
    warnings: list[str] = []

    def sections(self) -> list[Content]:
        """All of it, for people."""
        sections: list[Content] = [
            clean(self.command),
            Section("Its steps", [self._steps()]),
            Section("What to try", [suggest.table(self.suggestions)]),
        ]
        if self.bottlenecks:
            texts = [clean(f"{each.bottleneck}, {each.message}") for each in self.bottlenecks]
            sections.append(Section("What stands out in a profile", [Bullets(texts)]))
        if self.syncs:
            sections.append(looks.sync_table(self.syncs))
        if self.warnings:
            sections.append(Section("Take note", [Bullets([*map(clean, self.warnings)])]))
        return sections

    def _steps(self) -> Table:
        seen, script = self.seen, self.script
        trains = f"{', '.join(script.models)} ({script.parameters:,} parameters) on {script.device}"
        count = len(seen.block.step_s)
        samples = round(seen.block.samples / count)  # batches may differ, as in epochs of two
        rows = [
            ["samples/s", units.number(seen.block.samples_per_s)],
            ["tokens/s", units.number(seen.tokens / seen.block.seconds or None)],
            ["step", f"{units.duration(seen.step_s)} ({script.step_is}; samples: {samples})"],
            ["waiting for data", units.percent(seen.waiting if script.loader else None)],
            ["samples/s on a held batch", units.number(self.ceiling.samples_per_s if self.ceiling else None)],
            ["peak memory", units.size(self.peak.allocated)],
            ["start to first batch", units.duration(script.startup_s)],
            ["profile", self.trace or units.NOT_AVAILABLE],
            *(
                [f"steps with {name}", f"{many} ({units.duration(spent / many)} each, not counted above)"]
                for name, (many, spent) in sorted(seen.outside.items())
            ),
            ["trains", trains.strip()],
        ]
        known = [row for row in rows if row[1] != units.NOT_AVAILABLE]
        return Table(("what", "how much"), known, f"{count} plain step{'s' * (count > 1)}, no profiler")


def watch(
    launch: Launch, progress: Progress | None = None, budget_s: float = BUDGET_S, tries: bool = False
) -> Watched:
    """Watches some plain steps of a script, fewer if they take longer than a fifth of the budget.

    `budget_s`: seconds that it may take once the script trains; what does not fit is left out. `tries`: the
    two best suggestions are measured too, for about 30 s each.
    """
    progress = progress or Progress()
    with opened(script_plan(launch), progress) as source:
        assert isinstance(source, ScriptSource)
        with progress.part(0, 1 + tries):
            result = _ask(source, budget_s, progress)
        best = [idea for idea in result.suggestions if idea.state == "try"][: _TRIED * tries]
        side_s = result.script.startup_s + _TRIED_STEPS * result.seen.step_s
        if best and side_s > 2 * TRY_S:
            slow = f"nothing was tried, as the first steps take {side_s:.0f} s: use perfkit referee"
            result = msgspec.structs.replace(result, warnings=[*result.warnings, slow])
        elif best:
            with progress.part(1, 2):
                ideas = [*_try(source, best), *result.suggestions[len(best) :]]
            result = msgspec.structs.replace(result, suggestions=ideas)
    return result


def _ask(source: ScriptSource, budget_s: float, progress: Progress) -> Watched:
    """Asks the script everything for which there is time."""
    script, until, missing = source.take(), time.monotonic() + budget_s, list[str]()
    before = cores.cpu_times(script.cpu_s())
    plain = script.ask("observe", steps=_STEPS, seconds=budget_s * _OBSERVING)
    taken = cores.taken_share(before, cores.cpu_times(script.cpu_s()))
    peak, facts = script.ask("peak"), script.ask("describe")

    def ask(what: str, question: str, **arguments: Any) -> Any:
        """The answer, or None: the script has ended, or it would take too long."""
        nonlocal plain
        left_s = until - time.monotonic()
        progress.reach(1 - left_s / budget_s)
        if _COSTS * plain.step_s < left_s:
            script.timeout_s = left_s
            try:
                return script.ask(question, **arguments)
            except RunFailed as problem:
                if problem.kind == "ended":
                    plain = msgspec.structs.replace(plain, ended=True)
                elif time.monotonic() < until:
                    raise
        missing.append(what)
        return None

    ceiling = ask("a held batch", "ceiling", samples=plain.block.samples) if facts.loader else None
    syncs = ask("hidden waits", SYNCS, steps=_SYNC_STEPS)
    trace = ask("a profile", "profile", path=str(traces.new_file()), **_PROFILED)
    diagnosis = traces.analyse(trace, facts.device == "cpu").diagnosis if trace else []
    speed = None
    if ceiling and facts.settings.get("amp") == "off" and not {"amp", "compile"} & facts.refused.keys():
        seconds = budget_s * _OBSERVING
        try:  # at last: a model may have operators that fail in bfloat16
            if in_16_bits := ask("bfloat16", "in_16_bits", samples=ceiling.samples, seconds=seconds):
                speed = in_16_bits.samples_per_s / ceiling.samples_per_s
        except RunFailed as problem:
            refused = {**facts.refused, "amp": f"while it computed in bfloat16, {problem.what}"}
            facts = msgspec.structs.replace(facts, refused=refused)
    script.stop()
    source.facts = facts
    seen = Seen(source.target, plain, cores.usable_cores(), ceiling, speed, facts.has_fused)
    return Watched(
        command=script.launch.describe(),
        script=facts,
        seen=plain,
        ceiling=ceiling,
        peak=peak,
        syncs=syncs,
        trace=trace,
        # The suggestions say what can be gained, and the plain steps how long data are waited for.
        bottlenecks=[
            msgspec.structs.replace(each, gain_at_most=None)
            for each in diagnosis
            if each.bottleneck != "data-bound"
        ],
        suggestions=suggest.suggest(seen),
        warnings=[*facts.notes, *_remarks(plain, taken, missing)],
    )


def _remarks(seen: Observation, taken: float, missing: list[str]) -> Iterator[str]:
    if seen.ended:
        yield f"the script came to its end after {seen.steps} steps: let it train longer to see more"
    elif missing:
        step = units.duration(seen.step_s)
        yield f"no time was left to measure {', '.join(missing)} (a step takes {step}): raise --budget"
    if taken > CLEAN:
        yield f"other programs took {taken:.0%} of the cores: close them, then watch it again"


def _try(source: ScriptSource, ideas: list[Suggestion]) -> Iterator[Suggestion]:
    """Measures suggestions, in turn with the script as it is."""
    base = source.baseline()
    recipes = [("as it is", base), *((idea.title, base.replace(**idea.settings)) for idea in ideas)]
    rule = replace(source.plan.preset, budget_s=TRY_S / 2, cached=0)
    source.plan = replace(source.plan, timeout_s=4 * TRY_S)
    _, *runs = source.measure(rungs.recipe_stages(recipes, source.target), rule)
    for idea, run in zip(ideas, runs, strict=True):
        if ratio := run.speedup("baseline"):
            yield suggest.tried(idea, ratio)
        else:
            yield msgspec.structs.replace(idea, state="refused", why=f"it failed: {run.reason or run.status}")
