"""Sides measured in rounds, in one incarnation after the other, until a rule is satisfied.

Rounds are short, so the drift of a noisy machine cancels within a round, and the processes are renewed as
often as the budget allows, because equal processes differ for as long as they live.
"""

from collections.abc import Sequence

from perfkit.errors import TrainingEnded
from perfkit.ladder.catalogue import StopRule
from perfkit.machine import cores, gpus
from perfkit.process import zygote
from perfkit.results import Busiest
from perfkit.studies.enough import Enough
from perfkit.studies.sides import Bench, Incarnation, MeasuredSides, Round, Side, TooManySides
from perfkit.studies.slices import Slices
from perfkit.studies.sources import Progress
from perfkit.studies.starting import Starter


class Measurement:
    """One measurement: it starts the sides, has their slices taken, and ends by the rule."""

    def __init__(self, measured: MeasuredSides, rule: StopRule, bench: Bench, progress: Progress) -> None:
        self._measured = measured
        self._bench = bench
        self._progress = progress
        self._enough = Enough(measured, rule, bench.clock)
        self._slices = Slices(measured, rule, bench)
        self._own_pids = set[int]()  # even of processes that have ended, which are still listed
        self._starter = Starter(measured, bench, self._say)

    def run(self) -> None:
        """Measures until the rule is satisfied or its budget is spent; at least one incarnation."""
        others = cores.OtherPrograms()
        self._own_pids |= zygote.pids()
        try:
            with gpus.sample_utilization(self._bench.gpu) as samples:
                self._slices.utilization = samples
                while self._measured.open_sides() and not self._enough.is_over():
                    self._one_more()
                    self._own_pids |= zygote.pids()
                    others.sample()  # all sides have ended by now
        finally:
            self._measured.busiest = Busiest(*others.busiest(self._own_pids | zygote.pids()))

    def _one_more(self) -> None:
        """Measures one more incarnation; if its sides do not fit in memory, the next one has fewer."""
        measured = self._measured
        sides = self._enough.next_sides()
        if measured.incarnations:
            self._bench.renew([side.stage for side in sides])
        measured.incarnations.append(Incarnation())
        if measured.fitting == 1:
            measured.in_turns = True
            self._in_turns(sides)
            return
        try:
            self._together(sides)
        except TooManySides as problem:
            measured.incarnations.pop()
            measured.fitting = problem.fitting

    def _together(self, sides: Sequence[Side]) -> None:
        """Measures sides that are alive at the same time."""
        with self._starter.running(sides):
            for child in [side.child for side in sides if side.child]:
                self._own_pids |= child.pids()
            self._take_rounds(sides)
            self._slices.measure_once(sides)

    def _in_turns(self, sides: Sequence[Side]) -> None:
        ended: TrainingEnded | None = None
        for side in self._bench.shuffled(sides):
            try:
                self._together([side])
            except TrainingEnded as problem:  # the others have their turn all the same
                ended = problem
            if side.failure:  # the others take as many rounds as they would without it
                rounds = self._measured.latest.rounds
                rounds[:] = [round_ for round_ in rounds if round_.slices.keys() != {side}]
        if ended:
            raise ended

    def _take_rounds(self, sides: Sequence[Side]) -> None:
        """Takes rounds: as many as the sides before these took in their turns, or as the rule says."""
        rounds = self._measured.latest.rounds
        if rounds:
            for round_ in rounds:
                self._take_slices(sides, round_)
            return
        while _alive(sides) and not self._enough.has_had_its_share(len(rounds)):
            round_ = Round()
            self._take_slices(sides, round_)
            if round_.slices:  # if all sides have failed, there is no round
                rounds.append(round_)

    def _take_slices(self, sides: Sequence[Side], round_: Round) -> None:
        if alive := _alive(sides):
            self._say(f"round {self._measured.round_count + 1} of {alive[-1].stage.title}")
            left_s = self._enough.left_s
            self._slices.take(alive, round_, is_in_time=left_s is not None and left_s > 0)

    def _say(self, title: str) -> None:
        left_s = self._enough.left_s
        if self._enough.budget_s and left_s is not None:
            fraction = min(0.99, 1 - left_s / self._enough.budget_s)
            self._progress.reach(fraction, title, max(0.0, left_s))
        else:
            self._progress.reach(0.0, title)


def _alive(sides: Sequence[Side]) -> list[Side]:
    return [side for side in sides if side.child]
