"""What names reveal: Tensor Cores, copies, waits, the kind of accelerator, the sort of program."""

import numpy as np

from perfkit.additions.shared.intervals import Ints
from perfkit.additions.trace import data
from perfkit.additions.trace.events import KERNELS, Kind
from perfkit.additions.trace.table import Trace

ALLOCATES = (
    r"^(cuda|hip|cuMem)(Malloc|Free|HostAlloc|HostMalloc|HostRegister|HostUnregister|Alloc|Create|Map|Unmap)"
)
WAITS = r"Synchronize|^(cudaMemcpy|hipMemcpy|cuMemcpy)(?!.*Async)(?!.*Peer)"
"""Runtime calls that make the host wait for the device."""


def first(group: str, text: str) -> str | None:
    """The first entry of a group in names.toml that matches a text."""
    return next(iter(_fitting(group, [text])), None)


def tensor_core(name: str) -> str:
    """Whether a kernel uses Tensor Cores, by its name: `yes`, `no` or `unknown`."""
    name, known = name[:1000], data.names("tensor_core")
    if known["no"].search(name) and "tensorop" not in name.lower():
        return "no"
    if known["yes"].search(name):
        return "yes"
    return "no" if known["plain"].search(name) and not known["product"].search(name) else "unknown"


def accelerator(trace: Trace) -> str:
    """The kind of accelerator: `cuda`, `rocm`, `xpu`, `npu`, or `accelerator` if nothing names it."""
    calls = [f"{cat} {name}" for (_, cat, name), kind in trace.kinds.items() if kind == Kind.RUNTIME]
    devices = [device.name or "" for device in trace.devices or []]
    kinds = [*_fitting("call", calls), *_fitting("device", devices + trace.names(trace.rows(*KERNELS)))]
    return kinds[0] if kinds else "accelerator"


def _fitting(group: str, texts: list[str]) -> list[str]:
    """The entries of a group in names.toml that match any of the texts."""
    return [name for name, pattern in data.names(group).items() if any(map(pattern.search, texts))]


def evidence(trace: Trace) -> list[str]:
    """What a trace shows of the program: `training`, `graphs` …; operators without training: `inference`."""
    host = trace.rows(Kind.CPU_OP, Kind.ANNOTATION, Kind.COMMUNICATION)
    shows = {*_fitting("host", trace.names(host))}
    if not len(trace.ops):
        shows |= {*_fitting("kernel", trace.names(trace.rows(*KERNELS)))}
    elif "training" not in shows and not trace.file.truncated:
        shows.add("inference")
    if trace.file.told(str, "trainedOn") == "cpu":
        shows.add("on cpu")
    if len(trace.matching(trace.calls, "Graph[^G]*Launch")):
        shows.add("graphs")
    if len(host) or len(trace.calls) or len(trace.rows(Kind.PYTHON)):
        shows.add("host")
    return sorted(shows)


_LOADS = (
    r"^(cu|cuda|hip)(Module|Library|Kernel)\w*(Load|Get)|^(cu|hip)(Init|CtxCreate|DevicePrimaryCtxRetain)"
)
_SLOW_NS, _CONTEXT_NS = 10**6, 50 * 10**6
"""Thresholds: a launch of a millisecond, or a call of fifty, does more than it is called for."""


def first_calls(trace: Trace) -> Ints:
    """Calls that are slow only once: a kernel's first launch, loading code, creating the context."""
    table = trace.table
    kernels = np.intersect1d(trace.launched, trace.rows(*KERNELS))
    launched = kernels[np.argsort(table.start[kernels], kind="stable")]
    _, first = np.unique(table.name[launched], return_index=True)
    calls = [trace.launch[launched[first]], trace.matching(trace.calls, _LOADS)]
    if len(trace.device):
        others = np.setdiff1d(trace.calls, trace.matching(trace.calls, f"{WAITS}|Host"))
        early = others[table.end[others] <= table.start[trace.device].min()]
        calls.append(early[trace.duration(early) >= _CONTEXT_NS])
    slow = trace.calls[trace.duration(trace.calls) >= _SLOW_NS]
    return np.intersect1d(np.concatenate(calls), slow)
