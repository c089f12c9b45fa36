"""A trace: a table of events per file, and what is derived of it: launches, lines of code, steps."""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.intervals import Ints, Spans, merge
from perfkit.trace.reader import ADVICE, Args, Event, Reader

Paths = str | Path | Iterable[str | Path]
Tell = Callable[[str, float], object]
"""Called with what is being read, and the share that is done."""
WHOLE = "whole trace"
FARTHEST_US, LONGEST_US = 4 * 10**15, 10**12
"""The year 2096, beyond which is no time stamp; eleven days."""
_QUIET_S = 2.0
"""A read that takes longer says how far it is."""


class Kind(IntEnum):
    """What an event is; most of the names are those of the parts of a step."""

    OTHER, KERNEL, COLLECTIVE, MEMCPY, MEMSET, COMMUNICATION, RUNTIME, DATALOADER = range(8)
    CPU_OP, ANNOTATION, STEP, PYTHON, MEMORY = range(8, 13)


KERNELS = (Kind.KERNEL, Kind.COLLECTIVE)
COPIES = (Kind.MEMCPY, Kind.MEMSET)
_CATEGORIES = {
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "runtime": Kind.RUNTIME,
    "cpu_op": Kind.CPU_OP,
    "operator": Kind.CPU_OP,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "python": Kind.PYTHON,
}
_HOST = (Kind.CPU_OP, Kind.ANNOTATION)
_NAMES = (
    (_HOST, r"^ProfilerStep#", Kind.STEP),
    (_HOST, r"^enumerate\(Data(Loader|Pipe)\)", Kind.DATALOADER),
    (_HOST, r"^(nccl|rccl|gloo|ucc|mpi|xccl):", Kind.COMMUNICATION),
    ((Kind.KERNEL,), r"(?i)nccl|rccl|oneccl|mscclpp", Kind.COLLECTIVE),
)
_EVENT = np.dtype(
    [
        ("kind", "i1"),
        ("name", "i4"),
        ("thread", "i4"),
        ("start", "i8"),
        ("end", "i8"),
        ("correlation", "i8"),
        ("external", "i8"),
        ("gpu", "i8"),
        ("bytes", "i8"),
        ("blocks", "f8"),
        ("occupancy", "f8"),
        ("inputs", "i4"),
        ("stack", "i4"),
    ]
)


@lru_cache(256)
def _category(name: str) -> Kind:
    low = name.lower()
    return Kind.RUNTIME if low.endswith(("_runtime", "_driver")) else _CATEGORIES.get(low, Kind.OTHER)


class Texts(dict[Any, int]):
    """Numbers distinct values in order of appearance, in `each`; -1 is the number of none."""

    def __init__(self) -> None:
        self.each: list[Any] = []

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        self.each.append(value)
        return self[value]


