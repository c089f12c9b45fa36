"""Watching a script as it is: where the time of its run goes, and what to try."""

import itertools
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from perfkit import machine
from perfkit.additions.advice.finding import Finding, warnings_of
from perfkit.additions.inside import SYNCS, SyncReport
from perfkit.additions.scripts import advice, messages, report, study
from perfkit.additions.scripts.messages import Account, Evidence, Growth, Observation, ScriptFacts, Symptoms
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.additions.shared.looking import PROFILE, new_trace
from perfkit.additions.shared.memory import Memory
from perfkit.additions.shared.trend import Trend, trend
from perfkit.errors import TookTooLong, TrainingEnded
from perfkit.ladder.catalogue import Budget
from perfkit.machine import cores
from perfkit.results.stats import CLEAN
from perfkit.rules import Target
from perfkit.show.document import Content
from perfkit.studies import staging
from perfkit.studies.sources import Progress
from perfkit.worker.messages import Peak

BUDGET_S = 60.0  # seconds for watching once the script trains
TRY_S = 30.0  # seconds for each switch that is tried
EVIDENCE = "perfkit.additions.scripts.evidence:evidence"  # questions, which the script's process imports
STATE = "perfkit.additions.scripts.evidence:denormals"
LIMIT = messages.limits("watching")


class Watched(Symptoms, frozen=True, kw_only=True):
    """The result of watching a script, as in docs/json.md; what was not measured is None or empty."""

    command: str
    seen: Observation
    step: dict[str, float]
    findings: list[Finding] = msgspec.field(default_factory=list)
    peak: Peak
    syncs: SyncReport | None
    trace: str | None
    suggestions: list[Finding] = msgspec.field(default_factory=list)
    warnings: list[str]

    def sections(self) -> list[Content]:
        return report.sections(self)


def watch_script(
    launch: Launch,
    progress: Progress | None = None,
    budget_s: float = BUDGET_S,  # seconds of watching, once the script trains
    after: int = 0,  # steps that pass before it is looked at
    whole: bool = False,  # whether it runs to its end
    tries: bool = False,  # whether the two best suggestions are measured, about 30 s or more each
) -> Watched:
    """Watches some plain steps of a script, fewer if they take longer than a fifth of the budget."""
    progress = progress or Progress()
    with study.script_plan(study.ScriptStarter(launch)).open(progress) as session:
        with progress.part(0, 2 if tries else 1):
            script = session.take()
            answers = asked(script, budget_s, progress, after, whole)
            source = session.source.knowing(answers.facts)
            result = watched(answers, launch.describe(), source.target)
            script.stop()
        if not tries:
            return result
        session.source = replace(source, plan=replace(source.plan, timeout_s=4 * TRY_S))
        with progress.part(1, 2):
            tried = _tried(session, result)
            progress.found = tried
            return tried


def _tried(session: study.ScriptSession, result: Watched) -> Watched:
    """The result with measured gains of the best suggestions, or with a warning that says why not."""
    best = result.suggestions[: LIMIT.tried]
    side_s = result.script.startup_s + LIMIT.tried_steps * result.seen.step_s
    if not best or side_s > 2 * TRY_S:
        reason = f"a start takes {side_s:.0f} s: use perfkit referee" if best else "no switch is suggested"
        warnings = [*result.warnings, f"nothing was tried, as {reason}"]
        return msgspec.structs.replace(result, warnings=warnings)
    source, base = session.source, session.source.baseline()
    recipes = [(study.UNCHANGED, base), *((idea.cause, base.replace(**idea.settings)) for idea in best)]
    rule = replace(source.plan.rule, budget=Budget(TRY_S), cached=0)
    plain, *runs = session.measure(staging.recipe_stages(recipes, source.target), rule)
    problems = []
    if session.stopped:
        problems.append(f"trying switches ended early: {str(session.stopped) or 'Ctrl-C was pressed'}")
    ideas = result.suggestions[LIMIT.tried :]
    for idea, run in zip(best, runs, strict=True):
        measured = run.speedup("baseline")
        ideas.append(msgspec.structs.replace(idea, measured=measured))
        if measured is None:
            problems.append(f"trying {idea.cause} gave no result: {run.reason or plain.reason}")
    warnings = [*result.warnings, *problems]
    return msgspec.structs.replace(result, suggestions=advice.ordered(ideas), warnings=warnings)


