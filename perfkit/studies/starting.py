"""Starting the sides of a measurement: each warm, suspended, and as long as memory holds them together."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from perfkit.errors import PerfkitError, RunFailed
from perfkit.machine import cores, gpus
from perfkit.studies.sides import Bench, MeasuredSides, Side, TooManySides
from perfkit.worker.messages import TrainingReport

LAST_ANSWER_S = 2.0  # after Ctrl-C: a side in a long slice answers only when that has ended
MEMORY_MARGIN = 1.5  # another training needs the memory of the largest so far, and more for its batches


class Starter:
    """Starts and ends sides. `say` is called with what is being started."""

    def __init__(self, measured: MeasuredSides, bench: Bench, say: Callable[[str], None]) -> None:
        self._measured = measured
        self._bench = bench
        self._say = say

    @contextlib.contextmanager
    def running(self, sides: Sequence[Side]) -> Iterator[None]:
        """Starts, warms up and suspends sides in the newest incarnation; they end with the block."""
        began = self._bench.clock()
        try:
            for side in self._bench.shuffled(sides):
                alive = [peer for peer in sides if peer.child]
                if alive and self._is_crowded(alive):
                    raise TooManySides(len(alive))
                self._say(f"starting {side.stage.title}")
                self._start_side(side)
            self._measured.latest.start_s += self._bench.clock() - began
            yield
        except TooManySides:  # this incarnation does not count, so nothing more is asked
            for side in sides:
                side.stop()
            raise
        except KeyboardInterrupt:
            for child in [side.child for side in sides if side.child]:
                child.timeout_s = LAST_ANSWER_S
            raise
        finally:
            for side in sides:
                if self._bench.ask_more and (side.child or side.ended_by):
                    self._bench.ask_more(side)
                side.stop()

    def _start_side(self, side: Side) -> None:
        has_trained = bool(self._measured.reports(side))
        free = gpus.free_gpu_bytes(self._bench.gpu)
        try:
            side.child, trained = self._bench.start_training(side.stage, has_trained)
            side.child.suspend()
            _check_switches(trained)
        except PerfkitError as problem:
            self._measured.lose(side, problem)
            return
        self._measured.latest.reports[side] = trained
        if trained.compile_counters.graphs and not trained.compile_counters.cache_hits:
            self._measured.latest.compile_s += trained.warmup.step_s[0]
        if free is not None:
            side.gpu_bytes = max(0, free - (gpus.free_gpu_bytes(self._bench.gpu) or 0))

    def _is_crowded(self, alive: Sequence[Side]) -> bool:
        """Whether one more training may not fit into the memory of this machine or of its GPU."""
        if gpus.holds_one_process(self._bench.gpu):
            return True
        resident = [side.child.tree.resident_bytes() for side in alive if side.child]
        if cores.free_memory_bytes() < MEMORY_MARGIN * max(resident):
            return True
        free = gpus.free_gpu_bytes(self._bench.gpu)
        if self._bench.gpu and free is None:  # NVML is missing or not allowed, or the memory is the host's
            return len(alive) >= 2
        return free is not None and free < MEMORY_MARGIN * max(side.gpu_bytes for side in alive)


def _check_switches(trained: TrainingReport) -> None:
    off = [f"{proof.name} ({proof.evidence})" for proof in trained.mechanisms if not proof.ok]
    if off:
        remedy = "It was not measured: the numbers would not be of this recipe. Check the workload's code"
        raise RunFailed(f"the switch is not in effect: {'; '.join(off)}", remedy)