class Rank:
    """One file: its events of interest as `table`, in file order, and what is derived from them on first use.

    Times are in ns on the trace's own clock. Names, threads, inputs (pairs of dims and types) and stacks are
    numbers of texts. -1 (integers) or NaN (floats) where the file has no value.

    Raises:
        TraceError: the file cannot be read, or nothing in it is an event of the PyTorch profiler.
    """

    def __init__(self, path: Path, texts: Texts, tell: Callable[[float], object] = bool) -> None:
        self.path, self.texts, self.file = str(path), texts, Reader(path, tell)
        self.threads: dict[tuple[str, str], str] = {}
        """Names of threads by process and number."""
        memory: list[tuple[int, ...]] = []
        pieces = [self._rows(events, memory) for events in self.file.pieces()]
        table: Any = np.concatenate(pieces).view(np.recarray)
        self.table = table
        self.memory = np.array(memory, np.int64).reshape(-1, 5)
        """A row for each `[memory]` event: device type, device, change, allocated, reserved."""
        if not len(table):
            raise TraceError("this file has no event of the profiler", ADVICE)
        for column in (table.correlation, table.external, table.gpu, table.bytes):
            np.maximum(column, -1, out=column)
        for column in (table.blocks, table.occupancy):
            column[~(column >= 0)] = np.nan
        table.occupancy /= 100
        for kinds, pattern, kind in _NAMES:
            table.kind[self.matching(self.rows(*kinds), pattern)] = kind

    def _rows(self, events: list[Event], memory: list[tuple[int, ...]]) -> Any:
        """Rows of the table for the events of interest; the figures of `[memory]` events go to `memory`."""
        texts, rows, nothing = self.texts, [], Args()
        for event in events:
            args = event.args if isinstance(event.args, Args) else nothing
            kind = _category(event.cat) if event.ph == "X" else Kind.OTHER
            if event.ph == "i" and event.name == "[memory]":
                kind = Kind.MEMORY
                memory.append((args.device_type, args.device_id, args.change, args.allocated, args.reserved))
            elif event.ph == "M" and event.name == "thread_name":
                self.threads[str(event.pid), str(event.tid)] = args.name
            if not kind:
                continue
            try:
                fits = abs(event.ts) <= FARTHEST_US and 0 <= event.dur <= LONGEST_US
            except ArithmeticError:  # NaN
                fits = False
            if not fits:
                self.file.dropped += 1
                continue
            start, inputs = round(event.ts * 1000), (bytes(args.dims), bytes(args.types))
            row = (
                kind,
                texts[event.name],
                texts[event.pid, event.tid],
                start,
                start + round(event.dur * 1000),
                args.correlation,
                args.external if args.external >= 0 else args.external_old,
                args.device,
                args.bytes if args.bytes >= 0 else args.size,
                args.blocks,
                args.occupancy,
                texts[inputs] if any(inputs) else -1,
                texts[args.stack] if args.stack else -1,
            )
            rows.append(row)
        return np.array(rows, _EVENT)

    def rows(self, *kinds: Kind) -> Ints:
        """Row numbers of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.table.kind, kinds))

    def matching(self, rows: Ints, pattern: str) -> Ints:
        """Those of the rows in whose name a pattern is found."""
        finds, names = re.compile(pattern).search, self.table.name[rows]
        good = [name for name in np.unique(names).tolist() if finds(self.texts.each[name])]
        return rows[np.isin(names, good)]

    def duration(self, rows: Ints) -> Ints:
        """Nanoseconds."""
        return self.table.end[rows] - self.table.start[rows]  # type: ignore[no-any-return]

    def union(self, rows: Ints) -> Spans:
        """The union of rows' intervals."""
        return merge(self.table.start[rows], self.table.end[rows])

    def busy(self, *kinds: Kind) -> Spans:
        """When anything of these kinds runs."""
        return self.union(self.rows(*kinds))

    @cached_property
    def layers(self) -> tuple[Spans, ...]:
        """The parts of a step in order of priority, but the rest; collective kernels are communication."""
        kinds = (
            (Kind.KERNEL,),
            (Kind.MEMCPY,),
            (Kind.MEMSET,),
            (Kind.COLLECTIVE, Kind.COMMUNICATION),
            (Kind.RUNTIME,),
            (Kind.DATALOADER,),
            (Kind.CPU_OP, Kind.ANNOTATION),
        )
        return tuple(self.busy(*each) for each in kinds)

    @cached_property
    def ops(self) -> "Forest":
        """Operators."""
        return Forest(self.table, self.rows(Kind.CPU_OP))

    @cached_property
    def calls(self) -> Ints:
        """Runtime calls."""
        return self.rows(Kind.RUNTIME)

    @cached_property
    def device(self) -> Ints:
        """Kernels, copies and sets."""
        return self.rows(*KERNELS, *COPIES)

    @cached_property
    def launch(self) -> Ints:
        """For each row of the table the runtime call that launched it, by correlation, or -1."""
        calls, ids = self.calls, self.table.correlation
        launch = np.full(len(ids), -1)
        launch[self.device] = _lookup(ids[calls], calls, ids[self.device])
        return launch

    @cached_property
    def launched(self) -> Ints:
        """Device work whose launch was recorded."""
        return self.device[self.launch[self.device] >= 0]

    @cached_property
    def op(self) -> Ints:
        """For each call, operator and device row the operator around it or its launch, or -1.

        By time; where that tells nothing, by external id.
        """
        ops, ids = self.ops.rows, self.table.external
        op = np.full(len(ids), -1)
        op[ops] = self.ops.parent
        op[self.calls] = self.ops.around(self.calls)
        for rows in (self.calls, self.device):
            by_time = take(op, np.where(self.launch[rows] >= 0, self.launch[rows], rows))
            op[rows] = np.where(by_time >= 0, by_time, _lookup(ids[ops], ops, ids[rows]))
        return op

    @cached_property
    def _python(self) -> "Forest":
        """The Python frames of the user's own code, if stacks were recorded."""
        rows = self.rows(Kind.PYTHON)
        return Forest(self.table, rows[self._lines(self.table.name[rows]) >= 0])

    def frames(self, calls: Ints, ops: Ints) -> Ints:
        """The user's `file.py:line` at calls, else in operators' stacks: numbers of texts, or -1."""
        by_time = self._lines(take(self.table.name, self._python.around(calls)))
        return np.where(by_time >= 0, by_time, self._lines(take(self.table.stack, ops)))

    def _lines(self, stacks: Ints) -> Ints:
        """The first line of the user's own code in stacks, innermost first."""
        distinct, inverse = np.unique(stacks, return_inverse=True)
        lines = [_user_line(self.texts.each[code]) if code >= 0 else None for code in distinct.tolist()]
        return np.array([self.texts[line] if line else -1 for line in lines], np.int64)[inverse]

    @cached_property
    def steps(self) -> "Steps":
        """Host marks `ProfilerStep#n`, each extended to the end of the device work launched inside it."""
        table, marks = self.table, self.rows(Kind.STEP)
        if not len(marks):
            return Steps([WHOLE], np.array([table.start.min()]), np.array([table.end.max()]), marked=False)
        marks = marks[np.lexsort((-table.end[marks], table.start[marks]))]
        start, end = table.start[marks], table.end[marks]
        call, latest = self.launch[self.launched], end.copy()
        step = np.searchsorted(start, table.start[call], "right") - 1
        inside = (step >= 0) & (table.end[call] <= end[step])
        np.maximum.at(latest, step[inside], table.end[self.launched[inside]])
        end = np.maximum.accumulate(latest)
        start = np.maximum(start, np.concatenate((start[:1], end[:-1])))
        keep = end > start
        names = [
            [self.texts.each[code] for code in table.name[each].tolist()]
            for each in (marks[keep], marks[~keep])
        ]
        return Steps(names[0], start[keep], end[keep], empty=tuple(names[1]))


