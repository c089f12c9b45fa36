"""A script, watched as it stands: where the time of its run goes, and what to try."""

import math
import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from perfkit import machine
from perfkit.additions.advice.finding import Finding, ordered, warnings_of
from perfkit.additions.inside import SYNCS, SyncReport
from perfkit.additions.looking import new_trace
from perfkit.additions.scripts import causes, evidence, report
from perfkit.additions.scripts.causes import Growth, Switches, Symptoms
from perfkit.additions.scripts.evidence import Evidence
from perfkit.additions.scripts.messages import Observation
from perfkit.additions.scripts.run_account import OF_STEP
from perfkit.additions.scripts.study import UNCHANGED, Memory, ScriptSource, script_plan
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.additions.trend import Trend, trend
from perfkit.errors import RunFailed, TrainingEnded
from perfkit.ladder.catalogue import Budget
from perfkit.machine import cores
from perfkit.results.stats import CLEAN
from perfkit.show.document import Content
from perfkit.studies import staging
from perfkit.studies.sources import Progress
from perfkit.worker.messages import Peak

BUDGET_S = 60.0  # seconds for watching once the script trains
TRY_S = 30.0  # seconds for each suggestion that is tried
_TRIED = 2
_TRIED_STEPS = 5
_STEPS = 60  # plain steps that are timed, if they fit into the next part of the budget
_OBSERVING = 0.2
_SYNC_STEPS = 4
_LOOKING = 0.08  # the part of the budget in which stacks are looked at
_GOING_ON = 0.5  # of what is left then: the part in which the script goes on by itself
_PROFILED = {"wait": 1, "warmup": 2, "active": 3, "stacks": False}
_COSTS = 20  # how many plain steps a further question takes, at most
_PATIENCE_S = 60.0  # how much longer than its budget a look may take: an evaluation may be under way
_LEAST_FASTER = 1.3  # how many times as fast steps with one compute thread must be to be suggested


class Watched(Symptoms, frozen=True, kw_only=True):
    """What watching a script has shown, as in docs/json.md; what was not measured is None or empty."""

    command: str
    seen: Observation
    step: dict[str, float]
    findings: list[Finding]
    peak: Peak
    syncs: SyncReport | None
    trace: str | None
    suggestions: list[Finding]
    warnings: list[str]
    is_disturbed: bool

    @property
    def first_sentence(self) -> str:
        return report.first_sentence(self)

    def sections(self) -> list[Content]:
        return report.sections(self)


def watch(
    launch: Launch,
    progress: Progress | None = None,
    budget_s: float = BUDGET_S,
    after: int = 0,
    whole: bool = False,
    tries: bool = False,
) -> Watched:
    """Watches some plain steps of a script, fewer if they take longer than a fifth of the budget.

    `budget_s`: seconds that it may take once the script trains; what does not fit is left out. `after`: this
    many steps pass before it is looked at. `whole`: it runs to its end, and only its time is noted once it
    was looked at. `tries`: the two best suggestions are measured too, for about 30 s each.
    """
    progress = progress or Progress()
    with script_plan(launch).open(progress) as source:
        assert isinstance(source, ScriptSource)
        with progress.part(0, 1 + tries):
            result = _Watching(source, budget_s, progress).ask(after, whole)
        if not tries:
            return result
        with progress.part(1, 2):
            return _tried(source, result)


def _tried(source: ScriptSource, result: Watched) -> Watched:
    """The result, with what the best suggestions gave in turn with the script as it is."""
    side_s = result.script.startup_s + _TRIED_STEPS * result.seen.step_s
    if side_s > 2 * TRY_S:
        slow = f"nothing was tried, as the first steps take {side_s:.0f} s: use perfkit referee"
        return msgspec.structs.replace(result, warnings=[*result.warnings, slow])
    best = result.suggestions[:_TRIED]
    base = source.baseline()
    recipes = [(UNCHANGED, base), *((idea.cause, base.replace(**idea.settings)) for idea in best)]
    rule = replace(source.plan.rule, budget=Budget(TRY_S / 2), cached=0)
    source.plan = replace(source.plan, timeout_s=4 * TRY_S)
    _, *runs = source.measure(staging.recipe_stages(recipes, source.target), rule)
    ideas = result.suggestions[_TRIED:]
    for idea, run in zip(best, runs, strict=True):
        if ratio := run.speedup("baseline"):  # one that failed is suggested no more
            ideas.append(msgspec.structs.replace(idea, measured=ratio))
    return msgspec.structs.replace(result, suggestions=ordered(ideas))


