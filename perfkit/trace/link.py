"""Which operator launched which kernel, and which line of Python called it."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfkit.trace.columns import Columns, Kind
from perfkit.trace.intervals import Floats, Ints


class CallForest:
    """Rows of host threads as a forest, where a row's parent encloses it. O(n log n), no Python loop.

    With rows sorted by (thread, start, longest first), the depth of a row is the number of earlier
    starts minus the number of ends up to its start; its parent is the nearest earlier row one level up.
    """

    def __init__(self, columns: Columns, rows: Ints) -> None:
        start, end, thread = columns.start[rows], columns.end[rows], columns.thread[rows]
        order = np.lexsort((-end, start, thread))
        self._columns, self.rows = columns, rows[order]
        self.start, self.thread = start[order], thread[order].astype(np.int64)
        self.end = np.maximum(end[order], self.start + 1)
        times = np.concatenate((columns.start, columns.end + 1))
        self._low, self._span = int(times.min()), int(times.max()) - int(times.min()) + 2
        self._ranks = np.unique(times) if self._span * (len(columns.threads) + 1) >= 1 << 62 else None
        self._starts = self._key(self.thread, self.start)
        self._ends = np.sort(self._key(self.thread, self.end))
        here = np.arange(len(rows))
        self.depth = here - np.searchsorted(self._ends, self._starts, "right")
        self._levels = np.sort(self.depth * len(rows) + here)

    def _key(self, thread: Ints, time: Ints) -> Ints:
        """(thread, time) as one sortable integer."""
        if self._ranks is None:
            return thread * self._span + (time - self._low)
        return thread * (len(self._ranks) + 1) + np.searchsorted(self._ranks, time)

    @cached_property
    def parent(self) -> Ints:
        """int64[N], position of each row's parent within `rows`, or -1."""
        return self._above(self.depth, np.arange(len(self.rows)), self.thread, self.start)

    def innermost(self, rows: Ints) -> Ints:
        """Position of the innermost row open on the same thread when each of these rows starts, or -1."""
        thread, time = self._columns.thread[rows].astype(np.int64), self._columns.start[rows]
        key = self._key(thread, time)
        before = np.searchsorted(self._starts, key, "right")
        return self._above(before - np.searchsorted(self._ends, key, "right"), before, thread, time)

    def _above(self, depth: Ints, before: Ints, thread: Ints, time: Ints) -> Ints:
        count = len(self.rows)
        if not count:
            return np.full(len(before), -1, np.int64)
        nearest = self._levels[np.searchsorted(self._levels, (depth - 1) * count + before) - 1]
        at = nearest % count
        good = (depth > 0) & (nearest // count == depth - 1) & (at < before)
        good &= (self.thread[at] == thread) & (self.end[at] > time)
        return np.where(good, at, -1)

    def inclusive(self, own: Floats) -> Floats:
        """Each row's own value plus the values of all rows inside it."""
        running = np.concatenate(([0.0], np.cumsum(own)))
        last = np.searchsorted(self._starts, self._key(self.thread, self.end), "left")
        return running[last] - running[: len(own)]


@dataclass(frozen=True)
class Links:
    """How device work is linked to the host. Positions are those in `ops.rows`, -1 for none."""

    columns: Columns
    ops: CallForest  # of operators
    device: Ints  # rows of kernels, copies and sets
    launch: Ints  # the runtime row of each, or -1
    device_op: Ints  # position of the operator that launched each
    calls: Ints  # the runtime rows
    call_op: Ints  # position of the operator around each

    @cached_property
    def tied(self) -> tuple[Ints, Ints]:
        """Launch and device row of all device work whose launch was recorded."""
        tied = self.launch >= 0
        return self.launch[tied], self.device[tied]

    def op_names(self, positions: Ints) -> list[str | None]:
        """Names of operators by position; None for -1."""
        names, code = self.columns.names, self.columns.name[self.ops.rows].tolist()
        return [names[code[position]] if position >= 0 else None for position in positions.tolist()]

    def places(self, calls: Ints, ops: Ints) -> list[tuple[str | None, str | None]]:
        """Operator and `file.py:line` of host rows (-1: none), given the positions of their operators."""
        return list(zip(self.op_names(ops), self._frames(calls, ops), strict=True))

    def frames(self, rows: Ints) -> list[str | None]:
        """`file.py:line` of the user's code that led to each row; None where no stack was recorded."""
        if not len(self._python.rows) and not any(self._stack_frames):
            return [None] * len(rows)
        on_device = np.isin(rows, self.device)
        call = np.where(on_device, _lookup(self.device, self.launch, rows), rows)
        itself = _lookup(self.ops.rows, np.arange(len(self.ops.rows)), rows)
        around = np.where(itself >= 0, itself, self.ops.innermost(rows))
        return self._frames(call, np.where(on_device, _lookup(self.device, self.device_op, rows), around))

    @cached_property
    def _python(self) -> CallForest:
        """The Python frames of the user's own code, if stacks were recorded."""
        columns = self.columns
        frames = columns.rows(Kind.PYTHON)
        return CallForest(columns, columns.named(frames, lambda text: _user_frame([text]) is not None))

    @cached_property
    def _stack_frames(self) -> list[str | None]:
        return [_user_frame(stack.split(";")) for stack in self.columns.stacks]

    def _frames(self, calls: Ints, ops: Ints) -> list[str | None]:
        """The innermost user code at each call; None where no stack was recorded."""
        columns, python = self.columns, self._python
        at = python.innermost(calls)
        stack = columns.stack[self.ops.rows].tolist()
        return [
            _frame(columns.names[columns.name[python.rows[position]]])
            if position >= 0 and call >= 0
            else self._stack_frames[stack[op]] if op >= 0 and stack[op] >= 0 else None
            for position, call, op in zip(at.tolist(), calls.tolist(), ops.tolist(), strict=True)
        ]  # fmt: skip


def link(columns: Columns) -> Links:
    """Links device rows to launches by correlation, and both to operators by time, else by external id."""
    ops = CallForest(columns, columns.rows(Kind.CPU_OP))
    device, calls = columns.rows(Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET), columns.rows(Kind.RUNTIME)
    launch = _lookup(columns.correlation[calls], calls, columns.correlation[device])
    by_id = columns.external[ops.rows], np.arange(len(ops.rows))
    call_op = ops.innermost(calls)
    call_op = np.where(call_op >= 0, call_op, _lookup(*by_id, columns.external[calls]))
    through = _lookup(calls, call_op, launch)
    device_op = np.where(through >= 0, through, _lookup(*by_id, columns.external[device]))
    return Links(columns, ops, device, launch, device_op, calls, call_op)


def _lookup(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """The value of the first row with each wanted key; -1 where there is none or the key is -1."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    row = order[at]
    return np.where((keys[row] == wanted) & (wanted >= 0), values[row], -1)


_FRAME = re.compile(r"^(.*\.py)\((\d+)\)")
_LIBRARY = re.compile(
    r"(^|[/\\])(torch|torchvision|site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]|^<"
)


def _frame(text: str) -> str | None:
    match = _FRAME.match(text.strip())
    return f"{match[1]}:{match[2]}" if match else None


def _user_frame(frames: list[str]) -> str | None:
    """Of a stack, innermost first: the first frame of the user's own code."""
    return next((frame for text in frames if not _LIBRARY.search(text) and (frame := _frame(text))), None)
