"""Columns of a trace: one numpy row per event of interest, times in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfkit.errors import TraceError
from perfkit.trace.document import Event, ExactEvent, decode_or_none
from perfkit.trace.intervals import Floats, Ints, Spans, merge

Small = npt.NDArray[np.int32]
LONGEST_NAME = 4096
FARTHEST_US = 4e15  # year 2096: beyond it is no time stamp, and nanoseconds still fit int64
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
_KIND_OF_NAME = {
    "ProfilerStep#": Kind.STEP,
    "enumerate(DataLoader)": Kind.LOADER,
    "enumerate(DataPipe)": Kind.LOADER,
    **dict.fromkeys(("nccl:", "rccl:", "gloo:", "ucc:", "mpi:", "xccl:"), Kind.COMMUNICATION),
}


Id = Annotated[int, msgspec.Meta(ge=-(1 << 62), lt=1 << 62)]
External = msgspec.field(name="External id", default=-1)
ExternalOld = msgspec.field(name="external id", default=-1)


class DeviceArgs(Struct, gc=False):
    """Arguments of a kernel, copy or set. None: the writer had no number (NaN)."""

    correlation: Id = -1
    external: Id = External
    external_old: Id = ExternalOld
    device: Id = -1
    bytes: Id = -1
    blocks: float | None = msgspec.field(name="blocks per SM", default=None)
    occupancy: float | None = msgspec.field(name="est. achieved occupancy %", default=None)


class CallArgs(Struct, gc=False):
    """Arguments of a runtime call. `size`: where ROCm puts the bytes of a copy."""

    correlation: Id = -1
    external: Id = External
    external_old: Id = ExternalOld
    size: Id = -1


class OpArgs(Struct, gc=False):
    """Arguments of an operator; shapes and types stay JSON text."""

    external: Id = External
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default_factory=msgspec.Raw)
    types: msgspec.Raw = msgspec.field(name="Input type", default_factory=msgspec.Raw)
    stack: str = msgspec.field(name="Call stack", default="")


class MemoryArgs(Struct, gc=False):
    """Arguments of a `[memory]` event; -1 where the file gives no address or running totals."""

    change: Id = msgspec.field(name="Bytes", default=0)
    device_type: Id = msgspec.field(name="Device Type", default=-1)
    device_id: Id = msgspec.field(name="Device Id", default=-1)
    address: Id = msgspec.field(name="Addr", default=-1)
    allocated: Id = msgspec.field(name="Total Allocated", default=-1)
    reserved: Id = msgspec.field(name="Total Reserved", default=-1)


class LabelArgs(Struct, gc=False):
    """The name of a thread."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """One file's events, in file order. -1 (integers) or NaN (floats) where the file has no value.

    Attributes:
        kind: int8[N], a `Kind`.
        name: int32[N], index into `names`.
        thread: int32[N], index into `threads`, pairs (pid, tid).
        start, end: int64[N] ns on the trace's own clock.
        correlation, external: int64[N], ids that link a launch to its kernel, and both to an operator.
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
    memory: list[MemoryArgs]

    def rows(self, *kinds: Kind) -> Ints:
        """Row numbers of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kind, np.array(kinds, np.int8)))

    def duration(self, rows: Ints) -> Ints:
        """int64 ns."""
        return self.end[rows] - self.start[rows]

    def union(self, rows: Ints) -> Spans:
        """The union of rows' intervals."""
        return merge(self.start[rows], self.end[rows])

    def name_mask(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """bool[len(names)]: the names that pass a test."""
        return np.fromiter(map(test, self.names), bool, len(self.names))

    def texts(self, rows: Ints) -> list[str]:
        """Names of rows."""
        return [self.names[i] for i in self.name[rows].tolist()]


class _Codes(dict[Any, int]):
    """Numbers the distinct values in order of appearance."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]

    def of(self, values: Iterable[Any], size: int) -> Small:
        """int32[size]."""
        return np.fromiter(map(self.__getitem__, values), np.int32, size)


@lru_cache(maxsize=256)
def _kind(category: str) -> Kind:
    low = category.lower()
    return Kind.RUNTIME if low.endswith(("_runtime", "_driver")) else _KINDS.get(low, Kind.OTHER)


class Builder:
    """Takes events piece by piece and makes columns of those of interest."""

    def __init__(self) -> None:
        self.dropped = 0
        self._names, self._threads, self._shapes, self._stacks = (_Codes() for _ in range(4))
        self._parts: list[dict[str, Any]] = []
        self._memory: list[MemoryArgs] = []
        self._labels: dict[tuple[str, str], str] = {}

    def add(self, events: Sequence[Event]) -> None:
        """Takes a piece of the file."""
        exact = bool(events) and isinstance(events[0], ExactEvent)
        kinds = (
            _kind(event.cat) if event.ph == "X"
            else Kind.MEMORY if event.ph == "i" and event.name == "[memory]" else Kind.OTHER
            for event in events
        )  # fmt: skip
        kind = np.fromiter(kinds, np.int8, len(events))
        named = [event for event in events if event.ph == "M" and event.name == "thread_name"]
        for event, args in zip(named, _decode(named, LabelArgs), strict=True):
            self._labels[str(event.pid), str(event.tid)] = args.name
        rows = np.flatnonzero(kind)
        chosen = [events[row] for row in rows.tolist()]
        start, fits = _nanoseconds([event.ts for event in chosen], -FARTHEST_US, FARTHEST_US, exact)
        length, good = _nanoseconds([event.dur for event in chosen], 0, LONGEST_US, exact)
        fits &= good
        if not fits.all():
            self.dropped += int((~fits).sum())
            chosen = [event for event, good in zip(chosen, fits.tolist(), strict=True) if good]
        if chosen:
            self._parts.append(self._part(chosen, kind[rows[fits]], start[fits], (start + length)[fits]))

    def _part(
        self, events: list[Event], kind: npt.NDArray[np.int8], start: Ints, end: Ints
    ) -> dict[str, Any]:
        size = len(events)
        name = self._names.of(map(attrgetter("name"), events), size)
        thread = self._threads.of(map(attrgetter("pid", "tid"), events), size)
        part: dict[str, Any] = {"kind": kind, "name": name, "thread": thread, "start": start, "end": end}
        part |= {key: np.full(size, -1, np.int64) for key in ("correlation", "external", "device", "bytes")}
        part |= {key: np.full(size, -1, np.int32) for key in ("shape", "stack")}
        part |= {key: np.full(size, np.nan) for key in ("blocks", "occupancy")}

        def args(kinds: tuple[Kind, ...], type_: type[A]) -> tuple[Ints, list[A]]:
            rows = np.flatnonzero(np.isin(kind, kinds))
            return rows, _decode([events[row] for row in rows.tolist()], type_)

        device, device_args = args((Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET), DeviceArgs)
        for key in ("correlation", "device", "bytes", "blocks", "occupancy"):
            part[key][device] = list(map(attrgetter(key), device_args))
        calls, call_args = args((Kind.RUNTIME,), CallArgs)
        part["correlation"][calls] = [a.correlation for a in call_args]
        part["bytes"][calls] = [a.size for a in call_args]
        for rows, both in ((device, device_args), (calls, call_args)):
            part["external"][rows] = [a.external if a.external >= 0 else a.external_old for a in both]
        ops, op_args = args((Kind.CPU_OP,), OpArgs)
        part["external"][ops] = [a.external for a in op_args]
        part["shape"][ops] = self._shapes.of(((bytes(a.dims), bytes(a.types)) for a in op_args), len(ops))
        part["stack"][ops] = self._stacks.of((a.stack for a in op_args), len(ops))
        self._memory += args((Kind.MEMORY,), MemoryArgs)[1]
        return part

    def finish(self) -> Columns:
        """The columns of all pieces.

        Raises:
            TraceError: nothing in the file is an event of the PyTorch profiler.
        """
        if not self._parts:
            raise TraceError("this file has no event of the profiler", "Give a *.pt.trace.json file.")
        joined = {key: np.concatenate([part[key] for part in self._parts]) for key in self._parts[0]}
        host = np.isin(joined["kind"], (Kind.CPU_OP, Kind.ANNOTATION))
        renamed = np.array([_named_kind(text) for text in self._names], np.int8)[joined["name"]]
        joined["kind"] = np.where(host & (renamed > 0), renamed, joined["kind"]).astype(np.int8)
        joined["occupancy"] /= 100
        for key in ("blocks", "occupancy"):
            joined[key][~(joined[key] >= 0)] = np.nan
        for key in ("correlation", "external", "device", "bytes"):
            joined[key] = np.maximum(joined[key], -1)
        return Columns(
            **joined,
            names=[text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "…" for text in self._names],
            threads=[(str(pid), str(tid)) for pid, tid in self._threads],
            shapes=[(dims.decode("utf-8", "replace"), types.decode("utf-8", "replace"))
                    for dims, types in self._shapes],
            stacks=list(self._stacks), labels=self._labels, memory=self._memory,
        )  # fmt: skip


A = TypeVar("A", DeviceArgs, CallArgs, OpArgs, MemoryArgs, LabelArgs)


def _nanoseconds(
    values: list[Any], low: float, high: float, exact: bool
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Exact nanoseconds of microseconds, whole and fraction apart; and which values are in range."""
    if exact:
        least, most = Decimal(int(low)), Decimal(int(high))
        fine = [round(v * 1000) if v.is_finite() and least <= v <= most else None for v in values]
        return np.array([v or 0 for v in fine], np.int64), np.array([v is not None for v in fine], bool)
    micro = np.array(values, np.float64)
    fits = (micro >= low) & (micro <= high)
    micro = np.where(fits, micro, 0.0)
    floor = np.floor(micro)
    return floor.astype(np.int64) * 1000 + np.rint((micro - floor) * 1000).astype(np.int64), fits


def _decode(events: list[Event], type_: type[A]) -> list[A]:
    """Arguments of events, all in one pass; if some have an odd type, one by one, and those are unknown."""
    raws = [event.args or b"{}" for event in events]
    together = decode_or_none(b"[" + b",".join(raws) + b"]", list[type_])  # type: ignore[valid-type]
    return together if together is not None else [decode_or_none(raw, type_) or type_() for raw in raws]


def _named_kind(text: str) -> int:
    return next((kind for prefix, kind in _KIND_OF_NAME.items() if text.startswith(prefix)), Kind.OTHER)
