"""Columns of a trace: one numpy row per event of interest, times in integer nanoseconds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.errors import TraceError
from perfkit.trace.intervals import Floats, Ints, Spans, merge
from perfkit.trace.reader import Args, ExactEvent, decode_or_none

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
_WITH_ARGS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.RUNTIME, Kind.CPU_OP, Kind.MEMORY)


@dataclass(frozen=True, slots=True)
class Columns:
    """One file's events, in file order. -1 (integers) or NaN (floats) where the file has no value."""

    kind: npt.NDArray[np.int8]
    name: Small  # index into `names`
    thread: Small  # index into `threads`, pairs (pid, tid)
    start: Ints  # ns on the trace's own clock
    end: Ints
    correlation: Ints  # links a launch to its kernel
    external: Ints  # links both to an operator
    device: Ints
    bytes: Ints
    blocks: Floats  # per SM
    occupancy: Floats  # 0–1
    shape: Small  # index into `shapes`, pairs (dims, types) of JSON text
    stack: Small  # index into `stacks`
    names: list[str]
    threads: list[tuple[str, str]]
    shapes: list[tuple[str, str]]
    stacks: list[str]
    labels: dict[tuple[str, str], str]
    memory: Ints
    """A row for each `[memory]` event: device type, device, change, address, allocated, reserved."""

    def rows(self, *kinds: Kind) -> Ints:
        """Row numbers of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kind, np.array(kinds, np.int8)))

    def duration(self, rows: Ints) -> Ints:
        """int64 ns."""
        return self.end[rows] - self.start[rows]

    def union(self, rows: Ints) -> Spans:
        """The union of rows' intervals."""
        return merge(self.start[rows], self.end[rows])

    def named(self, rows: Ints, test: Callable[[str], bool]) -> Ints:
        """Those of the rows whose name passes a test."""
        passes = np.fromiter(map(test, self.names), np.bool_, len(self.names))
        return rows[passes[self.name[rows]]]

    def texts(self, rows: Ints) -> list[str]:
        """Names of rows."""
        return [self.names[i] for i in self.name[rows].tolist()]


class _Codes(dict[Any, int]):
    """Numbers the distinct values in order of appearance."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]

    def column(self, values: Iterable[Any], size: int) -> Small:
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
        self._names = _Codes()
        self._threads = _Codes()
        self._shapes = _Codes()
        self._stacks = _Codes()
        self._parts: list[dict[str, Any]] = []
        self._labels: dict[tuple[str, str], str] = {}

    def add(self, events: list[Any]) -> None:
        """Takes a piece of the file."""
        exact = bool(events) and isinstance(events[0], ExactEvent)
        kind = np.fromiter(map(_kind_of_event, events), np.int8, len(events))
        named = [event for event in events if event.ph == "M" and event.name == "thread_name"]
        for event, args in zip(named, _arguments(named), strict=True):
            self._labels[str(event.pid), str(event.tid)] = args.name
        rows = np.flatnonzero(kind)
        chosen = [events[row] for row in rows.tolist()]
        start, start_fits = _nanoseconds([event.ts for event in chosen], -FARTHEST_US, FARTHEST_US, exact)
        length, length_fits = _nanoseconds([event.dur for event in chosen], 0, LONGEST_US, exact)
        fits = start_fits & length_fits
        if not fits.all():
            self.dropped += int((~fits).sum())
            chosen = [event for event, good in zip(chosen, fits.tolist(), strict=True) if good]
        if chosen:
            self._parts.append(self._part(chosen, kind[rows[fits]], start[fits], (start + length)[fits]))

    def _part(self, events: list[Any], kind: npt.NDArray[np.int8], start: Ints, end: Ints) -> dict[str, Any]:
        size, rows = len(events), np.flatnonzero(np.isin(kind, _WITH_ARGS))
        args = _arguments([events[row] for row in rows.tolist()])

        def column(values: Iterable[Any], empty: Any) -> npt.NDArray[Any]:
            full = np.full(size, empty)
            full[rows] = list(values)
            return full

        code, missing = np.int32(-1), np.int64(-1)
        of_memory = (args[i] for i in np.flatnonzero(kind[rows] == Kind.MEMORY).tolist())
        return {
            "kind": kind,
            "start": start,
            "end": end,
            "name": self._names.column(map(attrgetter("name"), events), size),
            "thread": self._threads.column(map(attrgetter("pid", "tid"), events), size),
            "correlation": column((a.correlation for a in args), missing),
            "external": column((a.external if a.external >= 0 else a.external_old for a in args), missing),
            "device": column((a.device for a in args), missing),
            "bytes": column((a.bytes if a.bytes >= 0 else a.size for a in args), missing),
            "blocks": column((a.blocks for a in args), np.nan),
            "occupancy": column((a.occupancy for a in args), np.nan),
            "shape": column((self._shapes[bytes(a.dims), bytes(a.types)] for a in args), code),
            "stack": column((self._stacks[a.stack] for a in args), code),
            "memory": np.array([_MEMORY(a) for a in of_memory], np.int64).reshape(-1, 6),
        }

    def finish(self) -> Columns:
        """The columns of all pieces.

        Raises:
            TraceError: nothing in the file is an event of the PyTorch profiler.
        """
        if not self._parts:
            raise TraceError("this file has no event of the profiler", "Give a *.pt.trace.json file")
        joined = {key: np.concatenate([part.pop(key) for part in self._parts]) for key in [*self._parts[0]]}
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
            shapes=[tuple(text.decode("utf-8", "replace") for text in pair) for pair in self._shapes],
            stacks=list(self._stacks),
            labels=self._labels,
        )


_MEMORY = attrgetter("device_type", "device_id", "change", "address", "allocated", "reserved")


def _kind_of_event(event: Any) -> Kind:
    if event.ph == "X":
        return _kind(event.cat)
    return Kind.MEMORY if event.ph == "i" and event.name == "[memory]" else Kind.OTHER


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


def _arguments(events: list[Any]) -> list[Args]:
    """Arguments of events, all in one pass; if some have an odd type, one by one, and those are unknown."""
    raws = [event.args or b"{}" for event in events]
    together = decode_or_none(b"[" + b",".join(raws) + b"]", list[Args])
    return together if together is not None else [decode_or_none(raw, Args) or Args() for raw in raws]


def _named_kind(text: str) -> int:
    return next((kind for prefix, kind in _KIND_OF_NAME.items() if text.startswith(prefix)), Kind.OTHER)
