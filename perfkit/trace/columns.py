"""Columns of a trace: one numpy row per event that counts, times in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from perfkit.trace.document import Event, Parsed, loosely
from perfkit.trace.errors import TraceError
from perfkit.trace.intervals import Floats, Ints

Small = npt.NDArray[np.int32]
LONGEST_NAME = 4096
FARTHEST_US = 4e15  # beyond it is no time stamp (year 2096); keeps nanoseconds inside int64
LONGEST_US = 1e12  # eleven days


class Kind(IntEnum):
    """What an event is."""

    OTHER = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    RUNTIME = 4
    CPU_OP = 5
    ANNOTATION = 6
    COMMUNICATION = 7
    LOADER = 8
    STEP = 9
    PYTHON = 10
    MEMORY = 11


_KINDS = {
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
_BY_PREFIX = {
    "ProfilerStep#": Kind.STEP,
    "enumerate(DataLoader)": Kind.LOADER,
    "enumerate(DataPipe)": Kind.LOADER,
    **dict.fromkeys(("nccl:", "rccl:", "gloo:", "ucc:", "mpi:", "xccl:"), Kind.COMMUNICATION),
}


class Args(msgspec.Struct, gc=False):
    """The arguments that a column is made of, over all the kinds of events."""

    correlation: int | None = None
    external: int | None = msgspec.field(name="External id", default=None)
    external_old: int | None = msgspec.field(name="external id", default=None)
    device: int | None = None
    bytes: int | None = None
    size: str | None = None
    blocks: float | None = msgspec.field(name="blocks per SM", default=None)
    occupancy: float | None = msgspec.field(name="est. achieved occupancy %", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default_factory=msgspec.Raw)
    dims_old: msgspec.Raw = msgspec.field(name="Input dims", default_factory=msgspec.Raw)
    types: msgspec.Raw = msgspec.field(name="Input type", default_factory=msgspec.Raw)
    stack: str | None = msgspec.field(name="Call stack", default=None)
    label: str | None = msgspec.field(name="name", default=None)
    memory_bytes: int | None = msgspec.field(name="Bytes", default=None)
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    device_id: int | None = msgspec.field(name="Device Id", default=None)
    address: int | None = msgspec.field(name="Addr", default=None)
    allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    reserved: int | None = msgspec.field(name="Total Reserved", default=None)


@dataclass(frozen=True, slots=True)
class Columns:
    """One file's events, in file order. -1 (integers) or NaN (floats) where the file says nothing.

    Attributes:
        kind: int8[N], a `Kind`.
        name: int32[N], index into `names`.
        thread: int32[N], index into `threads`, pairs (pid, tid).
        start, end: int64[N] ns on the trace's own clock.
        correlation, external: int64[N], what ties a launch to its kernel, and both to an operator.
        device: int64[N] of device events. bytes: int64[N] of copies.
        blocks: float64[N] blocks per SM; occupancy: float64[N] 0–1.
        shape: int32[N] index into `shapes`, pairs (dims, types) of JSON text. stack: into `stacks`.
    """

    kind: npt.NDArray[np.int8]
    name: Small
    thread: Small
    start: Ints
    end: Ints
    correlation: Ints
    external: Ints
    device: Ints
    bytes: Ints
    blocks: Floats
    occupancy: Floats
    shape: Small
    stack: Small
    names: list[str]
    threads: list[tuple[str, str]]
    shapes: list[tuple[str, str]]
    stacks: list[str]
    labels: dict[tuple[str, str], str]
    memory: list[Args]

    def rows(self, *kinds: Kind) -> Ints:
        """Row numbers of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kind, np.array(kinds, np.int8)))

    def duration(self, rows: Ints) -> Ints:
        """int64 ns."""
        return self.end[rows] - self.start[rows]

    def name_mask(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """bool[len(names)]: the names that pass a test."""
        return np.fromiter(map(test, self.names), bool, len(self.names))

    def texts(self, rows: Ints) -> list[str]:
        """Names of rows."""
        return [self.names[i] for i in self.name[rows].tolist()]


def build(parsed: Parsed) -> tuple[Columns, int]:
    """Columns of the events that count, and how many had to be dropped for impossible times."""
    events = parsed.document.traceEvents
    cat, cats = _intern([event.cat for event in events])
    ph, phs = _intern([event.ph for event in events])
    is_ph = {value: ph == code for code, value in enumerate(phs)}
    nothing = np.zeros(len(events), bool)
    kind = np.array([_kind_of(text) for text in cats] or [0], np.int8)[cat] * is_ph.get("X", nothing)
    for row in np.flatnonzero(is_ph.get("i", nothing)).tolist():
        if events[row].name == "[memory]":
            kind[row] = Kind.MEMORY
    meta = [events[row] for row in np.flatnonzero(is_ph.get("M", nothing)).tolist()]
    rows = np.flatnonzero(kind)
    chosen = [events[row] for row in rows.tolist()]
    start, fits = _nanoseconds([event.ts for event in chosen], -FARTHEST_US, FARTHEST_US, parsed.exact)
    length, good = _nanoseconds([event.dur for event in chosen], 0.0, LONGEST_US, parsed.exact)
    fits &= good
    if not fits.all():
        chosen = [event for event, good in zip(chosen, fits.tolist(), strict=True) if good]
    if not chosen:
        raise TraceError(
            "this file holds no event of the PyTorch profiler", "Give a *.pt.trace.json[.gz] file."
        )
    return _columns(chosen, kind[rows[fits]], start[fits], (start + length)[fits], _labels(meta)), int(
        (~fits).sum()
    )


def _kind_of(category: str) -> int:
    low = category.lower()
    if low.endswith(("_runtime", "_driver")):
        return Kind.RUNTIME
    return _KINDS.get(low, Kind.OTHER)


def _labels(events: list[Event]) -> dict[tuple[str, str], str]:
    """Names of threads, by (pid, tid)."""
    named = [event for event in events if event.name == "thread_name"]
    return {(str(e.pid), str(e.tid)): a.label or "" for e, a in zip(named, _decode(named), strict=True)}


def _nanoseconds(
    values: list[float], low: float, high: float, exact: bool
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Exact nanoseconds of microseconds, whole and fraction apart; and which values are in range."""
    if exact:
        least, most = Decimal(int(low)), Decimal(int(high))
        fine = [round(v * 1000) if v.is_finite() and least <= v <= most else None for v in values]
        known = np.array([v is not None for v in fine], bool)
        return np.array([v or 0 for v in fine], np.int64), known
    micro = np.array(values, np.float64)
    fits = (micro >= low) & (micro <= high)
    micro = np.where(fits, micro, 0.0)
    floor = np.floor(micro)
    return floor.astype(np.int64) * 1000 + np.rint((micro - floor) * 1000).astype(np.int64), fits


def _columns(
    events: list[Event],
    kind: npt.NDArray[np.int8],
    start: Ints,
    end: Ints,
    labels: dict[tuple[str, str], str],
) -> Columns:
    name, names = _intern([event.name for event in events])
    host = (kind == Kind.CPU_OP) | (kind == Kind.ANNOTATION)
    renamed = np.array([_named_kind(text) for text in names], np.int8)[name]
    kind = np.where(host & (renamed > 0), renamed, kind).astype(np.int8)
    thread, threads = _intern([(event.pid, event.tid) for event in events])
    on_device, ops, calls, memory = (
        _Part(events, np.isin(kind, kinds))
        for kinds in (
            (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET),
            (Kind.CPU_OP,),
            (Kind.RUNTIME,),
            (Kind.MEMORY,),
        )
    )
    tied = (on_device, calls)
    shape, shapes = _intern([(bytes(a.dims or a.dims_old), bytes(a.types)) for a in ops.args])
    stack, stacks = _intern([a.stack or None for a in ops.args])
    empty = shapes.index((b"", b"")) if (b"", b"") in shapes else -2
    size = len(events)
    return Columns(
        kind, name, thread, start, end,
        correlation=_ints(size, *((part.rows, [a.correlation for a in part.args]) for part in tied)),
        external=_ints(
            size, *((part.rows, [a.external if a.external is not None else a.external_old for a in part.args])
                    for part in (*tied, ops))
        ),
        device=_ints(size, (on_device.rows, [a.device for a in on_device.args])),
        bytes=_ints(
            size, *((part.rows, [a.bytes if a.bytes is not None else _number(a.size) for a in part.args])
                    for part in tied)
        ),
        blocks=_floats(size, on_device.rows, [a.blocks for a in on_device.args], 1.0),
        occupancy=_floats(size, on_device.rows, [a.occupancy for a in on_device.args], 0.01),
        shape=_spread(size, ops.rows, np.where(shape == empty, -1, shape)),
        stack=_spread(size, ops.rows, stack),
        names=[text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "…" for text in names],
        threads=[(str(pid), str(tid)) for pid, tid in threads],
        shapes=[(dims.decode(errors="replace"), types.decode(errors="replace")) for dims, types in shapes],
        stacks=stacks, labels=labels, memory=memory.args,
    )  # fmt: skip


class _Part:
    """Rows of some kinds, with their decoded arguments."""

    def __init__(self, events: list[Event], mask: npt.NDArray[np.bool_]) -> None:
        self.rows = np.flatnonzero(mask)
        self.args = _decode([events[row] for row in self.rows.tolist()])


def _decode(events: list[Event]) -> list[Args]:
    """Arguments of events: all in one pass; if one has an odd type, one by one."""
    raws = [event.args or b"{}" for event in events]
    try:
        return msgspec.json.decode(b"[" + b",".join(raws) + b"]", type=list[Args])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [_tolerant(raw) for raw in raws]


def _tolerant(raw: bytes | msgspec.Raw) -> Args:
    """What fits of one event's arguments (ROCm writes some numbers as text)."""
    try:
        return msgspec.json.decode(raw, type=Args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    known, found = loosely(raw), Args()
    for field in msgspec.structs.fields(Args) if isinstance(known, dict) else ():
        value = known.get(field.encode_name)
        try:
            if field.type is msgspec.Raw:
                value = msgspec.Raw(msgspec.json.encode(value)) if value is not None else msgspec.Raw()
            setattr(found, field.name, msgspec.convert(value, field.type, strict=False))
        except (msgspec.ValidationError, UnicodeEncodeError):
            continue
    return found


def _named_kind(text: str) -> int:
    return next((kind for prefix, kind in _BY_PREFIX.items() if text.startswith(prefix)), Kind.OTHER)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None


def _intern(values: Sequence[Any]) -> tuple[Small, list[Any]]:
    """Codes and the distinct values; None becomes -1."""
    seen: dict[Any, int] = {
        value: code for code, value in enumerate(dict.fromkeys(values)) if value is not None
    }
    distinct = list(seen)
    seen = {value: code for code, value in enumerate(distinct)}
    return np.array([seen.get(value, -1) for value in values], np.int32), distinct


def _spread(size: int, rows: Ints, values: Small) -> Small:
    column = np.full(size, -1, np.int32)
    column[rows] = values
    return column


def _ints(size: int, *parts: tuple[Ints, list[int | None]]) -> Ints:
    """int64, -1 for what is missing or no such number."""
    column = np.full(size, -1, np.int64)
    for rows, values in parts:
        column[rows] = [v if v is not None and 0 <= v < 1 << 62 else -1 for v in values]
    return column


def _floats(size: int, rows: Ints, values: list[float | None], scale: float) -> Floats:
    """float64, NaN for what is missing or negative."""
    column = np.full(size, np.nan)
    found = np.array([np.nan if v is None else v for v in values], np.float64) * scale
    column[rows] = np.where(found >= 0, found, np.nan)
    return column