@dataclass(frozen=True, slots=True)
class Steps:
    """Disjoint windows in order of time, int64[M] ns. `marked`: whether the file has marks of steps."""

    names: list[str]
    start: Ints
    end: Ints
    marked: bool = True
    empty: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """|S| in ns."""
        return int((self.end - self.start).sum())

    def length(self, spans: Spans) -> int:
        """|X ∩ S| in ns."""
        return int(spans.within(self.start, self.end).sum())


class Forest:
    """Rows of host threads as a forest, where a row's parent encloses it. O(n log n), no Python loop.

    With rows sorted by (thread, start, longest first), the depth of a row is the number of earlier
    starts minus the number of ends up to its start; its parent is the nearest earlier row one level up.
    """

    def __init__(self, table: Any, rows: Ints) -> None:
        self.rows = rows = rows[np.lexsort((-table.end[rows], table.start[rows], table.thread[rows]))]
        self._table = table
        self._end = np.maximum(table.end[rows], table.start[rows] + 1)
        self._times = np.unique(np.concatenate((table.start[rows], self._end)))
        self._starts = self._keys(rows, table.start[rows])
        self._own_ends = self._keys(rows, self._end)
        self._ends = np.sort(self._own_ends)
        here = np.arange(len(rows))
        self.depth = here - np.searchsorted(self._ends, self._starts, "right")
        self._levels = np.sort(self.depth * len(rows) + here)
        self.parent = self._above(rows, self.depth, here)

    def _keys(self, rows: Ints, time: Ints) -> Ints:
        """(thread, time) as one sortable integer."""
        thread = self._table.thread[rows].astype(np.int64)
        return thread * (len(self._times) + 1) + np.searchsorted(self._times, time, "right")  # type: ignore[no-any-return]

    def around(self, rows: Ints) -> Ints:
        """The innermost row open on the same thread when each of these rows starts, or -1."""
        keys = self._keys(rows, self._table.start[rows])
        before = np.searchsorted(self._starts, keys, "right")
        return self._above(rows, before - np.searchsorted(self._ends, keys, "right"), before)

    def _above(self, rows: Ints, depth: Ints, before: Ints) -> Ints:
        count, table = len(self.rows), self._table
        if not count:
            return np.full(len(rows), -1)
        level, at = np.divmod(
            self._levels[np.searchsorted(self._levels, (depth - 1) * count + before) - 1], count
        )
        good = (depth > 0) & (level == depth - 1) & (at < before) & (rows >= 0)
        good &= (table.thread[self.rows[at]] == table.thread[rows]) & (self._end[at] > table.start[rows])
        return np.where(good, self.rows[at], -1)

    def inclusive(self, values: Ints) -> Ints:
        """Each row's value and those of all rows inside it, from a value for each row of the table."""
        running = np.concatenate(([0], np.cumsum(values[self.rows])))
        return running[np.searchsorted(self._starts, self._own_ends)] - running[:-1]


