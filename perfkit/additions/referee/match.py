"""Two scripts, or one with and without switches, that are to be compared: their steps are looked at."""

import random
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
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


class ScriptSide(NamedTuple):
    """One side of a match: how it is started, its title, and switches that are set from outside."""

    launch: Launch
    title: str
    changes: Mapping[str, Value] = MappingProxyType({})


class Terms(NamedTuple):
    """How two sides are compared: preset, seed as for `study.script_plan`, process as for `ScriptStarter`."""

    preset: str | None = None
    seed: int = 0
    allowed: Sequence[str] = ()  # names of differences that are meant
    process: type[WatchedScript] = WatchedScript


class Match(NamedTuple):
    """Two sides that are checked before anything starts."""

    plan: Plan[ScriptSession]
    a: Candidate
    b: Candidate
    allowed: Set[str]
    longer: str = "raise --budget"  # how a person measures for longer

    def compare(self, progress: Progress, store: RunStore | None = None) -> MatchResult:
        """Measures both sides in rounds, as `compare.compare_candidates` does."""
        with self.plan.open(progress, Study.COMPARISON, store) as session:
            runs, seen, unseen = self._observed(session)
            return MatchResult(compared(runs, store), seen, self.allowed, self.longer, unseen=unseen)

    def _observed(self, session: ScriptSession) -> tuple[list[Run], dict[str, Behaviour], str]:
        """The runs of both sides, what their steps did, and why those of one could not be looked at."""
        stages = stages_of(self.a, self.b, session.source)
        names = dict(zip([stage.title for stage in stages], ("a", "b"), strict=True))
        seen: dict[str, Behaviour] = {}
        failed: dict[str, PerfkitError | None] = {}

        def observe(side: Side) -> None:
            name = names[side.stage.title]
            child = side.child
            if name in seen:  # in its first life
                return
            if child is None:
                failed[side.stage.title] = side.ended_by
                return
            memory = Memory.of(child.tree)
            try:
                seen[name] = structs.replace(child.ask(BEHAVIOUR), memory=memory.peak + memory.others)
            except PerfkitError as problem:  # it has ended, say, or the user stopped it
                failed[side.stage.title] = problem

        runs = session.measure(stages, rule_of_two(self.plan.rule), observe)
        for number, run in enumerate(runs):
            if behaviour := seen.get(names[run.title]):  # it has one loss for each step, whatever its passes
                runs[number] = structs.replace(run, losses=behaviour.losses)
        unseen = [f"{title}: {problem}" for title, problem in failed.items() if names[title] not in seen]
        return runs, dict(sorted(seen.items())), "; ".join(unseen)  # `a` first, whichever was asked first


def matched(a: ScriptSide, b: ScriptSide, terms: Terms, settings: Collection[str] = ()) -> Match:
    """Two sides as a match, of which `b` has these switches; allowed differences must exist."""
    given = names_of(terms.allowed)
    allowed = set(given)
    if "batch_size" in settings:  # it changes what a step trains on
        allowed |= {"samples", "updates", "losses"}
    for name in given:
        if name not in NAMES:
            raise one_of(name, NAMES, "difference")
    if a.title == b.title:  # a source knows a stage by its title
        b = b._replace(title=f"{b.title} (again)")
    others = {} if b.launch == a.launch else {b.title: b.launch}
    starter = ScriptStarter(a.launch, others, (WITNESS,), terms.process)
    plan = script_plan(starter, terms.preset, terms.seed)
    # Switches must change something; scripts are compared as they stand, even if they are equal.
    program = others.get(b.title) if settings else b.launch
    old, new = Candidate(a.title, a.changes), Candidate(b.title, b.changes, program)
    return Match(plan, old, new, allowed)


def two_scripts(old: Launch, new: Launch, terms: Terms) -> Match:
    """Two scripts as they stand."""
    return matched(ScriptSide(old, old.program), ScriptSide(new, new.program), terms)


def with_switches(launch: Launch, settings: Mapping[str, Value], terms: Terms) -> Match:
    """A script as it is, and with switches that are set from outside."""
    title = ", ".join(f"{name}={shown(value)}" for name, value in settings.items())
    return matched(ScriptSide(launch, UNCHANGED), ScriptSide(launch, title, settings), terms, settings)


TURN_S = 2.0  # seconds after which the other script goes on: what drifts on the machine then hits both


class _Life:
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
        """Its run, with a rate as if both had trained on as many samples, and what its steps did."""
        account: Account = self._child.ask("account")
        behaviour: Behaviour = self._child.ask(BEHAVIOUR)
        begun = record.reported(self._begun, self._trained)
        run = record.ended(begun, raw=Raw(block_samples_per_s=[1e3 / account.seconds]))
        return run, structs.replace(behaviour, run=account.parts, memory=self._memory or None)


def compare_whole(match: Match, progress: Progress) -> MatchResult:
    """Runs both sides to their end once, in turns; the interval is how far equal processes usually differ."""
    plan = replace(match.plan, rule=replace(match.plan.rule, warmup_s=0.0))
    with plan.open(progress, Study.COMPARISON) as session:
        source = session.source
        stages = stages_of(match.a, match.b, source)
        begun = [record.begun("whole", stage, source.plan, source.description) for stage in stages]
        lives = [_Life(run, *session.start_training(stage)) for run, stage in zip(begun, stages, strict=True)]
        turn = 0
        while going := [life for life in lives if not life.has_ended]:
            turn += 1
            progress.share(f"turn {turn} of both, to their end", 0.5)
            for life in random.SystemRandom().sample(going, len(going)):
                life.go_on()
        (a, seen_a), (b, seen_b) = (life.ended() for life in lives)
    rates = b.raw.block_samples_per_s, a.raw.block_samples_per_s
    pairing = Pairing(*rates, against=a.id, role="previous", interleaved=True, spread=OF_SCRIPTS)
    result = Comparison(a, structs.replace(b, pairings=[pairing]), pairing)
    return MatchResult(result, {"a": seen_a, "b": seen_b}, match.allowed, is_whole=True)
