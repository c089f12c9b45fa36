"""The device memory of a step: what torch's caching allocator would hold, moment by moment and by kind."""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.simulate.step import Allocate, MemoryKind, Step

_GRAIN = 512
_SMALL = 1 << 20
"""Up to here, blocks come from segments of 2 MiB; above, from segments of their own or of 20 MiB."""
_SEGMENT_SMALL, _SEGMENT_LARGE, _FROM_SHARED = 2 << 20, 20 << 20, 10 << 20


def rounded(nbytes: int) -> int:
    """The size of the block that the allocator gives for a request."""
    return -(-max(nbytes, 1) // _GRAIN) * _GRAIN


@dataclass(frozen=True)
class Moment:
    """Memory in use after one event of a step."""

    event: int
    """Index into `Step.events`; -1 is before the step."""
    by_kind: dict[MemoryKind, int]
    """Allocated bytes."""

    @property
    def allocated(self) -> int:
        """Bytes of all kinds."""
        return sum(self.by_kind.values())


def timeline(step: Step) -> list[Moment]:
    """Memory in use before the step and after each event that changes it."""
    kinds: dict[MemoryKind, int] = {}
    for block in step.resident:
        kinds[block.kind] = kinds.get(block.kind, 0) + rounded(block.nbytes)
    moments = [Moment(-1, dict(kinds))]
    for number, event in enumerate(step.events):
        if isinstance(event, Allocate) and event.nbytes:
            size = rounded(abs(event.nbytes))
            kinds[event.kind] = kinds.get(event.kind, 0) + (size if event.nbytes > 0 else -size)
            moments.append(Moment(number, dict(kinds)))
    return moments


def peak(step: Step) -> Moment:
    """The moment with the most memory allocated."""
    return max(timeline(step), key=lambda moment: moment.allocated)


def reserved(step: Step, capacity: int | None = None) -> int | None:
    """The most bytes that the allocator takes from the device; None if it runs out of memory.

    It takes whole segments, keeps them when blocks are given back, and gives those that are free as a whole
    back when the device has no memory left, as torch does. Libraries' workspaces and what CUDA itself takes
    are not in it.

    Args:
        step: which is repeated.
        capacity: of the device, in bytes; None for no limit.
    """
    pool = _Pool(capacity)
    try:
        for block in step.resident:
            pool.take(block.block, block.nbytes)
        for _ in range(2):  # the first step finds an empty cache, the second what that left
            _play(step, pool)
    except _OutOfMemory:
        return None
    return pool.most


def _play(step: Step, pool: _Pool) -> None:
    before = {*pool.used}
    for event in step.events:
        if isinstance(event, Allocate) and event.nbytes > 0:
            pool.take(event.block, event.nbytes)
        elif isinstance(event, Allocate) and event.nbytes < 0:
            pool.give_back(event.block)
    for number in {*pool.used} - before:  # takes the place of what the step gave back, such as the next batch
        pool.give_back(number)
    for block in step.resident:
        if block.block not in pool.used:
            pool.take(block.block, block.nbytes)


class _OutOfMemory(Exception):
    pass


class _Pool:
    """Segments of device memory, split into blocks; neighbours that are free are merged."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.reserved = self.most = 0
        self.free: list[tuple[int, int, int]] = []
        """(size, segment, offset) of free blocks."""
        self.used: dict[int, tuple[int, int, int]] = {}
        self._segments: list[tuple[bool, int]] = []
        """Of each segment, whether it holds small blocks, and its size."""

    def take(self, number: int, nbytes: int) -> None:
        size = rounded(nbytes)
        small = size <= _SMALL
        fits = [block for block in self.free if block[0] >= size and self._segments[block[1]][0] == small]
        block = min(fits, default=None)
        if block is None:
            block = (self._new_segment(size, small), len(self._segments) - 1, 0)
        else:
            self.free.remove(block)
        left = block[0] - size
        if left >= (_GRAIN if small else _SMALL + 1):
            self.free.append((left, block[1], block[2] + size))
        else:
            size = block[0]
        self.used[number] = (size, block[1], block[2])

    def _new_segment(self, size: int, small: bool) -> int:
        shared = _SEGMENT_SMALL if small else _SEGMENT_LARGE
        nbytes = shared if small or size < _FROM_SHARED else -(-size // _SEGMENT_SMALL) * _SEGMENT_SMALL
        if self.capacity is not None and self.reserved + nbytes > self.capacity:
            whole = [block for block in self.free if block[0] == self._segments[block[1]][1]]
            self.free = [block for block in self.free if block not in whole]
            self.reserved -= sum(block[0] for block in whole)
            if self.reserved + nbytes > self.capacity:
                raise _OutOfMemory
        self._segments.append((small, nbytes))
        self.reserved += nbytes
        self.most = max(self.most, self.reserved)
        return nbytes

    def give_back(self, number: int) -> None:
        size, segment, offset = self.used.pop(number)
        for block in [block for block in self.free if block[1] == segment]:
            if block[2] + block[0] == offset:
                self.free.remove(block)
                size, offset = size + block[0], block[2]
            elif offset + size == block[2]:
                self.free.remove(block)
                size += block[0]
        self.free.append((size, segment, offset))