@dataclass(frozen=True)
class Trace:
    """One or several files of one run, one file per rank."""

    ranks: tuple[Rank, ...]


def load(paths: Paths, tell: Tell = lambda what, share: None) -> Trace:
    """Reads `*.pt.trace.json` or `.json.gz`: one file, one per rank, or a folder of them.

    Args:
        paths: the files, or the folder.
        tell: follows a read that takes longer than two seconds.

    Raises:
        TraceError: a file is missing, is no trace, or nothing in it can be read.
    """
    several = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if len(several) == 1 and several[0].is_dir():
        several = sorted(path for path in several[0].iterdir() if path.name.endswith((".json", ".json.gz")))
    if not several:
        raise TraceError("no trace file was given", ADVICE)
    texts, ranks, began = Texts(), list[Rank](), time.monotonic()

    def follow(share: float) -> None:
        if time.monotonic() - began > _QUIET_S:
            tell(f"reading {path.name}", (len(ranks) + share) / len(several))

    for path in several:
        try:
            ranks.append(Rank(path, texts, follow))
        except TraceError as error:
            raise TraceError(f"{path.name}: {error.what}", error.remedy) from error
        except MemoryError as error:
            raise TraceError(f"{path.name} does not fit into memory", "Record fewer steps") from error
    return Trace(tuple(ranks))


def take(column: Ints, rows: Ints) -> Ints:
    """Values of rows; -1 for the row -1."""
    return np.where(rows >= 0, column[rows], -1)


def _lookup(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """The value of the first row with each wanted key; -1 where there is none or the key is -1."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    row = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where((keys[row] == wanted) & (wanted >= 0), values[row], -1)


_FRAME = re.compile(r"^(.*\.py)\((\d+)\)")
_LIBRARY = re.compile(
    r"(^|[/\\])(torch|torchvision|site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]|^<"
)


def _user_line(stack: str) -> str | None:
    frames = (_FRAME.match(text.strip()) for text in stack.split(";") if not _LIBRARY.search(text))
    return next((f"{frame[1]}:{frame[2]}" for frame in frames if frame), None)
