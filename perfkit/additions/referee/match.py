"""Two scripts, or one with and without switches, that are to be compared: their steps are looked at."""

import contextlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

from msgspec import structs

from perfkit.additions.referee.behaviour import BEHAVIOUR, NAMES, WITNESS, Behaviour
from perfkit.additions.referee.verdict import Match
from perfkit.additions.scripts.study import Memory, ScriptSource, script_plan
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import PerfkitError, one_of
from perfkit.recipe import Value, shown
from perfkit.results.run import Run
from perfkit.studies.compare import Candidate
from perfkit.studies.sides import Side


class Observed(ScriptSource):
    """A source that fills `observed` with what the steps of each stage have done, by its title.

    The losses of a run are those of steps then, however many backward passes they have.
    """

    observers = (WITNESS,)

    def __init__(self, *args: Any, observed: dict[str, Behaviour], **more: Any) -> None:
        super().__init__(*args, **more)
        self._observed = observed

    def losses(self, run: Run) -> list[float]:
        return self._observed[run.title].losses if run.title in self._observed else run.losses

    def ask_more(self, side: Side) -> None:
        super().ask_more(side)
        title, child = side.stage.title, side.child
        if title in self._observed or child is None:
            return
        memory = Memory.of(child.trees[0])
        with contextlib.suppress(PerfkitError):  # it has ended, or a person stopped it
            seen = child.ask(BEHAVIOUR)
            self._observed[title] = structs.replace(seen, memory=memory.peak + memory.others)


def matched(
    launch: Launch, a: Candidate, b: Candidate, *how: Any, allowed: Set[str] = frozenset(), **more: Any
) -> Match:
    """Two sides of a script; preset and seed as for `study.script_plan`, `more` as for a `ScriptSource`."""
    observed: dict[str, Behaviour] = {}
    plan = script_plan(launch, *how, source=Observed, observed=observed, **more)
    return Match(plan, a, b, observed, allowed)


def two_scripts(
    old: Launch | str, new: Launch | str, *how: Any, allowed: Sequence[str] = (), **more: Any
) -> Match:
    """Two scripts as they stand."""
    first, second = (Launch(side) if isinstance(side, str) else side for side in (old, new))
    sides = Candidate(first.program), Candidate(second.program)
    declared = named_differences(allowed)
    return matched(first, *sides, *how, allowed=declared, more={second.program: second}, **more)


def with_switches(
    launch: Launch, settings: Mapping[str, Value], *how: Any, allowed: Sequence[str] = (), **more: Any
) -> Match:
    """A script as it is, and with switches that are set from outside."""
    title = ", ".join(f"{name}={shown(value)}" for name, value in settings.items())
    declared = named_differences(allowed)
    if "batch_size" in settings:
        declared |= {"samples", "updates"}
    sides = Candidate("as it is"), Candidate(title, settings)
    return matched(launch, *sides, *how, allowed=declared, **more)


def named_differences(allowed: Sequence[str]) -> set[str]:
    """The names of differences; an `InvalidValue` if there is no such difference."""
    for name in allowed:
        if name not in NAMES:
            raise one_of(name, NAMES, "difference")
    return set(allowed)