@dataclass
class Answers:
    """The answers of a script; None for questions that it was not asked or answered late: `missing`."""

    script: WatchedScript
    plain: Observation
    account: Account
    facts: ScriptFacts
    peak: Peak
    taken: float  # the share of the cores that other programs took
    evidence: Evidence | None = None
    denormal: float = 0.0
    memory: Growth | None = None
    syncs: SyncReport | None = None
    trace: str | None = None
    missing: list[str] = field(default_factory=list)
    has_ended: bool = False
    is_busy: bool = False  # whether it still works on a question whose time is up

    def ask(self, name: str, question: str, until: float, **arguments: Any) -> Any:
        """The answer; None if the script has ended, is busy, or may need more time than is left."""
        left_s = until - time.monotonic()
        if not self.has_ended and not self.is_busy and LIMIT.costs * self.plain.step_s < left_s:
            self.script.timeout_s = left_s
            try:
                return self.script.ask(question, **arguments)
            except TrainingEnded:
                self.has_ended = True
            except TookTooLong:
                self.is_busy = True
            finally:
                self.script.timeout_s = None
        self.missing.append(name)
        return None


def asked(script: WatchedScript, budget_s: float, progress: Progress, after: int, whole: bool) -> Answers:
    """Asks a script for plain steps, then for evidence, and for the changes while it goes on by itself."""
    if after:
        script.ask("run_on", steps=after)
    until = time.monotonic() + budget_s
    patient_until = math.inf if whole else until + LIMIT.patience_s  # an evaluation may be under way
    before = cores.cpu_times(script.tree.cpu_s())
    limit_s = math.inf if whole else budget_s
    plain = script.ask("observe", steps=LIMIT.steps, seconds=budget_s * LIMIT.observing, limit_s=limit_s)
    taken = cores.taken_share(before, cores.cpu_times(script.tree.cpu_s()))
    account, facts, peak = script.ask("account"), script.ask("describe"), script.ask("peak")
    answers = Answers(script, plain, account, facts, peak, taken, has_ended=plain.ended)
    # While other programs take the cores, threads of a step wait for each other; a single thread does not.
    # With one thread, a compiled model would be compiled again.
    may_use_one = answers.facts.device == "cpu" and not answers.account.compiled
    threads = 1 if taken > CLEAN and may_use_one else 0
    rare_parts = (messages.BETWEEN, messages.EPOCHS, messages.EVALUATION)  # in a few of the steps
    is_long = max(map(answers.account.running, rare_parts)) >= messages.LEAST
    factor = min(LIMIT.longest, 1 / max(1 - taken, 1e-9))  # fewer steps fit while cores are taken
    seconds = factor * budget_s * (LIMIT.long_looking if is_long else LIMIT.looking)
    answers.evidence = answers.ask("the lines", EVIDENCE, patient_until, seconds=seconds, threads=threads)
    progress.reach(0.5)
    _go_on(answers, patient_until, math.inf if whole else until)
    progress.reach(0.8)
    answers.syncs = answers.ask("hidden waits", SYNCS, until, steps=LIMIT.sync_steps)
    answers.trace = answers.ask("a profile", PROFILE, until, path=str(new_trace()), **LIMIT.profiled)
    return answers


