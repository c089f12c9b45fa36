"""What names tell: Tensor Cores, copies, waits, the kind of accelerator, what sort of program ran."""

import re

import numpy as np

from perfkit.additions.trace import data
from perfkit.additions.trace.events import KERNELS, Kind
from perfkit.additions.trace.intervals import Ints
from perfkit.additions.trace.table import Trace

DIRECTION, HOST_MEMORY = re.compile("HtoD|DtoH|DtoD|HtoH|PtoP"), re.compile("(?i)pageable|pinned")
ALLOCATES = (
    r"^(cuda|hip|cuMem)(Malloc|Free|HostAlloc|HostMalloc|HostRegister|HostUnregister|Alloc|Create|Map|Unmap)"
)
WAITS = r"Synchronize|^(cudaMemcpy|hipMemcpy|cuMemcpy)(?!.*Async)(?!.*Peer)"
"""Runtime calls that make the host wait for the device."""
WAITING_OPERATORS = "^aten::(item|_local_scalar_dense|nonzero|is_nonzero)$"


def tensor_core(name: str) -> str:
    """Whether a kernel uses Tensor Cores by its name: `yes`, `no` or `unknown`."""
    name, known = name[:1000], data.names("tensor_core")
    if name.startswith("simulated "):  # as `perfkit.additions.simulate.chrome` calls kernels that never ran
        return "yes" if name.endswith("(Tensor Cores)") else "no"
    if known["no"].search(name) and "tensorop" not in name.lower():
        return "no"
    if known["yes"].search(name):
        return "yes"
    return "no" if known["plain"].search(name) and not known["product"].search(name) else "unknown"


def accelerator(trace: Trace) -> str:
    """`cuda`, `rocm`, `xpu`, `npu`, or `accelerator` where nothing names it."""
    for kind, pattern in data.names("call").items():
        if len(trace.matching(trace.calls, pattern)):
            return kind
    runtimes = (category.lower() for (_, category, _), kind in trace.kinds.items() if kind == Kind.RUNTIME)
    for category in runtimes:
        if category.startswith(("cuda", "xpu", "mtia", "hpu")):
            return category.split("_")[0]
    devices = " ".join(device.name or "" for device in trace.devices or [])
    for kind, pattern in data.names("device").items():
        if pattern.search(devices) or len(trace.matching(trace.rows(*KERNELS), pattern)):
            return kind
    return "accelerator"


def evidence(trace: Trace) -> list[str]:
    """What a trace shows of the program: `training`, `optimizer`, `graphs`, `compiled` and so on.

    A trace with operators, but without any of training, shows `inference`.
    """
    host, kernels = trace.rows(Kind.CPU_OP, Kind.ANNOTATION), trace.rows(*KERNELS)
    shows = {name for name, pattern in data.names("host").items() if len(trace.matching(host, pattern))}
    if not len(trace.ops):
        shows |= {
            name for name, pattern in data.names("kernel").items() if len(trace.matching(kernels, pattern))
        }
    elif "training" not in shows:
        shows.add("inference")
    if len(trace.matching(trace.calls, "Graph.*Launch")):
        shows.add("graphs")
    if len(host) or len(trace.calls) or len(trace.rows(Kind.PYTHON)):
        shows.add("host")
    return sorted(shows)


_LOADS = (
    r"^(cu|cuda|hip)(Module|Library|Kernel)\w*(Load|Get)|^(cu|hip)(Init|CtxCreate|DevicePrimaryCtxRetain)"
)
_SLOW_NS, _CONTEXT_NS = 10**6, 50 * 10**6
"""A launch that takes a millisecond, and a call that takes fifty, do more than they are called for."""


def first_calls(trace: Trace) -> Ints:
    """Calls in which the context is created, or a kernel's code is loaded: they are slow once.

    These are slow first launches of a kernel, calls that load code, and very slow calls before the device
    does anything.
    """
    table, length = trace.table, trace.duration(trace.calls)
    kernels = np.intersect1d(trace.launched, trace.rows(*KERNELS))
    launched = kernels[np.argsort(table.start[kernels], kind="stable")]
    _, first = np.unique(table.name[launched], return_index=True)
    calls = [trace.launch[launched[first]], trace.matching(trace.calls, _LOADS)]
    if len(trace.device):
        others = np.setdiff1d(trace.calls, trace.matching(trace.calls, f"{WAITS}|Host"))
        early = others[table.end[others] <= table.start[trace.device].min()]
        calls.append(early[trace.duration(early) >= _CONTEXT_NS])
    slow = trace.calls[length >= _SLOW_NS]
    return np.intersect1d(np.concatenate(calls), slow)
