"""Sides that are measured together: suspended whenever it is not their turn, a slice of each in every round.

A side is one training with all that belongs to it: loader workers, ranks, whatever a script starts. From the
end of its slice to the start of its next it is suspended, so nobody loads, spins or fills a queue in the
slice of somebody else, and each finds its own queue as it left it. Rounds are short, so the drift of a noisy
machine cancels within a round, and the processes are renewed as often as the budget allows, because equal
processes differ for as long as they live.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfkit.errors import Cancelled, PerfkitError, RunFailed
from perfkit.ladder.catalogue import Preset, Stage
from perfkit.machine import cores, gpus
from perfkit.process.child import Conversation
from perfkit.process.failures import OUT_OF_MEMORY
from perfkit.results import stats
from perfkit.results.run import AGAIN, Communication
from perfkit.results.stats import Nested, Spread
from perfkit.studies.sources import Progress
from perfkit.worker.messages import Block, Peak, Trained

MEMORY_MARGIN = 1.5
"""Another training needs as much memory as the largest so far, and some more for its batches."""
MOSTLY = 0.5
"""A slice of which others took more of the cores than this is taken again."""
USUAL_SCATTER = 0.1
"""Of the logarithm of a ratio from round to round, until rounds have shown it."""
CHECK_EVERY = 5
"""Rounds after which it is looked whether more are needed: looking after each would stop at lucky ones."""


@dataclass(eq=False)
class Side:
    """A stage that is measured: its processes of the moment, and what they have reported."""

    stage: Stage
    trained: list[Trained] = field(default_factory=list)
    """What each incarnation reported when it was warm."""
    failure: PerfkitError | None = None
    child: Conversation | None = None
    """The processes that train now."""
    cached: list[Block] = field(default_factory=list)
    """Slices on a batch that is already on the device."""
    peak: Peak | None = None
    communication: Communication | None = None
    gpu_utilization: list[float] = field(default_factory=list)
    gpu_bytes: int = 0
    """What its process takes of the GPU's memory, seen from outside."""

    @property
    def is_open(self) -> bool:
        """Whether it can be measured."""
        return not (self.failure or self.stage.reason)

    def stop(self) -> None:
        """Ends its processes."""
        if self.child:
            self.child.stop()
        self.child = None


@dataclass
class Round:
    """One slice of each side that took part."""

    slices: dict[Side, Block] = field(default_factory=dict)
    taken: dict[Side, float] = field(default_factory=dict)
    """The share of the cores, or of the GPU, that others took meanwhile."""

    @property
    def disturbed(self) -> float:
        """The largest share."""
        return max(self.taken.values(), default=0.0)


@dataclass
class Incarnation:
    """What one life of the processes has measured."""

    start_s: float = 0.0
    """What it took until all sides were warm."""
    rounds: list[Round] = field(default_factory=list)

    @property
    def round_s(self) -> float:
        """Seconds of a round, on average."""
        spent = sum(block.seconds for round in self.rounds for block in round.slices.values())
        return spent / max(1, len(self.rounds))


class Crowded(Exception):
    """The sides do not fit into memory together."""


@dataclass
class Machine:
    """What a measurement needs of the machine, so that a test can be another one."""

    start: Callable[[Stage], tuple[Conversation, Trained]]
    """Starts the processes of a stage, and returns once they are warm."""
    renew: Callable[[Sequence[Stage]], None] = lambda stages: None
    """Has the next processes of stages differ from those before as much as they can."""
    gpu: str | None = None
    """The UUID of the GPU that trains."""
    ask_more: Callable[["Side"], None] = lambda side: None
    """Asks the processes of a side what else is to be known, before they end."""
    clock: Callable[[], float] = time.monotonic
    order: random.Random = field(default_factory=random.SystemRandom)
    """Decides who is started and who takes a slice first: never by the seed of a recipe."""


