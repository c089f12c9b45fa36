"""A trace: a table of events, and what is derived from it: launches, lines of code, steps."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.additions.shared.intervals import Ints, Spans, merge
from perfkit.additions.trace import data
from perfkit.additions.trace.events import COPIES, KERNELS, EventTable, Kind, Tabulator, joined
from perfkit.additions.trace.reader import Device, Opens, Reader, Tell, World, find

PARTS = (*data.table("names")["parts"]["device"], "other")
"""The parts of a step, in order of priority; the last one is the rest."""
_HOURS_NS = 6 * 3600 * 10**9  # an event this far from the middle of the recording has a wrong time


class Trace:
    """The events of interest of a trace in one `table`, and what is derived from them.

    Rows are in the order of the file; times are in ns since the first event. Names and threads are indices
    into `texts`; -1 means none.

    `path` is the file of one rank, or `recorded:NAME`; `opens` opens it, if it is in an archive. An
    `InvalidValue` is raised if it cannot be read, a `TraceError` if nothing in it is a profiler's event.
    """

    def __init__(
        self, path: str | Path, opens: Opens | None = None, tell: Tell = lambda what, share: None
    ) -> None:
        self.file = Reader(find(path), opens, tell)
        rows = Tabulator()
        self.table = joined([rows.table(events) for events in self.file.pieces()])
        self.file.dropped += rows.dropped
        self.texts = [*rows.texts]
        self.kinds = rows.kinds
        if not len(self.table):
            raise self.file.refusal()
        self.file.dropped += self._keep(_near(self.table))
        self.repeated = self._keep(_distinct(self.table))  # the number of events that were in the file twice
        del self.table.identity  # no longer needed
        if len(self.rows(Kind.CPU_OP, *KERNELS, *COPIES)):  # then the profiler's span adds nothing
            self._keep(self.table.kind != Kind.SPAN)
        table = self.table
        self.start = int(table.start.min())  # of the recording, in ns; the table's times are relative to it
        self.devices = self.file.told(list[Device], "deviceProperties", "computeProperties")
        """The GPUs that the file lists; None if it has no list."""
        self.world = self.file.told(World, "distributedInfo") or World()
        self.simulated = self.file.told(dict[str, str], "simulated")  # the basis of a simulated trace
        table.start -= self.start
        table.end -= self.start
        self.ops = self.rows(Kind.CPU_OP)  # operators
        self.calls = self.rows(Kind.RUNTIME)
        self.device = self.rows(*KERNELS, *COPIES)
        self.launch, self.ambiguous = self._launches()
        """For each row, the call that launched it, or -1; and device work with several possible launches."""
        self.launched = self.device[self.launch[self.device] >= 0]

    def _keep(self, good: npt.NDArray[np.bool_]) -> int:
        """Removes the rows that are not good, and returns their number."""
        if not good.all():
            self.table = self.table[good]
        return int((~good).sum())

    def _launches(self) -> tuple[Ints, Ints]:
        """Finds for each row the outermost call with its correlation, if such calls are all nested."""
        table = self.table
        launch = np.full(len(table), -1)
        calls = self.calls[table.correlation[self.calls] >= 0]
        calls = calls[np.lexsort((-table.end[calls], table.start[calls]))]
        distinct, first, of = np.unique(table.correlation[calls], return_index=True, return_inverse=True)
        outer = calls[first]  # for each correlation, the call that begins first
        apart = (table.end[calls] > table.end[outer[of]]) | (table.thread[calls] != table.thread[outer[of]])
        unclear = np.bincount(of, apart, len(distinct)) > 0
        called = self.device[np.isin(table.correlation[self.device], distinct)]
        number = np.searchsorted(distinct, table.correlation[called])
        clear = ~unclear[number]
        launch[called[clear]] = outer[number[clear]]
        return launch, called[~clear]

    def rows(self, *kinds: Kind) -> Ints:
        """The rows of these kinds, ascending."""
        wanted = np.zeros(len(Kind), bool)
        wanted[list(kinds)] = True
        return np.flatnonzero(wanted[self.table.kind])

    def matching(self, rows: Ints, pattern: str | re.Pattern[str]) -> Ints:
        """The rows whose name contains a match of the pattern."""
        names = self.table.name[rows]
        finds = re.compile(pattern).search
        good = [name for name in np.unique(names).tolist() if finds(self.texts[name])]
        return rows[np.isin(names, good)]

    def names(self, rows: Ints) -> list[str]:
        """The distinct names of rows."""
        return self.text(np.unique(self.table.name[rows]))

    def processes(self, *kinds: Kind) -> int:
        """The number of processes, or devices, that have rows of these kinds."""
        threads = np.unique(self.table.thread[self.rows(*kinds)])
        return len({process for process, _ in self.text(threads)})

    def text(self, codes: Ints) -> list[Any]:
        """The texts at these indices; None for -1."""
        return [self.texts[code] if code >= 0 else None for code in codes.tolist()]

    def duration(self, rows: Ints) -> Ints:
        """The durations of rows in ns."""
        return self.table.end[rows] - self.table.start[rows]  # type: ignore[no-any-return]

    def union(self, rows: Ints) -> Spans:
        """The union of the intervals of rows."""
        return merge(self.table.start[rows], self.table.end[rows])

    @cached_property
    def layers(self) -> tuple[Spans, ...]:
        """The time of each of `PARTS`, except the rest."""
        parts = data.table("names")["parts"]["device" if len(self.device) else "host"]
        return tuple(self.union(self.rows(*map(Kind.__getitem__, kinds))) for kinds in parts.values())

    @cached_property
    def parent(self) -> Ints:
        """For each row, the last row of its thread that began before it and is open at its start, or -1.

        If rows have the same times, the operator is outside the call.
        """
        table = self.table
        order = np.lexsort((-table.kind, -table.end, table.start, table.thread))
        start, is_first = table.start[order], np.diff(table.thread[order], prepend=-1) > 0
        end = np.maximum(table.end[order], start + 1)
        above = np.where(is_first, -1, np.arange(-1, len(order) - 1))
        rows = np.flatnonzero(~is_first)
        while len(rows):  # every row between a row and `above` has ended before it starts
            rows = rows[end[above[rows]] <= start[rows]]
            above[rows] = above[above[rows]]
            rows = rows[above[rows] >= 0]
        parent = np.empty(len(order), np.int64)
        parent[order] = take(order, above)
        return parent

    def _around(self, good: npt.NDArray[np.bool_]) -> Ints:
        """For each row, the innermost good row that is open at its start, or -1."""
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
        """For each row, the operator around it or its launch, or -1."""
        op = self._around(self.table.kind == Kind.CPU_OP)
        launched = take(op, self.launch)
        return np.where(launched >= 0, launched, op)

    @cached_property
    def frame(self) -> Ints:
        """For each row, the user's `file.py:line` around it or its launch, as an index of `texts`, or -1."""
        names = self.table.name
        known = dict[str, int]()
        lines = np.full(len(self.texts), -1)
        for name in np.unique(names[self.rows(Kind.PYTHON)]).tolist():
            found = _FRAME.match(self.texts[name])
            if found and not _LIBRARY.search(found[1]):
                lines[name] = known.setdefault(f"{found[1]}:{found[2]}", len(lines) + len(known))
        self.texts += known
        line = np.where(self.table.kind == Kind.PYTHON, lines[names], -1)
        around = self._around(line >= 0)
        return take(line, around[np.where(self.launch >= 0, self.launch, np.arange(len(line)))])

    @cached_property
    def steps(self) -> "Steps":
        """The marked steps, or else inferred steps, or else the whole recording as one step.

        Each step begins when the device has finished what was launched before, and ends with its own work.
        """
        table, marks = self.table, self.rows(Kind.STEP)
        if len(marks):
            marks = marks[np.lexsort((-table.end[marks], table.start[marks]))]
            return self._timed(table.start[marks], table.end[marks], self.text(table.name[marks]))
        edges, source = self._edges()
        if not len(edges):
            return Steps(np.array([0]), np.array([table.end.max()]), ["whole trace"], "whole recording")
        names = [f"step {number}" for number in range(2, len(edges) + 1)]
        return self._timed(edges[:-1], edges[1:], names, "inferred", source)

    def _timed(self, first: Ints, last: Ints, names: list[str], are: str = "marked", by: str = "") -> "Steps":
        """The steps between these times of the host, each with the device work that it launched."""
        calls, done = self.launch[self.launched], self.table.end[self.launched]
        started = self.table.start[calls]
        step = np.searchsorted(first, started, "right") - 1
        inside = (step >= 0) & (self.table.end[calls] <= last[step])
        ready, latest = first.copy(), last.copy()
        np.maximum.at(latest, step[inside], done[inside])
        between = ~inside & (step + 1 < len(ready))  # work launched between steps delays the next step
        np.maximum.at(ready, step[between] + 1, done[between])
        ready[0] = max(ready[0], self._earlier())
        end = np.maximum.accumulate(latest)
        start = np.maximum(ready, np.concatenate((first[:1], end[:-1])))
        keep = np.flatnonzero(end > start)  # not steps that repeat others, or are inside them
        behind = int(min(ready[0], latest[0]) - first[0])
        return Steps(start[keep], end[keep], [names[at] for at in keep], are, by, behind)

    def _edges(self) -> tuple[Ints, str]:
        """The ends of updates or the starts of loads, which separate inferred steps; and their name.

        The rarer of the two is used: with accumulation there are fewer updates than batches, with two
        optimizers more.
        """
        table = self.table
        updates = self._apart(self.matching(self.rows(Kind.CPU_OP, Kind.ANNOTATION), r"^Optimizer\.step#"))
        loads = self._apart(self.rows(Kind.DATALOADER))
        if len(updates) >= 3 and (len(updates) <= len(loads) or not len(loads)):
            return table.end[updates], "the ends of Optimizer.step"
        if len(loads) >= 4:
            return table.start[loads[1:]], "the calls of the DataLoader"
        return loads[:0], ""

    def _apart(self, rows: Ints) -> Ints:
        """The rows of the thread with the most, in order of time, without rows that are inside others."""
        if not len(rows):
            return rows
        table = self.table
        busiest = np.bincount(table.thread[rows]).argmax()
        rows = rows[table.thread[rows] == busiest]
        rows = rows[np.lexsort((-table.end[rows], table.start[rows]))]
        ends_before = np.append(-1, np.maximum.accumulate(table.end[rows])[:-1])
        return rows[table.start[rows] >= ends_before]  # type: ignore[no-any-return]

    def _earlier(self) -> int:
        """When the device has finished the work launched before the recording; 0 if there is none."""
        start, end = self.table.start, self.table.end
        unknown = np.setdiff1d(self.device[self.launch[self.device] < 0], self.ambiguous)
        first = start[self.launched].min(initial=end.max()) if len(self.launched) else 0
        return int(end[unknown[start[unknown] < first]].max(initial=0))


