"""Slices: a few steps of one side while all others are suspended; one of each side makes a round."""

import contextlib
import time
from collections.abc import Iterator, Sequence

from perfkit.errors import Cancelled, PerfkitError, TrainingEnded
from perfkit.ladder.catalogue import StopRule
from perfkit.machine import cores, gpus
from perfkit.studies.sides import Bench, MeasuredSides, Round, Side

MOST_TAKEN = 0.5  # a slice of which others took more of the cores than this is taken again


class Slices:
    """Takes the slices of running sides, and asks each side once for its peak and for cached slices."""

    def __init__(self, measured: MeasuredSides, rule: StopRule, bench: Bench) -> None:
        self._measured = measured
        self._rule = rule
        self._bench = bench
        self.utilization: list[float] = []  # samples of the GPU's; those of a slice are added while it runs

    def take(self, sides: Sequence[Side], current: Round, is_in_time: bool) -> None:
        """Takes a slice of each side, in random order, and again one that others mostly took, if in time."""
        for side in self._bench.shuffled(sides):
            self._take_slice(side, current)
        if is_in_time:
            for side, share in list(current.others_share.items()):
                if share > MOST_TAKEN and side.child:
                    self._take_slice(side, current)

    def _take_slice(self, side: Side, current: Round) -> None:
        assert side.child
        first_sample = len(self.utilization)
        since = time.time()
        before = cores.cpu_times(side.child.tree.cpu_s())
        try:
            size = self._rule.slice
            steps = side.child.slice(size.samples, size.seconds)
        except PerfkitError as problem:
            self._measured.lose(side, problem)
            return
        finally:
            if side.child is not None:
                side.child.suspend()
        share = cores.taken_share(before, cores.cpu_times(side.child.tree.cpu_s()))
        if self._bench.gpu:
            children = [peer.child for peer in self._measured.sides if peer.child]
            pids = {pid for child in children for pid in child.pids()}  # a sample may hold the slice before
            share = max(share, gpus.taken_gpu_share(self._bench.gpu, since, pids))
        current.add(side, steps, share, self.utilization[first_sample:])

    def measure_once(self, sides: Sequence[Side]) -> None:
        """The peak of memory, and slices on a cached batch, in the first incarnation of each side.

        A side that fails in this keeps its rounds: a remark says what is not known of it.
        """
        size = self._rule.slice
        sides = [side for side in sides if not side.was_asked]
        for side in sides:
            side.was_asked = True
            if side.child:
                with _asked(side, "its peak memory"):
                    side.peak = side.child.peak()
        for _ in range(min(self._rule.cached, len(self._measured.latest.rounds))):
            for side in self._bench.shuffled(sides):
                if side.child:
                    with _asked(side, "its rate on a cached batch"):
                        side.on_cached_batch.append(side.child.cached_batch(size.samples, size.seconds))


@contextlib.contextmanager
def _asked(side: Side, what: str) -> Iterator[None]:
    """Suspends a side once it has answered. If it fails, it ends, and a remark says what is not known."""
    try:
        yield
    except Cancelled:
        raise
    except PerfkitError as problem:
        side.on_cached_batch.clear()
        side.remarks.append(f"{what} is not known: {problem}")
        if isinstance(problem, TrainingEnded):  # it still answers what is asked at the end
            raise
        side.stop()
        side.ended_by = problem
    if side.child:
        side.child.suspend()