class _Watching:
    """Asks a script everything for which there is time, in the order of what it tells."""

    def __init__(self, source: ScriptSource, budget_s: float, progress: Progress) -> None:
        self._source, self._budget_s, self._progress = source, budget_s, progress
        self._script: WatchedScript = source.take()
        self._until = time.monotonic() + budget_s
        self._missing = list[str]()  # what there was no time for
        self._ended = False
        self._is_busy = False  # with a question that took too long: until it has answered, it hears no other
        self._denormal = 0.0

    def ask(self, after: int, whole: bool) -> Watched:
        """Some plain steps, then some that are looked at, then how it goes on."""
        script, budget_s = self._script, self._budget_s
        if after:
            script.ask("run_on", steps=after)
            self._until = time.monotonic() + budget_s
        before = cores.cpu_times(script.tree.cpu_s())
        self._plain: Observation = script.ask("observe", steps=_STEPS, seconds=budget_s * _OBSERVING)
        self._taken = cores.taken_share(before, cores.cpu_times(script.tree.cpu_s()))
        self._account, self._facts = script.ask("account"), script.ask("describe")
        peak = script.ask("peak")
        # Threads of a step wait for each other where other programs take the cores; one has no such waits.
        threads = 1 if self._is_disturbed and self._facts.device == "cpu" else 0
        seconds = budget_s * _LOOKING
        patience_s = math.inf if whole else _PATIENCE_S
        looked: Evidence = self._look(
            "the lines", evidence.QUESTION, patience_s, seconds=seconds, threads=threads
        ) or Evidence(steps=0)
        memory = self._go_on(whole, patience_s)
        syncs = self._look("hidden waits", SYNCS, steps=_SYNC_STEPS)
        trace = self._look("a profile", "profile", path=str(new_trace()), **_PROFILED)
        symptoms = self._symptoms(looked, memory)
        script.stop()
        self._source.facts = self._facts
        speed = self._plain.step_s * looked.steps / looked.steps_s
        is_faster = threads and looked.threads > 1 and speed >= _LEAST_FASTER
        one_thread = speed if is_faster else None
        seen = Switches(symptoms, self._source.target, self._plain, self._is_disturbed, one_thread)
        findings = causes.findings(symptoms)
        return Watched(
            **msgspec.structs.asdict(symptoms) | {"run": msgspec.structs.replace(self._account, plain=[])},
            command=script.launch.describe(),
            seen=msgspec.structs.replace(self._plain, ended=self._plain.ended or self._ended),
            step=looked.of_step if looked.steps and self._facts.device != "cpu" else self._account.of_step,
            findings=findings,
            peak=peak,
            syncs=syncs,
            trace=trace,
            suggestions=causes.suggest(seen, {each.cause for each in findings}),
            warnings=[*self._facts.notes, *self._remarks()],
            is_disturbed=self._is_disturbed,
        )

    @property
    def _is_disturbed(self) -> bool:
        return self._taken > CLEAN

    def _symptoms(self, looked: Evidence, memory: Growth | None) -> Symptoms:
        trend, growing = self._trend()
        return Symptoms(
            script=self._facts,
            run=self._account,
            evidence=msgspec.structs.replace(looked, denormal=max(looked.denormal, self._denormal)),
            cores=cores.usable_cores(),
            cpu_has_bf16=any("bf16" in flag for flag in machine.facts()["cpu"]["flags"]),
            trend=trend,
            growing=growing if self._facts.device == "cpu" else "",  # elsewhere parts are times of launches
            memory=memory,
            printed=warnings_of(self._script.written("err")),
        )

    def _look(self, what: str, question: str, patience_s: float = 0.0, **arguments: Any) -> Any:
        """The answer, or None: the script has ended, or it would take too long."""
        left_s = self._until - time.monotonic() + patience_s
        self._progress.reach(1 - left_s / self._budget_s)
        if not (self._ended or self._is_busy) and _COSTS * self._plain.step_s < left_s:
            self._script.timeout_s = left_s
            try:
                return self._script.ask(question, **arguments)
            except RunFailed as problem:
                self._ended = isinstance(problem, TrainingEnded)
                if not self._ended and time.monotonic() < self._until + patience_s:
                    raise
                self._is_busy = not self._ended
        self._missing.append(what)
        return None

    def _go_on(self, whole: bool, patience_s: float) -> Growth | None:
        """Lets it go on by itself; how its memory grew meanwhile: looks take some for themselves."""
        if self._is_busy:
            self._missing.append("later steps")
            return None
        first = Memory.of(self._script.tree)
        left_s = self._until - time.monotonic()
        began = self._script.ask("account").last
        if left_s > 0 or whole:
            seconds = math.inf if whole else _GOING_ON * left_s
            self._ended = bool(self._look("later steps", "run_on", patience_s, seconds=seconds))
        if not self._is_busy:
            self._account, self._facts = self._script.ask("account"), self._script.ask("describe")
            self._denormal = self._script.ask(evidence.STATE)
        steps = self._account.last - began
        last = Memory.of(self._script.tree)
        if not (first.own and last.own and steps > 0):
            return None
        return Growth(steps, first.own, last.own, first.others, last.others, last.threads)

    def _trend(self) -> tuple[Trend | None, str]:
        plain = self._account.plain
        numbers = [step.number for step in plain]
        seconds = [step.seconds for step in plain]
        # Other programs come and go: while they take the cores, steps get slower by themselves.
        found = None if self._is_disturbed else trend(numbers, seconds, self._account.epochs)
        if found is None or found.kind == "steady":
            return found, ""
        third = max(1, len(plain) // 3)
        parts = np.array([step.parts for step in plain])
        grew = np.median(parts[-third:], axis=0) - np.median(parts[:third], axis=0)
        largest = int(grew.argmax())
        return found, OF_STEP[largest] if grew[largest] > 0.8 * np.abs(grew).sum() else ""

    def _remarks(self) -> list[str]:
        ended = self._account.last if self._ended or self._plain.ended else 0
        text = str(report.SENTENCES.remarks(ended, self._missing, self._plain.step_s, self._taken))
        return [part.strip() for part in text.split("|") if part.strip()]