@dataclass(frozen=True)
class Steps(Spans):
    """The time windows of steps, in order."""

    names: list[str]
    are: str = "marked"  # `marked`, `inferred`, or the `whole recording` counts as one
    source: str = ""  # the marks that they were inferred from
    behind: int = 0  # ns of the first step in which the device did earlier work


def _near(table: EventTable) -> npt.NDArray[np.bool_]:
    """The rows that are not hours away from the middle of the recording."""
    middle = np.median(table.start)
    near: npt.NDArray[np.bool_] = (table.start >= middle - _HOURS_NS) & (table.end <= middle + _HOURS_NS)
    return near


def _distinct(table: EventTable) -> npt.NDArray[np.bool_]:
    """The rows without repetitions: those with the same event, numbers and times."""
    names = ("identity", "correlation", "name", "thread", "kind", "end", "start")
    columns = [getattr(table, name) for name in names]
    order = np.lexsort(columns)
    same = np.all([np.diff(column[order]) == 0 for column in columns], axis=0)
    first = np.ones(len(table), bool)
    first[order[1:][same]] = False
    return first


def take(column: Ints, rows: Ints) -> Ints:
    """The values of rows; -1 for row -1."""
    return np.where(rows >= 0, column[rows], -1)


_FRAME = re.compile(r"^(.*\.py)\((\d+)\)")
_LIBRARY = re.compile(r"(^|[/\\])(torch|torchvision|site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")
