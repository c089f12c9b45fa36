"""A trace: a table of events, and what is derived of it: launches, lines of code, steps."""

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.additions.trace.intervals import Ints, Spans, merge
from perfkit.additions.trace.reader import ADVICE, Args, Event, Reader, Tell, TraceError, find

WHOLE = "whole trace"
_FARTHEST_US, _LONGEST_US, _NS = Decimal(4 * 10**15), Decimal(10**12), Decimal(1000)
"""The year 2096, beyond which is no time stamp; eleven days; of a µs."""


class Kind(IntEnum):
    """What an event is; most of the names are those of the parts of a step."""

    OTHER, KERNEL, COLLECTIVE, MEMCPY, MEMSET, COMMUNICATION, RUNTIME, DATALOADER = range(8)
    CPU_OP, ANNOTATION, STEP, PYTHON = range(8, 12)


KERNELS = (Kind.KERNEL, Kind.COLLECTIVE)
COPIES = (Kind.MEMCPY, Kind.MEMSET)
LAYERS: dict[str, tuple[Kind, ...]] = {
    "kernel": (Kind.KERNEL,),
    "memcpy": (Kind.MEMCPY,),
    "memset": (Kind.MEMSET,),
    "communication": (Kind.COLLECTIVE, Kind.COMMUNICATION),
    "runtime": (Kind.RUNTIME,),
    "dataloader": (Kind.DATALOADER,),
    "cpu_op": (Kind.CPU_OP, Kind.ANNOTATION),
}
"""The parts of a step in order of priority, but the rest; collective kernels are communication."""
_HOST = "(cpu_op|operator|user_annotation) "
_KINDS = {
    Kind.STEP: _HOST + "ProfilerStep#",
    Kind.DATALOADER: _HOST + r"enumerate\(Data(Loader|Pipe)\)",
    Kind.COMMUNICATION: _HOST + "(nccl|rccl|gloo|ucc|mpi|xccl):",
    Kind.COLLECTIVE: "(?is)kernel .*(nccl|rccl|oneccl|mscclpp)",
    Kind.KERNEL: "kernel ",
    Kind.MEMCPY: "(gpu_)?memcpy ",
    Kind.MEMSET: "(gpu_)?memset ",
    Kind.RUNTIME: r"(\w+_)?runtime |\w*_driver ",
    Kind.CPU_OP: "(cpu_op|operator) ",
    Kind.ANNOTATION: "user_annotation ",
    Kind.PYTHON: "python(_function)? ",
}
"""How category and name of an event begin; the first that matches is its kind."""
_COLUMNS = {
    "kind": "i1",
    **dict.fromkeys(["name", "thread", "inputs", "stack"], "i4"),
    **dict.fromkeys(["start", "end", "correlation", "bytes"], "i8"),
    **dict.fromkeys(["blocks", "occupancy"], "f8"),
}


@lru_cache(1 << 16)
def _kind(category: str, name: str) -> Kind:
    text = f"{category.lower()} {name}"
    return next((kind for kind, pattern in _KINDS.items() if re.match(pattern, text)), Kind.OTHER)


class Texts(dict[Any, int]):
    """Numbers distinct values in order of appearance, in `each`; -1 is the number of none."""

    def __init__(self) -> None:
        self.each: list[Any] = []

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        self.each.append(value)
        return self[value]


