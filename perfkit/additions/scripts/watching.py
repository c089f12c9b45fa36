"""A script, watched as it stands: where the time of its run goes, and what to try."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfkit import machine
from perfkit.additions.advice.finding import Finding, warnings_of
from perfkit.additions.inside import SYNCS, SyncReport
from perfkit.additions.scripts import advice, messages, report
from perfkit.additions.scripts.advice import Switches
from perfkit.additions.scripts.messages import Account, Evidence, Growth, Observation, ScriptFacts, Symptoms
from perfkit.additions.scripts.study import UNCHANGED, ScriptSession, ScriptStarter, script_plan
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.additions.shared.looking import new_trace
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
EVIDENCE = "perfkit.additions.scripts.evidence:evidence"  # questions, imported in the script's process
STATE = "perfkit.additions.scripts.evidence:denormals"
LIMIT = messages.limits("watching")
Answers = dict[str, Any]  # by the name of a look; `Unanswered` where there is none
_LINES, _LATER, _WAITS, _PROFILE = "the lines", "later steps", "hidden waits", "a profile"  # names of looks


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
    with script_plan(ScriptStarter(launch)).open(progress) as session:
        with progress.part(0, 2 if tries else 1):
            script = session.take()
            answers = asked(script, budget_s, progress, after, whole)
            script.stop()
            source = session.source.knowing(answers["facts"])
            result = watched(answers, launch.describe(), source.target)
        if not tries:
            return result
        with progress.part(1, 2):
            plan = replace(source.plan, timeout_s=4 * TRY_S)
            again = ScriptSession(replace(source, plan=plan), progress, ending=session.ending)
            result = _tried(again, result)
            session.stopped = again.stopped  # Ctrl-C is raised once every process has ended
            return result


def _tried(session: ScriptSession, result: Watched) -> Watched:
    """The result, with what the best suggestions gave in turn with the script as it is, or why not."""
    best = result.suggestions[: LIMIT.tried]
    side_s = result.script.startup_s + LIMIT.tried_steps * result.seen.step_s
    if not best:
        return _warned(result, "nothing was tried, as no switch is suggested")
    if side_s > 2 * TRY_S:
        return _warned(result, f"nothing was tried, as a start takes {side_s:.0f} s: use perfkit referee")
    source, base = session.source, session.source.baseline()
    recipes = [(UNCHANGED, base), *((idea.cause, base.replace(**idea.settings)) for idea in best)]
    rule = replace(source.plan.rule, budget=Budget(TRY_S), cached=0)
    plain, *runs = session.measure(staging.recipe_stages(recipes, source.target), rule)
    problems = [f"trying switches ended early: {session.stopped}"] if session.stopped else []
    ideas = result.suggestions[LIMIT.tried :]
    for idea, run in zip(best, runs, strict=True):
        measured = run.speedup("baseline")
        ideas.append(msgspec.structs.replace(idea, measured=measured))
        if measured is None:
            problems.append(f"trying {idea.cause} gave no result: {run.reason or plain.reason}")
    return _warned(msgspec.structs.replace(result, suggestions=advice.ordered(ideas)), *problems)


def _warned(result: Watched, *problems: str) -> Watched:
    return msgspec.structs.replace(result, warnings=[*result.warnings, *problems])


class Unanswered(Enum):
    """Why a question has no answer: the script had ended, there was no time, or it still answers another."""

    ENDED = "ended"
    TOO_LONG = "too long"
    BUSY = "busy"


class Look(NamedTuple):
    """A question about some steps of a script; `until`: how long it may take."""

    name: str
    question: str
    until: float
    arguments: Mapping[str, Any]


def in_turn(script: WatchedScript, looks: Sequence[Look], least_s: float, before: Answers) -> Answers:
    """The answers before, with those to these questions; none is begun that may take `least_s` too late."""
    answers = dict(before)
    for look in looks:
        left_s = look.until - time.monotonic()
        answer: Any = silent(answers) or (Unanswered.TOO_LONG if least_s >= left_s else None)
        if answer is None:
            script.timeout_s = left_s
            try:
                answer = script.ask(look.question, **look.arguments)
            except TrainingEnded:
                answer = Unanswered.ENDED
            except TookTooLong:
                answer = Unanswered.BUSY
        answers[look.name] = answer
    script.timeout_s = None
    return answers


def silent(answers: Answers) -> Unanswered | None:
    """Why a script that has given these answers takes no further steps; None if it does."""
    if answers.get(_LATER) is True or Unanswered.ENDED in answers.values():
        return Unanswered.ENDED
    return Unanswered.BUSY if Unanswered.BUSY in answers.values() else None


def asked(script: WatchedScript, budget_s: float, progress: Progress, after: int, whole: bool) -> Answers:
    """What some plain steps have shown, some that were looked at, how it went on, and what cost most."""
    if after:
        script.ask("run_on", steps=after)
    until = time.monotonic() + budget_s
    # An evaluation may be under way when time is up.
    patient = math.inf if whole else until + LIMIT.patience_s
    before = cores.cpu_times(script.tree.cpu_s())
    answers: Answers = {"plain": script.ask("observe", steps=LIMIT.steps, seconds=budget_s * LIMIT.observing)}
    taken = cores.taken_share(before, cores.cpu_times(script.tree.cpu_s()))
    answers |= {"account": script.ask("account"), "facts": script.ask("describe"), "peak": script.ask("peak")}
    # Threads of a step wait for each other where other programs take the cores; one has no such waits.
    threads = 1 if taken > CLEAN and answers["facts"].device == "cpu" else 0
    how = {"seconds": budget_s * LIMIT.looking, "threads": threads}
    least_s = LIMIT.costs * answers["plain"].step_s
    answers = in_turn(script, [Look(_LINES, EVIDENCE, patient, how)], least_s, answers)
    progress.reach(0.5)
    began = 0 if silent(answers) == Unanswered.BUSY else script.ask("account").last
    first = Memory.of(script.tree)
    seconds = math.inf if whole else LIMIT.going_on * max(0.0, until - time.monotonic())
    answers = in_turn(script, [Look(_LATER, "run_on", patient, {"seconds": seconds})], least_s, answers)
    answers |= {"taken": taken, "denormal": 0.0, "memory": None}
    if silent(answers) != Unanswered.BUSY:
        answers |= {"account": script.ask("account"), "facts": script.ask("describe")}
        answers["denormal"] = script.ask(STATE)
        last = Memory.of(script.tree)
        steps = answers["account"].last - began
        if first.own and last.own and steps > 0:  # looks take some for themselves
            answers["memory"] = Growth(steps, first.own, last.own, first.others, last.others, last.threads)
    progress.reach(0.8)
    syncs = Look(_WAITS, SYNCS, until, {"steps": LIMIT.sync_steps})
    profile = Look(_PROFILE, "profile", until, {"path": str(new_trace()), **LIMIT.profiled})
    answers = in_turn(script, [syncs, profile], least_s, answers)
    return answers | {"printed": warnings_of(script.written("err"))}


def watched(answers: Answers, command: str, target: Target) -> Watched:
    """What follows from the answers of a script."""
    given: Answers = {name: None if isinstance(it, Unanswered) else it for name, it in answers.items()}
    looked: Evidence = given[_LINES] or Evidence(steps=0)
    plain: Observation = given["plain"]
    account: Account = given["account"]
    facts: ScriptFacts = given["facts"]
    is_disturbed = given["taken"] > CLEAN
    is_on_cpu = facts.device == "cpu"
    # Other programs come and go: while they take the cores, steps get slower by themselves.
    trend, growing = (None, "") if is_disturbed else trend_of(account)
    symptoms = Symptoms(
        script=facts,
        run=account,
        evidence=msgspec.structs.replace(looked, denormal=max(looked.denormal, given["denormal"])),
        cores=cores.usable_cores(),
        cpu_has_bf16=any("bf16" in flag for flag in machine.facts()["cpu"]["flags"]),
        trend=trend,
        growing=growing if is_on_cpu else "",  # elsewhere parts are times of launches
        memory=given["memory"],
        printed=given["printed"],
    )
    speed = plain.step_s / looked.step_s if looked.one_thread else 0.0
    one_thread = speed if speed >= LIMIT.least_faster else None
    findings = advice.findings(symptoms)
    seen = Switches(symptoms, target, plain, is_disturbed, one_thread)
    has_ended = plain.ended or silent(answers) == Unanswered.ENDED
    missing = [name for name, value in answers.items() if isinstance(value, Unanswered)]
    last = account.last if has_ended else 0
    remarks = str(report.SENTENCES.remarks(last, missing, plain.step_s, given["taken"])).split("|")
    return Watched(
        **msgspec.structs.asdict(symptoms) | {"run": msgspec.structs.replace(account, plain=[])},
        command=command,
        seen=msgspec.structs.replace(plain, ended=has_ended),
        step=looked.of_step if looked.steps and not is_on_cpu else account.of_step,
        findings=findings,
        peak=given["peak"],
        syncs=given[_WAITS],
        trace=given[_PROFILE],
        suggestions=advice.suggest(seen, {each.cause for each in findings}),
        warnings=[*facts.notes, *[remark.strip() for remark in remarks if remark.strip()]],
        is_disturbed=is_disturbed,
    )


def trend_of(account: Account) -> tuple[Trend | None, str]:
    """How plain steps change, and the part of a step that does."""
    plain = account.plain
    found = trend([step.number for step in plain], [step.seconds for step in plain], account.epochs)
    if found is None or found.kind == "steady":
        return found, ""
    third = max(1, len(plain) // 3)
    parts = np.array([step.parts for step in plain])
    grew = np.median(parts[-third:], axis=0) - np.median(parts[:third], axis=0)
    largest = int(grew.argmax())
    return found, messages.OF_STEP[largest] if grew[largest] > 0.8 * np.abs(grew).sum() else ""
