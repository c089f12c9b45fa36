"""Sides that are measured together, and what their rounds have shown.

A side is one training with all that belongs to it: loader workers, or whatever a script starts. From the end
of its slice to the start of its next it is suspended, so it cannot load, spin or fill a queue in the slice of
another side, and finds its own queue as it left it.
"""

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perfkit.errors import Cancelled, OutOfMemory, PerfkitError, TrainingEnded
from perfkit.ladder.catalogue import Stage
from perfkit.results import Busiest, Rounds, Spread
from perfkit.studies.conversation import StartedTraining, TrainingConversation
from perfkit.worker.messages import Peak, TimedSteps, TrainingReport


@dataclass(eq=False)
class Side:
    """A stage that is measured: its current processes, and what is asked of it only once."""

    stage: Stage
    failure: PerfkitError | None = None
    child: TrainingConversation | None = None  # the processes that train now
    ended_by: PerfkitError | None = None  # what ended its processes after their rounds, which count
    on_cached_batch: list[TimedSteps] = field(default_factory=list)  # slices without loading
    peak: Peak | None = None
    was_asked: bool = False  # for its peak and for slices on a cached batch
    remarks: list[str] = field(default_factory=list)
    gpu_bytes: int = 0  # GPU memory that its process takes, measured from outside

    @property
    def is_open(self) -> bool:
        return not (self.failure or self.stage.reason)

    def fail(self, problem: PerfkitError) -> None:
        self.stop()
        self.failure = problem

    def stop(self) -> None:
        if self.child:
            self.child.stop()
        self.child = None


@dataclass
class Round:
    """One slice of each side that took part."""

    slices: dict[Side, TimedSteps] = field(default_factory=dict)
    others_share: dict[Side, float] = field(default_factory=dict)  # what others took of the cores or the GPU
    utilization: dict[Side, list[float]] = field(default_factory=dict)  # samples of the GPU's

    def add(self, side: Side, steps: TimedSteps, others_share: float, utilization: list[float]) -> None:
        """Adds a slice of a side; if it was measured twice, the less disturbed one counts."""
        if side not in self.slices or others_share < self.others_share[side]:
            self.slices[side] = steps
            self.others_share[side] = others_share
            self.utilization[side] = utilization


@dataclass
class Incarnation:
    """What has been measured of one set of processes. One whose sides do not fit together is thrown away."""

    reports: dict[Side, TrainingReport] = field(default_factory=dict)  # of each side once it was warm
    start_s: float = 0.0  # until all sides were warm
    compile_s: float = 0.0  # the part of it in first steps that compiled, which happens only once
    rounds: list[Round] = field(default_factory=list)

    @property
    def round_s(self) -> float:
        spent_s = sum(steps.seconds for round_ in self.rounds for steps in round_.slices.values())
        return spent_s / max(1, len(self.rounds))


class TooManySides(Exception):
    """The sides do not fit into memory together; `fitting` of them do."""

    def __init__(self, fitting: int) -> None:
        self.fitting = fitting


AskMore = Callable[[Side], None]  # asks a side for more before its processes end, or notes what ended them


@dataclass
class Bench:
    """What a measurement needs to start and time trainings, so that a test can replace it."""

    start_training: Callable[[Stage, bool], StartedTraining]
    """Starts the processes of a stage, and returns once they are warm; True if its losses are known."""
    renew: Callable[[Sequence[Stage]], None] = lambda stages: None
    """Makes the next processes of these stages as independent of the earlier ones as possible."""
    gpu: str | None = None  # the UUID of the GPU that trains
    ask_more: AskMore | None = None
    clock: Callable[[], float] = time.monotonic
    order: random.Random = field(default_factory=random.SystemRandom)
    """Decides who starts and who takes a slice first; it never depends on the seed of a recipe."""

    def shuffled(self, sides: Sequence[Side]) -> list[Side]:
        return self.order.sample(sides, len(sides))


@dataclass
class MeasuredSides:
    """What a measurement has found so far."""

    sides: Sequence[Side]  # the others are compared with the first one
    spreads: Mapping[Side, Spread]  # how far equal processes of a side and the first one differ here
    incarnations: list[Incarnation] = field(default_factory=list)
    fitting: int | None = None  # sides that memory holds at a time, if not all; if it is one, they take turns
    in_turns: bool = False  # whether they have taken turns
    busiest: Busiest | None = None  # known when it has ended

    @property
    def latest(self) -> Incarnation:
        return self.incarnations[-1]

    @property
    def round_count(self) -> int:
        return sum(len(incarnation.rounds) for incarnation in self.incarnations)

    def open_sides(self) -> list[Side]:
        return [side for side in self.sides if side.is_open]

    def lose(self, side: Side, problem: PerfkitError) -> None:
        """Goes on without a side that has failed; raises `problem` or `TooManySides` if that cannot be."""
        has_ended = isinstance(problem, TrainingEnded) and self.round_count_of(side) > 0  # its rounds count
        if has_ended or isinstance(problem, Cancelled):
            raise problem
        others = sum(peer.child is not None and peer is not side for peer in self.sides)
        if isinstance(problem, OutOfMemory) and others:  # the memory that it lacks may be theirs
            raise TooManySides(others) from None
        side.fail(problem)

    def reports(self, side: Side) -> list[TrainingReport]:
        """The report of a side in each incarnation, once it was warm."""
        return [past.reports[side] for past in self.incarnations if side in past.reports]

    def round_count_of(self, side: Side) -> int:
        return sum(map(len, self.common_rounds(side, side)))

    def common_rounds(self, own: Side, other: Side) -> list[list[Round]]:
        """The rounds of each incarnation in which both took part."""
        common = []
        for incarnation in self.incarnations:
            rounds = [round_ for round_ in incarnation.rounds if {own, other} <= round_.slices.keys()]
            if rounds:
                common.append(rounds)
        return common

    def with_first(self, own: Side) -> Rounds:
        """The rounds of a side with those of the first one."""
        first = self.sides[0]
        parts = self.common_rounds(own, first)
        rounds = list(itertools.chain.from_iterable(parts))
        return Rounds(
            own_samples_per_s=[round_.slices[own].samples_per_s for round_ in rounds],
            other_samples_per_s=[round_.slices[first].samples_per_s for round_ in rounds],
            # Of these two only: what other sides of a round went through does not concern them.
            disturbed=[max(round_.others_share[own], round_.others_share[first]) for round_ in rounds],
            incarnations=[len(part) for part in parts],
            interleaved=not self.in_turns,
            spread=self.spreads[own],
        )
