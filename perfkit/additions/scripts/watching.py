"""A script, watched as it stands: where the time of its run goes, and what to try."""

import contextlib
import math
import re
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import psutil

from perfkit import machine
from perfkit.additions.inside import SYNCS, SyncReport
from perfkit.additions.inside.trend import Trend, trend
from perfkit.additions.scripts import causes, evidence, report, suggest
from perfkit.additions.scripts.causes import Finding, Growth, Symptoms
from perfkit.additions.scripts.evidence import Evidence
from perfkit.additions.scripts.messages import Observation, ScriptFacts
from perfkit.additions.scripts.run_account import OF_STEP, Account
from perfkit.additions.scripts.study import ScriptSource, script_plan
from perfkit.additions.scripts.suggest import Seen, Suggestion
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.model import Bottleneck
from perfkit.additions.trace.profile import new_file
from perfkit.errors import RunFailed
from perfkit.machine import cores
from perfkit.results.stats import CLEAN
from perfkit.show import units
from perfkit.show.document import Content
from perfkit.studies import rungs
from perfkit.studies.sources import Progress, opened
from perfkit.worker.messages import Block, Peak

BUDGET_S, TRY_S = 60.0, 30.0
"""Seconds for watching once the script trains, and for each suggestion that is tried."""
_STEPS, _OBSERVING, _TRIED, _TRIED_STEPS, _SYNC_STEPS = 60, 0.2, 2, 5, 4
_LOOKING = 0.08
"""The part of the budget in which stacks are looked at."""
_GOING_ON = 0.5
"""Of what is left then: the part in which the script goes on by itself."""
_PROFILED = {"wait": 1, "warmup": 2, "active": 3, "stacks": False}
_COSTS = 20
"""How many plain steps a further question takes, at most."""
_PATIENCE_S = 60.0
"""How much longer than its budget a look may take: an evaluation may be under way."""
_CONTRADICTS = 0.97
"""A cached batch that is slower than this part of the pace with loading cannot be."""
_LEAST_FASTER = 1.3
"""How many times as fast steps with one compute thread must be to be suggested."""
_MOST_WARNINGS = 12
_FOREVER = 10**12


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What watching a script has shown; a part that was not measured is None or empty.

    `command`: as one types it. `run`: the wall time that was seen, `step`: seconds of a plain step by part.
    `findings`: what is avoidable, the largest first. `ceiling`: steps on a cached batch. `trace`: the file
    with the profiled steps; `bottlenecks`: what stands out in them on an accelerator. `printed`: warnings of
    the script itself.
    """

    command: str
    script: ScriptFacts
    seen: Observation
    run: Account
    evidence: Evidence
    step: dict[str, float] = {}
    trend: Trend | None = None
    growing: str = ""
    memory: Growth | None = None
    findings: list[Finding] = []
    ceiling: Block | None = None
    peak: Peak = Peak(None, None, 0)
    syncs: SyncReport | None = None
    trace: str | None = None
    bottlenecks: list[Bottleneck] = []
    suggestions: list[Suggestion] = []
    printed: list[str] = []
    warnings: list[str] = []
    is_disturbed: bool = False

    @property
    def first_sentence(self) -> str:
        """The largest avoidable thing."""
        return report.first_sentence(self)

    def sections(self) -> list[Content]:
        """All of it, for people."""
        return report.sections(self)


def watch(
    launch: Launch,
    progress: Progress | None = None,
    budget_s: float = BUDGET_S,
    tries: bool = False,
    after: int = 0,
    whole: bool = False,
) -> Watched:
    """Watches some plain steps of a script, fewer if they take longer than a fifth of the budget.

    `budget_s`: seconds that it may take once the script trains; what does not fit is left out. `tries`: the
    two best suggestions are measured too, for about 30 s each. `after`: this many steps pass before it is
    looked at. `whole`: it runs to its end, and only its time is noted once it was looked at.
    """
    progress = progress or Progress()
    with opened(script_plan(launch), progress) as source:
        assert isinstance(source, ScriptSource)
        with progress.part(0, 1 + tries):
            result = _Watching(source, budget_s, progress).ask(after, whole)
        best = [idea for idea in result.suggestions if idea.state == "try"][: _TRIED if tries else 0]
        side_s = result.script.startup_s + _TRIED_STEPS * result.seen.step_s
        if best and side_s > 2 * TRY_S:
            slow = f"nothing was tried, as the first steps take {side_s:.0f} s: use perfkit referee"
            result = msgspec.structs.replace(result, warnings=[*result.warnings, slow])
        elif best:
            with progress.part(1, 2):
                ideas = [*_try(source, best), *result.suggestions[len(best) :]]
            result = msgspec.structs.replace(result, suggestions=suggest.ordered(ideas))
    return result


class _Watching:
    """Asks a script everything for which there is time, in the order of what it tells."""

    def __init__(self, source: ScriptSource, budget_s: float, progress: Progress) -> None:
        self._source, self._budget_s, self._progress = source, budget_s, progress
        self._script: WatchedScript = source.take()
        self._until = time.monotonic() + budget_s
        self._missing, self._ended = list[str](), False

    def ask(self, after: int, whole: bool) -> Watched:
        """All that it tells."""
        script, budget_s = self._script, self._budget_s
        if after:
            script.ask("run_on", steps=after, seconds=_FOREVER)
            self._until = time.monotonic() + budget_s
        before = cores.cpu_times(script.cpu_s())
        self._plain: Observation = script.ask("observe", steps=_STEPS, seconds=budget_s * _OBSERVING)
        taken = cores.taken_share(before, cores.cpu_times(script.cpu_s()))
        is_disturbed, self._account = taken > CLEAN, script.ask("account")
        memory, facts, peak = self._memory(), script.ask("describe"), script.ask("peak")
        threads = 1 if is_disturbed and facts.device == "cpu" else 0
        seconds = budget_s * _LOOKING
        seen: Evidence = self._look(
            "the lines", evidence.QUESTION, _PATIENCE_S, seconds=seconds, threads=threads
        ) or Evidence(steps=0)
        self._go_on(whole)
        ceiling = self._ceiling() if facts.loader else None
        syncs = self._look("hidden waits", SYNCS, steps=_SYNC_STEPS)
        trace = self._look("a profile", "profile", path=str(new_file()), **_PROFILED)
        changes, growing = self._trend(is_disturbed)
        bf16 = any("bf16" in flag for flag in machine.facts()["cpu"]["flags"])
        symptoms = Symptoms(
            script=facts,
            account=self._account,
            evidence=seen,
            cores=cores.usable_cores(),
            cpu_has_bf16=bf16,
            trend=changes,
            growing=growing,
            memory=self._growth(memory),
            printed=warnings_of(script.written("err")),
        )
        script.stop()
        self._source.facts = facts
        fastest = _one_thread(seen, self._plain) if threads else None
        where, found = self._source.target, causes.findings(symptoms)
        told = Seen(where, self._plain, symptoms.cores, ceiling, facts.has_fused, is_disturbed, bf16, fastest)
        diagnosis = analyse(trace).diagnosis if trace and facts.device != "cpu" else []
        return Watched(
            command=script.launch.describe(),
            script=facts,
            seen=msgspec.structs.replace(self._plain, ended=self._plain.ended or self._ended),
            run=msgspec.structs.replace(self._account, plain=[]),
            step=self._account.of_step,
            trend=changes,
            growing=growing,
            memory=symptoms.memory,
            evidence=seen,
            findings=found,
            ceiling=ceiling,
            peak=peak,
            syncs=syncs,
            trace=trace,
            # What can be gained is said above, and how long data are waited for by the steps.
            bottlenecks=[
                msgspec.structs.replace(each, gain_at_most=None)
                for each in diagnosis
                if each.bottleneck != "data-bound"
            ],
            suggestions=suggest.suggest(told, {each.cause for each in found}),
            printed=[*symptoms.printed],
            warnings=[*facts.notes, *self._remarks(taken)],
            is_disturbed=is_disturbed,
        )

    # ------------------------------------------------------------ asking

    def _look(self, what: str, question: str, patience_s: float = 0.0, **arguments: Any) -> Any:
        """The answer, or None: the script has ended, or it would take too long."""
        left_s = self._until - time.monotonic() + patience_s
        self._progress.reach(1 - left_s / self._budget_s)
        if not self._ended and _COSTS * self._plain.step_s < left_s:
            self._script.timeout_s = left_s
            try:
                return self._script.ask(question, **arguments)
            except RunFailed as problem:
                self._ended = problem.kind == "ended"
                if not self._ended and time.monotonic() < self._until + patience_s:
                    raise
                if not self._ended:
                    self._until = -math.inf  # it is still busy with this question
        self._missing.append(what)
        return None

    def _ceiling(self) -> Block | None:
        """Steps on a cached batch; measured again if they are slower than with loading, which cannot be."""
        for _ in range(2):
            block: Block | None = self._look("a cached batch", "ceiling", samples=self._plain.block.samples)
            if block is None or block.samples_per_s >= _CONTRADICTS * self._plain.block.samples_per_s:
                return block
        return None

    def _go_on(self, whole: bool) -> None:
        """Lets the script go on by itself, as later steps may differ; then asks where its time went."""
        left_s = self._until - time.monotonic()
        if left_s > 0 or whole:
            seconds = _FOREVER if whole else _GOING_ON * left_s
            patience_s = _FOREVER if whole else _PATIENCE_S
            ended = self._look("later steps", "run_on", patience_s, steps=_FOREVER, seconds=seconds)
            self._ended = bool(ended)
        if self._until > 0:
            self._account = self._script.ask("account")

    # ------------------------------------------------------------ from outside

    def _memory(self) -> tuple[int, int, int]:
        """Bytes of the process, of all its workers without what they share, and most threads of a worker."""
        own, workers, threads = 0, 0, 0
        tree = self._script.trees[0]
        for process in tree.processes():
            with contextlib.suppress(psutil.Error, AttributeError):  # it has just ended
                if process == tree.root:
                    own = process.memory_info().rss
                else:
                    workers += process.memory_full_info().uss
                    threads = max(threads, process.num_threads())
        return own, workers, threads

    def _growth(self, first: tuple[int, int, int]) -> Growth | None:
        steps, last = self._account.last - self._plain.steps, self._memory()
        if not (first[0] and last[0] and steps > 0):
            return None
        return Growth(steps, first[0], last[0], first[1], last[1], last[2])

    def _trend(self, is_disturbed: bool) -> tuple[Trend | None, str]:
        """How steps change, and which of their parts does."""
        plain = self._account.plain
        numbers, seconds = [step.number for step in plain], [step.seconds for step in plain]
        # Other programs come and go: while they take the cores, steps get slower by themselves.
        found = None if is_disturbed else trend(numbers, seconds, self._account.epochs)
        if found is None or found.kind == "steady":
            return found, ""
        third = max(1, len(plain) // 3)
        first, last = (
            [statistics.median(each) for each in zip(*(step.parts for step in part), strict=True)]
            for part in (plain[:third], plain[-third:])
        )
        grew = [after - before for before, after in zip(first, last, strict=True)]
        largest = grew.index(max(grew))
        return found, OF_STEP[largest] if grew[largest] > 0.8 * sum(map(abs, grew)) else ""

    def _remarks(self, taken: float) -> Iterator[str]:
        if self._ended or self._plain.ended:
            steps = self._account.last
            yield f"the script came to its end after {steps} steps: let it train longer to see more"
        elif self._missing:
            step, what = units.duration(self._plain.step_s), ", ".join(dict.fromkeys(self._missing))
            yield f"no time was left to measure {what} (a step takes {step}): raise --budget"
        if taken > CLEAN:
            yield (
                f"other programs took {taken:.0%} of the cores, so shares are rough, no bound is certain, "
                "and no trend can be seen: close them, then watch it again"
            )


def _one_thread(seen: Evidence, plain: Observation) -> float | None:
    """How many times as fast steps were with one compute thread; None if they were not clearly faster."""
    if not seen.steps or seen.threads < 2:
        return None
    speed = plain.step_s * seen.steps / seen.steps_s
    return speed if speed >= _LEAST_FASTER else None


def warnings_of(lines: Iterable[str]) -> list[str]:
    """The warnings among what a script printed, once each, with their place."""
    found = dict[str, None]()
    for line in lines:
        if re.match(r".+?:\d+: \w*Warning: ", line) or "torch._dynamo hit config" in line:
            found.setdefault(line.strip())
    return [*found][:_MOST_WARNINGS]


def _try(source: ScriptSource, ideas: list[Suggestion]) -> Iterator[Suggestion]:
    """Measures suggestions, in turn with the script as it is."""
    base = source.baseline()
    recipes = [("as it is", base), *((idea.title, base.replace(**idea.settings)) for idea in ideas)]
    rule = replace(source.plan.rule, budget_s=TRY_S / 2, cached=0)
    source.plan = replace(source.plan, timeout_s=4 * TRY_S)
    _, *runs = source.measure(rungs.recipe_stages(recipes, source.target), rule)
    for idea, run in zip(ideas, runs, strict=True):
        if ratio := run.speedup("baseline"):
            yield suggest.tried(idea, ratio)
        else:
            yield msgspec.structs.replace(idea, state="refused", why=f"it failed: {run.reason or run.status}")
