"""Steps, and where the time of each one goes."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Ints, Spans, partition, union
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
    """Host marks `ProfilerStep#n`, each extended to the end of the device work launched inside it."""
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
    names, empty = columns.texts(marks[keep]), tuple(columns.texts(marks[~keep]))
    return Steps(names, start[keep], end[keep], host_start[keep], marked=True, empty=empty)


def _device_end(links: Links, start: Ints, end: Ints) -> Ints:
    """For each step the end of the last device event whose launch lies inside the host's mark."""
    columns, (launch, device), latest = links.columns, links.tied, end.copy()
    step = np.searchsorted(start, columns.start[launch], "right") - 1
    inside = (step >= 0) & (columns.end[launch] <= end[step])
    np.maximum.at(latest, step[inside], columns.end[device[inside]])
    return latest


@dataclass(frozen=True, slots=True)
class Activity:
    """The unions R_i of a breakdown, in order of priority, and those of the device."""

    layers: tuple[Spans, ...]
    kernels: Spans
    communication: Spans
    device: Spans


def activity(links: Links) -> Activity:
    """Unions by kind. Collective kernels (NCCL, RCCL) are communication, the others are Kernel."""
    columns = links.columns
    kernels = columns.rows(Kind.KERNEL)
    collectives = columns.named(kernels, is_collective)
    communication = columns.union(collectives)
    compute = columns.union(np.setdiff1d(kernels, collectives, assume_unique=True))
    kinds = ((Kind.MEMCPY,), (Kind.MEMSET,), (Kind.COMMUNICATION,), (Kind.RUNTIME,), (Kind.LOADER,))
    copies, sets, calls, runtime, loader = (columns.union(columns.rows(*kind)) for kind in kinds)
    operators = columns.union(columns.rows(Kind.CPU_OP, Kind.ANNOTATION))
    every = union((compute, communication))
    layers = (compute, copies, sets, union((communication, calls)), runtime, loader, operators)
    return Activity(layers, every, communication, union((every, copies, sets)))


def is_collective(name: str) -> bool:
    """Whether a kernel of this name is one of a communication library."""
    low = name[:200].lower()
    return any(library in low for library in ("nccl", "rccl", "oneccl", "mscclpp"))


def breakdown(steps: Steps, layers: Iterable[Spans]) -> tuple[Ints, Ints]:
    """Exposed int64[8, M] ns (columns sum to the step), and exposed + hidden int64[7, M] ns."""
    layers = tuple(layers)
    hidden = np.stack([layer.within(steps.start, steps.end) for layer in layers])
    return partition(layers, steps.start, steps.end), hidden