def _go_on(answers: Answers, patient_until: float, until: float) -> None:
    """Lets the script go on by itself for a part of the time that is left, and asks what has changed."""
    script = answers.script
    first_step = 0 if answers.is_busy else script.ask("account").last
    part_s = LIMIT.going_on * max(0.0, until - time.monotonic()) / LIMIT.memory_looks
    memories = [Memory.of(script.tree)]
    while len(memories) <= LIMIT.memory_looks and not (answers.has_ended or "later steps" in answers.missing):
        answers.has_ended = bool(answers.ask("later steps", "run_on", patient_until, seconds=part_s))
        memories.append(Memory.of(script.tree))
    first, middle, last = memories[0], memories[len(memories) // 2], memories[-1]
    if answers.is_busy:
        return
    answers.account, answers.facts = script.ask("account"), script.ask("describe")
    answers.denormal = script.ask(STATE)
    steps = answers.account.last - first_step
    if first.own and last.own and steps > 0:
        own = first.own, middle.own, last.own
        growth = [after.own - before.own for before, after in itertools.pairwise(memories)]
        answers.memory = Growth(steps, *own, first.others, last.others, last.threads, growth)


def watched(answers: Answers, command: str, target: Target) -> Watched:
    """The result that follows from the answers of a script."""
    evidence = answers.evidence or Evidence(steps=0)
    plain, account, facts = answers.plain, answers.account, answers.facts
    trend, growing = trend_of(account, answers.taken > CLEAN)
    last = account.last if answers.has_ended else 0
    remarks = str(report.SENTENCES.remarks(last, answers.missing, plain.step_s, answers.taken)).split("|")
    result = Watched(
        script=facts,
        run=account,
        evidence=msgspec.structs.replace(evidence, denormal=answers.denormal),
        cores=cores.usable_cores(),
        cpu_has_bf16=any("bf16" in flag for flag in machine.facts()["cpu"]["flags"]),
        trend=trend,
        growing=growing if facts.device == "cpu" else "",  # elsewhere parts are times of launches
        memory=answers.memory,
        printed=warnings_of(answers.script.written("err")),
        is_disturbed=answers.taken > CLEAN,
        command=command,
        seen=msgspec.structs.replace(plain, ended=answers.has_ended),
        step=evidence.of_step if evidence.steps and facts.device != "cpu" else account.of_step,
        peak=answers.peak,
        syncs=answers.syncs,
        trace=answers.trace,
        warnings=[*facts.notes, *[remark.strip() for remark in remarks if remark.strip()]],
    )
    speed = plain.step_s / evidence.step_s if evidence.one_thread else 0.0
    findings = advice.findings(result)
    switches = advice.Switches(result, target, plain, speed if speed >= LIMIT.least_faster else None)
    suggestions = advice.suggest(switches, {finding.cause for finding in findings})
    run = msgspec.structs.replace(account, plain=[])
    return msgspec.structs.replace(result, run=run, findings=findings, suggestions=suggestions)


def trend_of(account: Account, is_disturbed: bool = False) -> tuple[Trend | None, str]:
    """The trend of plain steps, and the part that grows; on a disturbed machine, only a clear trend."""
    plain = account.plain
    numbers = [step.number for step in plain]
    overall = trend(numbers, [step.seconds for step in plain], account.epochs)
    if overall is None or overall.kind == "steady":
        return None if is_disturbed else overall, ""
    if is_disturbed:  # while others take more and more of the cores, steps get longer without more CPU time
        of_cpu = trend(numbers, [step.cpu_s for step in plain], account.epochs)
        if of_cpu is None or of_cpu.kind == "steady":
            return None, ""
    third = max(1, len(plain) // 3)
    parts = np.array([step.parts for step in plain])
    first, last = np.median(parts[:third], axis=0), np.median(parts[-third:], axis=0)
    growth = last - first
    largest = int(growth.argmax())
    # While other programs take the cores, all parts of a step get slower.
    others = (last.sum() - last[largest]) / max(first.sum() - first[largest], 1e-9)
    if is_disturbed and last[largest] < LIMIT.far * max(1.0, others) * first[largest]:
        return None, ""
    return overall, messages.OF_STEP[largest] if growth[largest] > 0.8 * np.abs(growth).sum() else ""