class Measurement:
    """Sides measured in rounds, in one incarnation after the other, until a rule is satisfied.

    `spread`: how far equal processes of two sides differ here. The sides are compared with the first one and
    with the one before them.
    """

    def __init__(
        self,
        sides: Sequence[Side],
        rule: Preset,
        machine: Machine,
        progress: Progress,
        spread: Callable[[Side, Side], Spread],
    ) -> None:
        self.sides = sides
        self.incarnations: list[Incarnation] = []
        self.together = True
        """Whether all sides are alive at the same time; else they take turns, incarnation by incarnation."""
        self.busiest = "", 0.0
        """The other program that took most of the cores, and its share."""
        self._rule, self._machine, self._progress, self.spread = rule, machine, progress, spread
        self._began = machine.clock()
        self._utilization: list[float] = []

    # ------------------------------------------------------------ the whole

    def run(self) -> None:
        """Measures until the rule is satisfied or its budget is spent; at least one incarnation."""
        others, pids = cores.OtherPrograms(), set[int]()
        try:
            with gpus.sample_utilization(self._machine.gpu) as self._utilization:
                while self._open():
                    pids |= self._one_more()
                    others.look()
                    if self._is_satisfied() or not self._can_renew():
                        return
        finally:
            self.busiest = others.busiest(pids)

    def _one_more(self) -> set[int]:
        """Measures in one more incarnation, and returns the processes that took part."""
        if self.incarnations:
            self._machine.renew([side.stage for side in self._open()])
        self.incarnations.append(Incarnation())
        if self.together:
            try:
                with self._alive(self._open()) as pids:
                    self._take_rounds(self._open())
                    return pids
            except Crowded:
                self.together = False
                self.incarnations[-1] = Incarnation()
        pids = set[int]()
        for side in self._shuffled(self._open()):
            with self._alive([side]) as mine:
                pids |= mine
                self._take_rounds([side])
        return pids

    def _open(self) -> list[Side]:
        return [side for side in self.sides if side.is_open]

    def _shuffled(self, sides: Sequence[Side]) -> list[Side]:
        return self._machine.order.sample(sides, len(sides))

    # ------------------------------------------------------------ starting

    @contextlib.contextmanager
    def _alive(self, sides: Sequence[Side]) -> Iterator[set[int]]:
        """Has sides started and warm, each suspended; their processes end with the block."""
        began = self._machine.clock()
        try:
            for number, side in enumerate(self._shuffled(sides)):
                if number and self._is_crowded():
                    raise Crowded
                self._say(f"starting {side.stage.title}")
                self._start(side, is_alone=number == 0)
            self.incarnations[-1].start_s += self._machine.clock() - began
            pids = set[int]().union(*(side.child.pids() for side in sides if side.child))
            yield pids
        finally:
            for side in sides:
                if side.child:
                    self._machine.ask_more(side)
                side.stop()

    def _start(self, side: Side, is_alone: bool) -> None:
        free = gpus.free_gpu_bytes(self._machine.gpu)
        try:
            side.child, trained = self._machine.start(side.stage)
            side.child.suspend()
            _check_switches(trained)
        except Cancelled:
            raise
        except PerfkitError as problem:
            if not is_alone and _is_memory(problem):
                raise Crowded from None
            self._leave(side, problem)
            return
        side.trained.append(trained)
        if free is not None:
            side.gpu_bytes = max(0, free - (gpus.free_gpu_bytes(self._machine.gpu) or 0))

    def _leave(self, side: Side, problem: PerfkitError) -> None:
        """A side that fails takes no further part."""
        side.stop()
        side.failure = problem

    def _is_crowded(self) -> bool:
        """Whether one more training may not fit into the memory of this machine or of its GPU."""
        if gpus.holds_one_process(self._machine.gpu):
            return True
        alive = [side for side in self.sides if side.child]
        resident = [side.child.resident_bytes() for side in alive if side.child]
        if cores.free_memory_bytes() < MEMORY_MARGIN * max(resident, default=0):
            return True
        free = gpus.free_gpu_bytes(self._machine.gpu)
        if self._machine.gpu and free is None:  # no NVML, no permission, or memory that is the host's
            return len(alive) >= 2
        return free is not None and free < MEMORY_MARGIN * max((side.gpu_bytes for side in alive), default=0)

    # ------------------------------------------------------------ rounds

    def _take_rounds(self, sides: Sequence[Side]) -> None:
        """Takes rounds until this incarnation has had its share, then what is measured once.

        Rounds that sides take by turns are put together: the first of each, the second of each …
        """
        rounds, is_first = self.incarnations[-1].rounds, len(self.incarnations) == 1
        wanted, number = 0 if self.together else len(rounds), 0
        while any(side.child for side in sides):
            taken = self._take_round([side for side in sides if side.child])
            if number < len(rounds):
                rounds[number].slices |= taken.slices
                rounds[number].taken |= taken.taken
            else:
                rounds.append(taken)
            number += 1
            if number >= (wanted or self._rule.rounds) and self._has_had_its_share(sides, number, wanted):
                break
        if is_first:
            self._measure_once([side for side in sides if side.child])

    def _has_had_its_share(self, sides: Sequence[Side], rounds: int, wanted: int) -> bool:
        if wanted or not self._rule.budget_s or self._left_s() <= 0:
            return True
        now = self.incarnations[-1]
        if self._can_renew():
            widest = max((self.spread(own, sides[0]) for own in sides), key=lambda each: each.sd)
            most = stats.rounds_per_incarnation(now.start_s, now.round_s, self._scatter(), widest)
            if rounds >= most:
                return True
        return rounds % CHECK_EVERY == 0 and self._is_satisfied()

    def _take_round(self, sides: Sequence[Side]) -> Round:
        """A slice of every side, in random order; those that others mostly took are taken again."""
        done = sum(len(each.rounds) for each in self.incarnations)
        self._say(f"round {done + 1} of {sides[-1].stage.title}")
        round = Round()
        for side in self._shuffled(sides):
            self._take_slice(side, round)
        if self._left_s() > 0:
            for side in [side for side, share in round.taken.items() if share > MOSTLY and side.child]:
                self._take_slice(side, round)
        return round

    def _take_slice(self, side: Side, round: Round) -> None:
        """One slice; the cleaner one, if the round has one of this side already."""
        assert side.child
        rule, sampled = self._rule, len(self._utilization)
        since, before = time.time(), cores.cpu_times(side.child.cpu_s())
        try:
            block = side.child.ask("slice", samples=rule.slice_samples, seconds=rule.slice_s)
        except PerfkitError as problem:
            has_rounds = any(each.rounds for each in self.incarnations)
            if isinstance(problem, Cancelled) or (has_rounds and _is_end(problem)):
                raise
            if _is_memory(problem) and sum(each.child is not None for each in self.sides) > 1:
                raise Crowded from None
            self._leave(side, problem)
            return
        finally:
            if side.child is not None:
                side.child.suspend()
        share = cores.taken_share(before, cores.cpu_times(side.child.cpu_s()))
        if self._machine.gpu:
            share = max(share, gpus.taken_gpu_share(self._machine.gpu, since, side.child.pids()))
        side.gpu_utilization += self._utilization[sampled:]
        if side not in round.slices or share < round.taken[side]:
            round.slices[side], round.taken[side] = block, share

    def _measure_once(self, sides: Sequence[Side]) -> None:
        """Slices on a cached batch, and the peak of memory."""
        for _ in range(min(self._rule.cached, len(self.incarnations[-1].rounds))):
            for side in self._shuffled(sides):
                if side.child:
                    self._ask(side, "ceiling", samples=self._rule.slice_samples, seconds=self._rule.slice_s)
        for side in sides:
            if side.child:
                self._ask(side, "peak")
            if side.child and side.stage.recipe.ranks > 1:
                self._ask(side, "communication", samples=self._rule.slice_samples)

    def _ask(self, side: Side, question: str, **arguments: float) -> None:
        assert side.child
        try:
            answer = side.child.ask(question, **arguments)
        except Cancelled:
            raise
        except PerfkitError as problem:
            self._leave(side, problem)
            return
        side.child.suspend()
        if isinstance(answer, Block):
            side.cached.append(answer)
        elif isinstance(answer, Peak):
            side.peak = answer
        else:
            side.communication = answer

    # ------------------------------------------------------------ how much is enough

    def common_rounds(self, own: Side, other: Side) -> list[list[Round]]:
        """The rounds of each incarnation in which both took part."""
        found = [
            [round for round in each.rounds if own in round.slices and other in round.slices]
            for each in self.incarnations
        ]
        return [rounds for rounds in found if rounds]

    def nested(self, own: Side, other: Side) -> Nested | None:
        """The logarithm of the ratio of two sides; None where they never took part together."""
        parts = self.common_rounds(own, other)
        if not parts:
            return None
        rounds = [round for part in parts for round in part]
        rates = [np.array([round.slices[side].samples_per_s for round in rounds]) for side in (own, other)]
        counts = stats.weights([round.disturbed for round in rounds], len(rounds))
        logs = np.log(rates[0]) - np.log(rates[1])
        return stats.nested(logs, [len(part) for part in parts], counts, self.spread(own, other))

    def _pairs(self) -> list[Nested]:
        """The ratios that the rule is about."""
        compared = [side for side in self._open() if side.stage.name != AGAIN]
        pairs = {(own, compared[0]) for own in compared[1:]}
        pairs |= {(own, other) for other, own in itertools.pairwise(compared)}
        return [ratio for own, other in pairs if (ratio := self.nested(own, other))]

    def _is_satisfied(self) -> bool:
        rule, rounds = self._rule, sum(len(each.rounds) for each in self.incarnations)
        if not rule.budget_s:
            return rounds >= rule.rounds
        pairs = self._pairs()
        if not pairs:  # one side alone: its own rate
            return rounds >= stats.ENDING_ROUNDS
        if not rule.precision:
            return False
        return all(
            stats.is_known(pair.centre, pair.half, rounds, rule.precision, rule.part) for pair in pairs
        )

    def _scatter(self) -> float:
        """How much ratios scatter from round to round."""
        first, *others = self._open()
        found = []
        for other in others:
            for rounds in self.common_rounds(other, first):
                if len(rounds) >= stats.MIN_ROUNDS:
                    own = np.log([round.slices[other].samples_per_s for round in rounds])
                    base = np.log([round.slices[first].samples_per_s for round in rounds])
                    found.append(float((own - base).std(ddof=1)))
        return float(np.median(found)) if found else USUAL_SCATTER

    def _left_s(self) -> float:
        rule = self._rule
        return min(rule.budget_s, rule.limit_s) - (self._machine.clock() - self._began)

    def _can_renew(self) -> bool:
        """Whether the time that is left allows another incarnation."""
        if not self._rule.budget_s:
            return False
        now = self.incarnations[-1]
        return self._left_s() >= now.start_s + stats.MIN_ROUNDS * now.round_s

    def _say(self, title: str) -> None:
        budget_s = min(self._rule.budget_s, self._rule.limit_s)
        spent = 1 - self._left_s() / budget_s if budget_s else 0.0
        self._progress.reach(min(0.99, spent), title, max(0.0, self._left_s()) if budget_s else None)


def _is_memory(problem: PerfkitError) -> bool:
    return isinstance(problem, RunFailed) and problem.kind == OUT_OF_MEMORY


def _is_end(problem: PerfkitError) -> bool:
    """Whether a script has come to its own end."""
    return isinstance(problem, RunFailed) and problem.kind == "ended"


def _check_switches(trained: Trained) -> None:
    off = [f"{proof.name} ({proof.evidence})" for proof in trained.mechanisms if not proof.ok]
    if off:
        raise RunFailed(
            f"the mechanism is not on: {'; '.join(off)}",
            "The numbers would not be of this recipe, so it is not measured; check the workload's code",
        )