class Trace:
    """The events of interest of a `*.pt.trace.json` or `.json.gz` as one `table`, and what follows from it.

    Rows have the order of the file, times are in ns from the first event on. Names, threads, inputs (pairs of
    dims and types) and stacks are numbers of `texts`. Absent values are -1 (integers) or NaN (floats).

    Args:
        path: the file, of one rank; `recorded:NAME` is one that comes with perfkit.
        tell: follows the read.

    Raises:
        InvalidValue: it cannot be read.
        TraceError: nothing in it is an event of the PyTorch profiler.
    """

    def __init__(self, path: str | Path, tell: Tell = lambda what, share: None) -> None:
        self.file = Reader(find(path), tell)
        self.texts = Texts()
        self.threads: dict[tuple[str, str], str] = {}
        """Names of threads by process and number."""
        pieces = [self._rows(events) for events in self.file.pieces()]
        table: Any = np.concatenate(pieces).view(np.recarray)
        self.table = table
        if not len(table):
            raise TraceError(f"{self.file.path.name}: this file has no event of the profiler", ADVICE)
        self.start = int(table.start.min())
        """Of the recording, in ns; times of the table count from it."""
        table.start -= self.start
        table.end -= self.start
        for column in (table.blocks, table.occupancy):
            column[~(column >= 0)] = np.nan
        table.occupancy /= 100
        self.ops, self.calls = self.rows(Kind.CPU_OP), self.rows(Kind.RUNTIME)
        """Operators, and calls of the runtime."""
        self.device = self.rows(*KERNELS, *COPIES)
        self.launch = np.full(len(table), -1)
        """For each row of the table the call that launched it: the first with its correlation, or -1."""
        _, number = np.unique(table.correlation, return_inverse=True)
        by_number, launching = self.launch.copy(), self.calls[table.correlation[self.calls] >= 0]
        by_number[number[launching[::-1]]] = launching[::-1]
        self.launch[self.device] = by_number[number[self.device]]
        self.launched = self.device[self.launch[self.device] >= 0]

    def _rows(self, events: list[Event]) -> Any:
        """Rows of the table for the events of interest."""
        texts, rows, nothing = self.texts, [], Args()
        for event in events:
            args, kind = event.args or nothing, Kind.OTHER
            if event.ph == "X":
                kind = _kind(event.cat, event.name)
            elif event.name == "thread_name":
                self.threads[str(event.pid), str(event.tid)] = args.name
            if not kind:
                continue
            try:
                fits = abs(event.ts) <= _FARTHEST_US and 0 <= event.dur <= _LONGEST_US
            except ArithmeticError:  # NaN
                fits = False
            if not fits:
                self.file.dropped += 1
                continue
            start = round(event.ts * _NS)
            row = (
                kind,
                texts[event.name],
                texts[event.pid, event.tid],
                texts[bytes(args.dims), bytes(args.types)] if args.dims or args.types else -1,
                texts[args.stack] if args.stack else -1,
                start,
                start + round(event.dur * _NS),
                args.correlation,
                args.bytes if args.bytes >= 0 else args.size,
                args.blocks,
                args.occupancy,
            )
            rows.append(row)
        return np.array(rows, [*_COLUMNS.items()])

    def rows(self, *kinds: Kind) -> Ints:
        """Row numbers of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.table.kind, kinds))

    def matching(self, rows: Ints, pattern: str) -> Ints:
        """Those of the rows in whose name a pattern is found."""
        finds, names = re.compile(pattern).search, self.table.name[rows]
        good = [name for name in np.unique(names).tolist() if finds(self.texts.each[name])]
        return rows[np.isin(names, good)]

    def text(self, codes: Ints) -> list[Any]:
        """The texts of numbers; None for -1."""
        return [self.texts.each[code] if code >= 0 else None for code in codes.tolist()]

    def duration(self, rows: Ints) -> Ints:
        """Nanoseconds."""
        return self.table.end[rows] - self.table.start[rows]  # type: ignore[no-any-return]

    def union(self, rows: Ints) -> Spans:
        """The union of rows' intervals."""
        return merge(self.table.start[rows], self.table.end[rows])

    @cached_property
    def layers(self) -> tuple[Spans, ...]:
        """The time of each of `LAYERS`."""
        return tuple(self.union(self.rows(*kinds)) for kinds in LAYERS.values())

    @cached_property
    def track(self) -> Ints:
        """For each row its thread, plus 2³² on a stream, twice that for copies."""
        track: Ints = self.table.thread.astype(np.int64)
        for group, kinds in enumerate((KERNELS, COPIES), 1):
            track[self.rows(*kinds)] += group << 32
        return track

    @cached_property
    def parent(self) -> Ints:
        """For each row the last one of its track that began before it and is open at its start, or -1.

        Of rows with the same times, the operator is outside of the call.
        """
        table = self.table
        order = np.lexsort((-table.kind, -table.end, table.start, self.track))
        start, is_first = table.start[order], np.diff(self.track[order], prepend=-1) > 0
        end = np.maximum(table.end[order], start + 1)
        above = np.where(is_first, -1, np.arange(-1, len(order) - 1))
        rows = np.flatnonzero(~is_first)
        while len(rows):  # all between a row and the one above it have ended before it starts
            rows = rows[end[above[rows]] <= start[rows]]
            above[rows] = above[above[rows]]
            rows = rows[above[rows] >= 0]
        parent = np.empty(len(order), np.int64)
        parent[order] = take(order, above)
        return parent

    def _around(self, good: npt.NDArray[np.bool_]) -> Ints:
        """For each row the innermost of the good ones that is open at its start, or -1."""
        start, end = self.table.start, np.maximum(self.table.end, self.table.start + 1)
        around, rows, above = np.full(len(start), -1), np.arange(len(start)), self.parent
        while len(rows):
            rows, above = rows[above >= 0], above[above >= 0]
            found = good[above] & (end[above] > start[rows])
            around[rows[found]] = above[found]
            rows, above = rows[~found], self.parent[above[~found]]
        return around

    @cached_property
    def op(self) -> Ints:
        """For each row the operator around it or its launch, or -1."""
        op = self._around(self.table.kind == Kind.CPU_OP)
        launched = take(op, self.launch)
        return np.where(launched >= 0, launched, op)

    @cached_property
    def frame(self) -> Ints:
        """For each row the user's `file.py:line` that led to it, a number of `texts`, or -1.

        Of the Python frame around it or its launch, else in its operator's stack.
        """
        table, every = self.table, np.arange(len(self.table))
        lines = self._lines(np.where(table.kind == Kind.PYTHON, table.name, -1))
        by_time = take(lines, self._around(lines >= 0)[np.where(self.launch >= 0, self.launch, every)])
        op = np.where(table.kind == Kind.CPU_OP, every, self.op)
        return np.where(by_time >= 0, by_time, self._lines(take(table.stack, op)))

    def _lines(self, stacks: Ints) -> Ints:
        """The first line of the user's own code in stacks, innermost first."""
        distinct, inverse = np.unique(stacks, return_inverse=True)
        lines = [_user_line(text or "") for text in self.text(distinct)]
        return np.array([self.texts[line] if line else -1 for line in lines], np.int64)[inverse]

    @cached_property
    def steps(self) -> "Steps":
        """Host marks `ProfilerStep#n`, each extended to the end of the device work launched inside it."""
        table, marks = self.table, self.rows(Kind.STEP)
        if not len(marks):
            return Steps(np.array([0]), np.array([table.end.max()]), [WHOLE])
        marks = marks[np.lexsort((-table.end[marks], table.start[marks]))]
        start, end = table.start[marks], table.end[marks]
        call, latest = self.launch[self.launched], end.copy()
        step = np.searchsorted(start, table.start[call], "right") - 1
        inside = (step >= 0) & (table.end[call] <= end[step])
        np.maximum.at(latest, step[inside], table.end[self.launched[inside]])
        end = np.maximum.accumulate(latest)
        start = np.maximum(start, np.concatenate((start[:1], end[:-1])))
        keep = end > start  # not those that repeat, or lie inside others
        return Steps(start[keep], end[keep], self.text(table.name[marks[keep]]))


@dataclass(frozen=True)
class Steps(Spans):
    """Windows of steps, in order of time."""

    names: list[str]


def take(column: Ints, rows: Ints) -> Ints:
    """Values of rows; -1 for the row -1."""
    return np.where(rows >= 0, column[rows], -1)


_FRAME = re.compile(r"^(.*\.py)\((\d+)\)")
_LIBRARY = re.compile(
    r"(^|[/\\])(torch|torchvision|site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]|^<"
)


def _user_line(stack: str) -> str | None:
    frames = (_FRAME.match(text.strip()) for text in stack.split(";") if not _LIBRARY.search(text))
    return next((f"{frame[1]}:{frame[2]}" for frame in frames if frame), None)
