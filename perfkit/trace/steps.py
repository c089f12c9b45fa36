"""Steps, and what each one's time went to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfkit.trace.columns import Columns, Kind
from perfkit.trace.intervals import Ints, Spans, merge, partition, union
from perfkit.trace.link import Links

PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu_op", "other")
DEVICE_PARTS = PARTS[:3] + PARTS[4:5]
WHOLE = "whole trace"


@dataclass(frozen=True, slots=True)
class Steps:
    """Disjoint windows in order of time: start, end int64[M] ns; host_start: start of the host's mark."""

    names: list[str]
    start: Ints
    end: Ints
    host_start: Ints
    marked: bool
    empty: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """|S| in ns."""
        return int((self.end - self.start).sum())

    def length(self, spans: Spans) -> int:
        """|X ∩ S| in ns."""
        return int(spans.within(self.start, self.end).sum())


def find_steps(links: Links) -> Steps:
    """Host marks `ProfilerStep#n`, each stretched to the end of the device work launched inside it."""
    columns = links.columns
    marks = columns.rows(Kind.STEP)
    if not len(marks):
        low, high = np.array([columns.start.min()]), np.array([columns.end.max()])
        return Steps([WHOLE], low, high, low, marked=False)
    marks = marks[np.lexsort((-columns.end[marks], columns.start[marks]))]
    host_start = columns.start[marks]
    end = np.maximum.accumulate(_device_end(links, host_start, columns.end[marks]))
    start = np.maximum(host_start, np.concatenate((host_start[:1], end[:-1])))
    keep = end > start
    names = columns.texts(marks)
    empty = tuple(name for name, kept in zip(names, keep.tolist(), strict=True) if not kept)
    names = [name for name, kept in zip(names, keep.tolist(), strict=True) if kept]
    return Steps(names, start[keep], end[keep], host_start[keep], marked=True, empty=empty)


def _device_end(links: Links, start: Ints, end: Ints) -> Ints:
    """For each step the end of the last device event whose launch lies inside the host's mark."""
    columns, latest = links.columns, end.copy()
    tied = links.launch >= 0
    launch = links.launch[tied]
    step = np.searchsorted(start, columns.start[launch], "right") - 1
    inside = (step >= 0) & (columns.end[launch] <= end[step])
    np.maximum.at(latest, step[inside], columns.end[links.device[tied]][inside])
    return latest


@dataclass(frozen=True, slots=True)
class Activity:
    """The unions R_i of a breakdown, in order of priority, and the device's own."""

    layers: tuple[Spans, ...]
    kernels: Spans
    communication: Spans
    device: Spans


def activity(links: Links) -> Activity:
    """Unions by kind. Collective kernels (NCCL, RCCL) are communication, the others are Kernel."""
    columns = links.columns

    def of(rows: Ints) -> Spans:
        return merge(columns.start[rows], columns.end[rows])

    kernels, copies, sets = (columns.rows(kind) for kind in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET))
    collective = is_collective(columns)[columns.name[kernels]]
    compute, talk = of(kernels[~collective]), of(kernels[collective])
    host = [Kind.RUNTIME, Kind.LOADER, (Kind.CPU_OP, Kind.ANNOTATION)]
    runtime, loader, ops = (of(columns.rows(*(k if isinstance(k, tuple) else (k,)))) for k in host)
    every = union((compute, talk))
    layers = (
        compute,
        of(copies),
        of(sets),
        union((talk, of(columns.rows(Kind.COMMUNICATION)))),
        runtime,
        loader,
        ops,
    )
    return Activity(layers, every, talk, union((every, *layers[1:3])))


def is_collective(columns: Columns) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """bool[len(names)]: kernels of a communication library."""
    return columns.name_mask(_collective)


def _collective(text: str) -> bool:
    low = text[:200].lower()
    return any(word in low for word in ("nccl", "rccl", "oneccl", "mscclpp"))


def breakdown(steps: Steps, layers: Iterable[Spans]) -> tuple[Ints, Ints]:
    """Exposed int64[8, M] ns (columns sum to the step), and exposed + hidden int64[7, M] ns."""
    layers = tuple(layers)
    hidden = np.stack([layer.within(steps.start, steps.end) for layer in layers])
    return partition(layers, steps.start, steps.end), hidden
