"""Two scripts that are compared, or one without and with switches; their steps are observed."""

import random
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from perfkit.additions.referee.behaviour import BEHAVIOUR, NAMES, WITNESS, Behaviour
from perfkit.additions.referee.verdict import MatchResult
from perfkit.additions.scripts.messages import Account
from perfkit.additions.scripts.study import OF_SCRIPTS, UNCHANGED, ScriptSession, ScriptStarter, script_plan
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.additions.shared.memory import Memory
from perfkit.errors import PerfkitError, one_of
from perfkit.process.child import Conversation
from perfkit.recipe import Value, shown
from perfkit.results import Comparison, Pairing, Raw, Run, RunStore
from perfkit.studies import record
from perfkit.studies.compare import Candidate, compared, rule_of_two, stages_of
from perfkit.studies.sides import Side
from perfkit.studies.sources import Plan, Progress, Study, names_of
from perfkit.worker.messages import TrainingReport


class Terms(NamedTuple):
    """How two sides are compared: `preset` and `seed` of `script_plan`, `process` of `ScriptStarter`."""

    preset: str | None = None
    seed: int = 0
    allowed: Sequence[str] = ()  # names of declared differences
    process: type[WatchedScript] = WatchedScript


class Match(NamedTuple):
    """Two sides, checked before anything starts."""

    plan: Plan[ScriptSession]
    a: Candidate
    b: Candidate
    allowed: Set[str]
    longer: str = "raise --budget"  # how to measure for longer

    def compare(self, progress: Progress, store: RunStore | None = None) -> MatchResult:
        """Measures both sides in rounds, and ends, as `compare.compare_candidates` does."""
        with self.plan.open(progress, Study.COMPARISON, store) as session:
            runs, behaviours, failure = self._observed(session)
            result = compared(runs, store)
            found = MatchResult(result, behaviours, self.allowed, self.longer, failure=failure)
            progress.found = found
            return found

    def _observed(self, session: ScriptSession) -> tuple[list[Run], dict[str, Behaviour], str]:
        """The runs of both sides, the behaviour of each, and why one could not be observed."""
        stages = stages_of(self.a, self.b, session.source)
        behaviours: dict[str, Behaviour] = {}
        failures: dict[str, str] = {}

        def observe(side: Side) -> None:
            name = "a" if side.stage is stages[0] else "b"
            child = side.child
            if name in behaviours:  # of its first incarnation
                return
            if child is None:
                failures[name] = f"{side.stage.title}: {side.ended_by}"
                return
            memory = Memory.of(child.tree)
            try:
                behaviours[name] = structs.replace(child.ask(BEHAVIOUR), memory=memory.peak + memory.others)
            except PerfkitError as problem:  # it has ended, say, or the user stopped it
                failures[name] = f"{side.stage.title}: {problem}"

        runs = session.measure(stages, rule_of_two(self.plan.rule), observe)
        for number, name in enumerate(("a", "b")):
            if behaviour := behaviours.get(name):  # it has one loss for each step, not pass
                runs[number] = structs.replace(runs[number], losses=behaviour.losses)
        reasons = [why for name, why in failures.items() if name not in behaviours]
        return runs, dict(sorted(behaviours.items())), "; ".join(reasons)  # `a` is always first


def matched(a: Candidate, b: Candidate, terms: Terms, settings: Collection[str] = ()) -> Match:
    """A match of two launches, of which `b` has these switches; allowed differences must exist."""
    names = names_of(terms.allowed)
    allowed = set(names)
    if "batch_size" in settings:  # it changes what a step trains on
        allowed |= {"samples", "updates", "losses"}
    for name in names:
        if name not in NAMES:
            raise one_of(name, NAMES, "difference")
    starter = ScriptStarter(a.program, (WITNESS,), terms.process)
    plan = script_plan(starter, terms.preset, terms.seed)
    # Switches must change something; scripts are compared even if they are equal.
    has_own_program = b.program != a.program or not settings
    program = b.program.frozen() if has_own_program else None
    return Match(plan, a._replace(program=None), b._replace(program=program), allowed)


def two_scripts(old: Launch, new: Launch, terms: Terms) -> Match:
    """Two scripts, unchanged."""
    a, b = (Candidate(each.program, program=each) for each in (old, new))
    return matched(a, b, terms)


def with_switches(launch: Launch, settings: Mapping[str, Value], terms: Terms) -> Match:
    """A script without and with switches that are set from outside."""
    title = ", ".join(f"{name}={shown(value)}" for name, value in settings.items())
    plain = Candidate(UNCHANGED, program=launch)
    return matched(plain, plain._replace(title=title, changes=settings), terms, settings)


TURN_S = 2.0  # seconds in turn, so that a drift of the machine affects both scripts


class _FullRun:
    """One script from its start to its end."""

    def __init__(self, begun: Run, child: Conversation, trained: TrainingReport) -> None:
        self._begun = begun
        self._child = child
        self._trained = trained
        self.has_ended = False
        self._memory = 0
        child.suspend()

    def go_on(self) -> None:
        self.has_ended = self._child.ask("run_on", seconds=TURN_S)
        memory = Memory.of(self._child.tree)
        self._memory = max(self._memory, memory.peak + memory.others)
        self._child.suspend()

    def ended(self) -> tuple[Run, Behaviour]:
        """The run, with a rate as if both had trained on as many samples, and the behaviour of its steps."""
        account: Account = self._child.ask("account")
        behaviour: Behaviour = self._child.ask(BEHAVIOUR)
        begun = record.reported(self._begun, self._trained)
        run = record.ended(begun, raw=Raw(block_samples_per_s=[1e3 / account.seconds]))
        return run, structs.replace(behaviour, run=account.parts, memory=self._memory or None)


def compare_whole(match: Match, progress: Progress) -> MatchResult:
    """Runs both sides to their end once, in turns; the interval is the usual scatter of equal processes."""
    plan = replace(match.plan, rule=replace(match.plan.rule, warmup_s=0.0))
    with plan.open(progress, Study.COMPARISON) as session:
        source = session.source
        stages = stages_of(match.a, match.b, source)
        begun = [record.begun("whole", stage, source.plan, source.description) for stage in stages]
        pairs = zip(begun, stages, strict=True)
        runs = [_FullRun(run, *session.start_training(stage)) for run, stage in pairs]
        turn = 0
        while running := [run for run in runs if not run.has_ended]:
            turn += 1
            progress.share(f"turn {turn} of both, to their end", 0.5)
            for run in random.SystemRandom().sample(running, len(running)):
                run.go_on()
        (a, behaviour_a), (b, behaviour_b) = (run.ended() for run in runs)
    rates = b.raw.block_samples_per_s, a.raw.block_samples_per_s
    pairing = Pairing(*rates, against=a.id, role="previous", interleaved=True, spread=OF_SCRIPTS)
    result = Comparison(a, structs.replace(b, pairings=[pairing]), pairing)
    return MatchResult(result, {"a": behaviour_a, "b": behaviour_b}, match.allowed, is_whole=True)
