"""Two scripts, or one with and without switches, that are to be compared: their steps are looked at."""

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from perfkit.additions.referee.behaviour import BEHAVIOUR, NAMES, WITNESS, Behaviour
from perfkit.additions.referee.verdict import Match
from perfkit.additions.scripts.run_account import Account
from perfkit.additions.scripts.study import UNCHANGED, Memory, ScriptSource, script_plan
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import PerfkitError, one_of
from perfkit.process.child import Conversation
from perfkit.recipe import Value, shown
from perfkit.results import OF_SCRIPTS, Comparison, Pairing, Raw, Run
from perfkit.studies import record
from perfkit.studies.compare import Candidate, stages_of
from perfkit.studies.sides import Side
from perfkit.studies.sources import Progress, Study
from perfkit.worker.messages import Trained


class Observed(ScriptSource):
    """A source that fills `observed` with what the steps of each stage have done, by its title."""

    observers = (WITNESS,)

    def __init__(self, *args: Any, observed: dict[str, Behaviour], **more: Any) -> None:
        super().__init__(*args, **more)
        self._observed = observed

    def losses(self, run: Run) -> list[float]:
        """One for each step, however many backward passes it has."""
        return self._observed[run.title].losses if run.title in self._observed else run.losses

    def ask_more(self, side: Side) -> None:
        title, child = side.stage.title, side.child
        if title in self._observed or child is None:
            return
        memory = Memory.of(child.tree)
        with contextlib.suppress(PerfkitError):  # it has ended, or a person stopped it
            self._observed[title] = structs.replace(child.ask(BEHAVIOUR), memory=memory.peak + memory.others)


def matched(
    launch: Launch, a: Candidate, b: Candidate, *how: Any, allowed: Sequence[str] = (), **more: Any
) -> Match:
    """Two sides of a script; preset and seed as for `study.script_plan`, `more` as for a `ScriptSource`.

    `allowed`: names of differences that are meant; an `InvalidValue` if there is no such difference.
    """
    observed: dict[str, Behaviour] = {}
    plan = script_plan(launch, *how, source=Observed, observed=observed, **more)
    return Match(plan, a, b, observed, named_differences(allowed))


def two_scripts(
    old: Launch | str, new: Launch | str, *how: Any, allowed: Sequence[str] = (), **more: Any
) -> Match:
    """Two scripts as they stand."""
    first, second = (Launch(side) if isinstance(side, str) else side for side in (old, new))
    title = second.program
    if title == first.program:  # what each has shown is kept by its title
        title = f"{title} (again)"
    sides = Candidate(first.program), Candidate(title)
    return matched(first, *sides, *how, allowed=allowed, more={title: second}, **more)


def with_switches(
    launch: Launch, settings: Mapping[str, Value], *how: Any, allowed: Sequence[str] = (), **more: Any
) -> Match:
    """A script as it is, and with switches that are set from outside."""
    title = ", ".join(f"{name}={shown(value)}" for name, value in settings.items())
    if "batch_size" in settings:
        allowed = [*allowed, "samples", "updates"]
    return matched(launch, Candidate(UNCHANGED), Candidate(title, settings), *how, allowed=allowed, **more)


def named_differences(allowed: Sequence[str]) -> set[str]:
    """The names of differences; an `InvalidValue` if there is no such difference."""
    for name in allowed:
        if name not in NAMES:
            raise one_of(name, NAMES, "difference")
    return set(allowed)


# ---------------------------------------------------------------- whole runs

TURN_S = 2.0  # seconds after which the other script goes on: what drifts on the machine then hits both


class _Life:
    """One script from its start to its end."""

    def __init__(self, child: Conversation, trained: Trained) -> None:
        self.child, self.trained = child, trained
        self.has_ended = False
        self._memory = 0
        child.suspend()

    def go_on(self) -> None:
        self.has_ended = self.child.ask("run_on", seconds=TURN_S)
        memory = Memory.of(self.child.tree)
        self._memory = max(self._memory, memory.peak + memory.others)
        self.child.suspend()

    def seen(self) -> tuple[Account, Behaviour]:
        account: Account = self.child.ask("account")
        behaviour: Behaviour = self.child.ask(BEHAVIOUR)
        return account, structs.replace(behaviour, run=account.parts, memory=self._memory or None)


def compare_whole(match: Match, progress: Progress) -> Comparison:
    """Runs both sides of a match to their end, in turns; nothing is looked at meanwhile but their steps.

    Each is run once, so the interval is how far equal processes of scripts usually differ.
    """
    plan = replace(match.plan, rule=replace(match.plan.rule, warmup_s=0.0))
    with plan.open(progress, Study.COMPARISON) as source:
        assert isinstance(source, ScriptSource)
        stages = stages_of(match.a, match.b, source)
        runs = [record.begun("whole", stage, source.plan, source.description) for stage in stages]
        lives = [_Life(*source.start(stage)) for stage in stages]
        order = random.SystemRandom()
        turn = 0
        while going := [life for life in lives if not life.has_ended]:
            turn += 1
            progress.reach(0.5, f"turn {turn} of both, to their end")
            for life in order.sample(going, len(going)):
                life.go_on()
        found = [life.seen() for life in lives]
    for stage, (_, behaviour) in zip(stages, found, strict=True):
        match.observed[stage.title] = behaviour
    # As if both had trained on as many samples, so that a ratio of rates is one of times.
    rates = [1e3 / account.seconds for account, _ in found]
    a, b = (_run(run, life, rate) for run, life, rate in zip(runs, lives, rates, strict=True))
    pairing = Pairing(
        rates[1:], rates[:1], against=a.id, role="previous", interleaved=True, spread=OF_SCRIPTS
    )
    return Comparison(a, structs.replace(b, pairings=[pairing]), pairing)


def _run(run: Run, life: _Life, rate: float) -> Run:
    trained = life.trained
    return record.ended(
        run,
        facts={**run.facts, **trained.facts},
        mechanism=trained.mechanisms,
        raw=Raw(block_samples_per_s=[rate]),
        **{name: getattr(trained, name) for name in record.AS_TRAINED},
    )
