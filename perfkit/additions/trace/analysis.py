"""Everything that is read out of a trace: steps, device figures, idle time, tables, health."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from perfkit.additions.trace.intervals import Floats, Ints, gaps, merge, partition, union, weighted
from perfkit.additions.trace.model import (
    Analysis,
    Health,
    Idle,
    Kernel,
    Operator,
    Step,
    Sync,
    Transfer,
    diagnose,
)
from perfkit.additions.trace.reader import Device
from perfkit.additions.trace.table import KERNELS, LAYERS, WHOLE, Kind, Trace, take

_Row = TypeVar("_Row")
PARTS = (*LAYERS, "other")
_HOST_PARTS = ("communication", "dataloader", "cpu_op", "other")
_ALLOCATES = (
    r"^(cuda|hip|cuMem)(Malloc|Free|HostAlloc|HostMalloc|HostRegister|HostUnregister|Alloc|Create|Map|Unmap)"
)


def analyse(trace: Trace | str | Path) -> Analysis:
    """Everything of a trace, or of a file; a mean is over all steps."""
    if not isinstance(trace, Trace):
        trace = Trace(trace)
    steps, health, has_device = trace.steps, [*check(trace)], len(trace.device) > 0
    spoiled = {figure for problem in health for figure in problem.spoils}
    known = () if "mean_us" in spoiled else PARTS if has_device else _HOST_PARTS

    def parts(us: Floats) -> dict[str, float | None]:
        values = zip(PARTS, us.tolist(), strict=False)
        return {part: value if part in known else None for part, value in values}

    duration, count = (steps.end - steps.start) / 1e3, len(steps.names) or 1
    shares = partition(trace.layers, steps.start, steps.end)
    hidden = np.array([steps.common(layer) for layer in trace.layers])
    rank = trace.file.head.distributedInfo.get("rank") or 0
    figures = {
        "mean_step_us": float(duration.mean()) if len(duration) else None,
        "idle": _idle(trace) if has_device and len(duration) else [],
        **_use(trace),
    }
    figures |= {name: [] if name == "idle" else None for name in spoiled & figures.keys()}
    analysis = Analysis(
        files=[str(trace.file.path)],
        device={**_device(trace), "ranks": [rank]},
        health=health,
        steps=structs(
            Step,
            name=steps.names,
            rank=[rank] * len(duration),
            start_us=(steps.start + trace.start) / 1e3,
            duration_us=duration,
            breakdown_us=[parts(row) for row in shares.T / 1e3],
        ),
        mean_us=parts(shares.sum(axis=1) / 1e3 / count),
        exposed_and_hidden_us=parts(hidden / 1e3 / count),
        operators=operators(trace),
        kernels=kernels(trace),
        transfers=transfers(trace, count),
        syncs=syncs(trace, count) if has_device else [],
        communication=_communication(trace, count),
        **figures,
    )
    return msgspec.structs.replace(analysis, diagnosis=diagnose(analysis))


def _use(trace: Trace) -> dict[str, Any]:
    """How well the device is used during the steps S; None for what is not recorded.

    Utilisation: |K∩S| / |S|. SM efficiency: Σ min(blocks/SM, 1)·d, overlaps summed and capped at 1.
    Occupancy: a mean weighted by duration. Tensor Cores: shares of kernel time by `yes`, `no`, `unknown`.
    """
    steps, kernels = trace.steps, trace.table[trace.rows(*KERNELS)]
    time = steps.within(kernels.start, kernels.end)
    kernels, time = kernels[time > 0], time[time > 0]

    def share(rows: Ints) -> float | None:
        known = len(trace.device) and steps.total
        return steps.common(trace.union(rows)) / steps.total if known else None

    efficiency = occupancy = None
    if len(sized := kernels[kernels.blocks > 0]):
        times, area = weighted(sized.start, sized.end, sized.blocks)
        busy = np.diff(np.interp([steps.start, steps.end], times, area), axis=0).sum()
        efficiency = float(busy / steps.total)
    if (measured := ~np.isnan(kernels.occupancy)).any():
        occupancy = float(np.average(kernels.occupancy[measured], weights=time[measured]))
    cores = dict.fromkeys(("yes", "no", "unknown"), 0.0)
    per_name = np.bincount(kernels.name, time)
    for name in np.flatnonzero(per_name).tolist():
        cores[tensor_core(trace.texts.each[name])] += float(per_name[name])
    return {
        "gpu_utilization": share(trace.rows(*KERNELS)),
        "gpu_utilization_with_copies": share(trace.device),
        "est_sm_efficiency": efficiency,
        "est_achieved_occupancy": occupancy,
        "tensor_core": {answer: ns / int(time.sum()) for answer, ns in cores.items()} if len(time) else None,
    }


def _device(trace: Trace) -> dict[str, Any]:
    """The device's description."""
    head, has_device = trace.file.head, len(trace.device) > 0
    gpu = next(iter(head.deviceProperties), Device())
    kind = "rocm" if len(trace.matching(trace.calls, "^hip")) else "cuda"
    known = has_device and kind == "cuda" and None not in (gpu.computeMajor, gpu.computeMinor)
    return {
        "kind": kind if has_device else "cpu",
        "name": gpu.name,
        "compute_capability": f"{gpu.computeMajor}.{gpu.computeMinor}" if known else None,
        "reason": None if has_device else "no accelerator in this trace",
        "simulated": head.simulated,
    }


def _idle(trace: Trace) -> list[Idle]:
    """Divides each gap in the device's activity among causes, in order of priority: what the host was doing.

    `launch` is host code of any kind before the step's last device event; what remains after that event is
    `end_of_step`. `queued` is a gap before device work that had been launched before the gap began: latency
    of the device between kernels, not of the host.
    """
    steps, calls, table, busy = trace.steps, trace.calls, trace.table, trace.union(trace.device)
    waits = trace.matching(calls, WAITS)
    host = {
        "data": trace.rows(Kind.DATALOADER),
        "allocator": trace.matching(calls, _ALLOCATES),
        "gc": trace.matching(trace.rows(Kind.PYTHON), r"^Python GC$|gc\.collect>$"),
        "copy": np.setdiff1d(trace.matching(calls, "(?i)memcpy"), waits),
        "synchronisation": waits,
    }
    last = np.searchsorted(busy.end, steps.end, "right")
    last_end = np.clip(np.concatenate((steps.start[:1], busy.end))[last], steps.start, steps.end)
    between = merge(steps.end[:-1], steps.start[1:])
    idle = gaps(union(busy, between), steps.start[0], steps.end[-1])
    device = trace.device[np.argsort(table.start[trace.device], kind="stable")]
    launch = np.append(trace.launch[device], -1)[np.searchsorted(table.start[device], idle.end)]
    queued = (launch >= 0) & (table.start[launch] <= idle.start)
    rest = partition([*map(trace.union, host.values()), merge(steps.start, last_end)], idle.start, idle.end)
    total = np.append((idle.end - idle.start)[queued].sum(), rest[:, ~queued].sum(axis=1))
    rows = structs(
        Idle,
        cause=("queued", *host, "launch", "end_of_step"),
        total_us=total / 1e3,
        us_per_step=total / 1e3 / len(steps.names),
        share_of_step=total / steps.total,
    )
    return sorted((row for row in rows if row.total_us), key=lambda row: -row.total_us)


def _communication(trace: Trace, steps: int) -> dict[str, Any] | None:
    """Device time of collectives per step; None if there was no communication at all.

    Exposed: what collective kernels add to the union of all other kernels. Without device collectives (CPU,
    gloo) the times are None: the host's marks show when a call was made, not when data moved.
    """
    collectives, length = trace.rows(Kind.COLLECTIVE), trace.steps.common
    if not len(collectives) + len(trace.rows(Kind.COMMUNICATION)):
        return None
    total = exposed = None
    if len(collectives):
        total = length(trace.union(collectives)) / 1e3 / steps
        exposed = (length(trace.union(trace.rows(*KERNELS))) - length(trace.layers[0])) / 1e3 / steps
    world = trace.file.head.distributedInfo
    return {
        "backend": world.get("backend"),
        "world_size": world.get("world_size"),
        "total_us_per_step": total,
        "exposed_us_per_step": exposed,
    }


# ---------------------------------------------------------------- tables


def structs(row: type[_Row], /, **columns: Any) -> list[_Row]:
    """Rows from columns; NaN becomes None."""
    absent: Any = None
    plain = [
        np.where(np.isnan(column), absent, column).tolist() if isinstance(column, np.ndarray) else column
        for column in columns.values()
    ]
    return [row(**dict(zip(columns, values, strict=True))) for values in zip(*plain, strict=True)]


class Groups:
    """Rows of the table by distinct keys: for each part of a key, a column of numbers of texts."""

    def __init__(self, trace: Trace, rows: Ints, **keys: Ints) -> None:
        number = np.zeros(len(rows), np.int64)
        for codes in keys.values():
            number = number * (codes.max(initial=-1) + 2) + codes + 1
            _, first, number = np.unique(number, return_index=True, return_inverse=True)
        self.of, self.calls = number, np.bincount(number)
        self.time = trace.duration(rows) / 1e3
        """µs of each row."""
        self.total = self.sum(self.time)
        self.columns: dict[str, Any] = {key: trace.text(codes[first]) for key, codes in keys.items()}
        """The parts of the keys, `calls` and `total_us`."""
        self.columns |= {"calls": self.calls, "total_us": self.total}

    def sum(self, values: Any) -> Floats:
        """Sum per group; NaN counts as 0."""
        return np.bincount(self.of, np.nan_to_num(values), len(self.calls)).astype(np.float64)

    def mean(self, values: Floats) -> Floats:
        """Mean per group weighted by time (by count if all are zero); NaN where no value is known."""
        weights = np.where(np.isnan(values), 0.0, np.maximum(self.time, 1e-9))
        with np.errstate(invalid="ignore"):
            return self.sum(values * weights) / self.sum(weights)


def operators(trace: Trace) -> list[Operator]:
    """By name, input shapes and types; sorted by self time on the device, else on the host."""
    ops, op, table = trace.ops, trace.op, trace.table
    groups = Groups(trace, ops, name=table.name[ops], inputs=table.inputs[ops])
    inputs, total = (groups.columns.pop(name) for name in ("inputs", "total_us"))
    dims, types = (
        [pair[at].decode("utf-8", "replace") or None if pair else None for pair in inputs] for at in (0, 1)
    )
    host = trace.duration(ops)
    nested, tied = op[ops] >= 0, trace.device[op[trace.device] >= 0]
    inner = np.bincount(op[ops[nested]], host[nested], len(table))[ops]
    device = np.bincount(op[tied], trace.duration(tied), len(table)).astype(np.float64)
    inclusive, own, above = device.copy(), device[ops], op[ops]
    while len(above):
        own, above = own[above >= 0], above[above >= 0]
        inclusive += np.bincount(above, own, len(table))
        above = op[above]
    unknown = 0 if len(trace.device) else np.nan
    rows = structs(
        Operator,
        **groups.columns,
        input_shapes=dims,
        input_dtypes=types,
        host_total_us=total,
        host_self_us=groups.sum(np.maximum(host - inner, 0) / 1e3),
        device_total_us=groups.sum(inclusive[ops]) / 1e3 + unknown,
        device_self_us=groups.sum(device[ops]) / 1e3 + unknown,
    )
    return sorted(rows, key=lambda row: (-(row.device_self_us or 0.0), -row.host_self_us, row.name))


def _place(trace: Trace, rows: Ints) -> dict[str, Ints]:
    """The operator and the line of code around calls."""
    return {"operator": take(trace.table.name, trace.op[rows]), "frame": trace.frame[rows]}


def kernels(trace: Trace) -> list[Kernel]:
    """By name, the longest in total first; with the place of its longest launch."""
    rows = trace.rows(*KERNELS)
    table = trace.table[rows]
    groups = Groups(trace, rows, name=table.name)
    order, last = np.lexsort((groups.time, groups.of)), np.cumsum(groups.calls) - 1
    time, places = groups.time[order], _place(trace, rows[order[last]])
    kernels = structs(
        Kernel,
        **groups.columns,
        **{part: trace.text(codes) for part, codes in places.items()},
        mean_us=groups.total / groups.calls,
        max_us=time[last],
        min_us=time[last - groups.calls + 1],
        blocks_per_sm=groups.mean(table.blocks),
        occupancy=groups.mean(table.occupancy),
        tensor_core=map(tensor_core, groups.columns["name"]),
    )
    return sorted(kernels, key=lambda row: (-row.total_us, row.name))


def transfers(trace: Trace, steps: int) -> list[Transfer]:
    """Copies by direction, host memory and place, the longest in total first."""
    rows, sizes = trace.rows(Kind.MEMCPY), trace.table.bytes
    groups = Groups(trace, rows, name=trace.table.name[rows], **_place(trace, rows))
    names = groups.columns.pop("name")
    size = np.where(sizes[rows] >= 0, sizes[rows], take(sizes, trace.launch[rows]))  # ROCm: at the launch
    moved = np.where(groups.sum(size < 0) > 0, np.nan, groups.sum(size))
    with np.errstate(all="ignore"):
        rate = np.where(groups.total > 0, moved / groups.total / 1e3, np.nan)
    transfers = structs(
        Transfer,
        direction=[match[0] if (match := _DIRECTION.search(name)) else name for name in names],
        host_memory=[match[0].lower() if (match := _HOST_MEMORY.search(name)) else None for name in names],
        **groups.columns,
        bytes=[None if np.isnan(size) else int(size) for size in moved],
        gb_per_s=rate,
        calls_per_step=groups.calls / steps,
        us_per_step=groups.total / steps,
    )
    return sorted(transfers, key=lambda row: -row.total_us)


def syncs(trace: Trace, steps: int) -> list[Sync]:
    """Runtime calls and operators that wait for the device, the longest in total first."""
    calls, ops = trace.matching(trace.calls, WAITS), trace.matching(trace.ops, WAITING_OPERATORS)
    rows = np.concatenate((calls, ops))
    groups = Groups(trace, rows, call=trace.table.name[rows], **_place(trace, rows))
    syncs = structs(
        Sync,
        **groups.columns,
        kind=["operator" if call.startswith("aten::") else "runtime" for call in groups.columns["call"]],
        calls_per_step=groups.calls / steps,
        ms_per_step=groups.total / 1e3 / steps,
    )
    return sorted(syncs, key=lambda row: -row.total_us)


# ---------------------------------------------------------------- health

_DEVICE = [
    *("breakdown_us", "mean_us", "exposed_and_hidden_us", "idle", "gpu_utilization", "tensor_core"),
    *("gpu_utilization_with_copies", "est_sm_efficiency", "est_achieved_occupancy"),
]
"""Figures that need every event of the device."""
_FEW = 0.01
"""A share of launches without a kernel that the edges of the recording explain."""


def check(trace: Trace) -> Iterator[Health]:
    """Problems of a trace; `spoils` names the figures that the analysis then sets to None."""
    if trace.file.head.simulated:
        facts = "".join(f"; {name}: {fact[:200]}" for name, fact in trace.file.head.simulated.items())
        message = f"this trace is simulated: no kernel ran, its times are predicted{facts}"
        yield Health("simulated", "info", message)
    if trace.file.truncated:
        message = "the file is cut off or damaged: an unknown number of events is missing"
        yield Health("truncated", "error", message, ["mean_step_us", *_DEVICE])
    if trace.file.dropped:
        message = f"left out {trace.file.dropped} events that are damaged or have impossible values"
        yield Health("bad_events", "warning", message)
    marks = len(trace.rows(Kind.STEP))
    if not marks:
        message = f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps"
        yield Health("no_steps", "info", message)
    elif left := marks - len(trace.steps.names):
        message = f"left out {left} of {marks} steps, which repeat or lie inside others"
        yield Health("duplicate_steps", "warning", message)
    yield from _launches(trace)


def _launches(trace: Trace) -> Iterator[Health]:
    start, ids, tied = trace.table.start, trace.table.correlation, trace.launched
    launching = trace.matching(trace.calls, "^(?!.*(Graph|HostFunc)).*Launch")
    launching = launching[ids[launching] >= 0]
    without = launching[~np.isin(ids[launching], ids[trace.device])]
    if len(without) and not len(trace.device):
        message = "a GPU was used but no GPU event was recorded; profile in a fresh process (pytorch#175790)"
        yield Health("no_gpu_events", "error", message, _DEVICE)
    elif len(without):
        many = len(without) > _FEW * len(launching)
        message = f"{len(without)} of {len(launching)} launches have no kernel in the trace; profile once, "
        message += "in a fresh process, after more warm-up steps of the schedule (pytorch#192021)"
        yield Health("dropped_kernels", "error" if many else "warning", message, _DEVICE if many else [])
    early = int((start[tied] < start[trace.launch[tied]]).sum())
    if early:
        message = f"{early} of {len(tied)} device events start before their launch"
        yield Health("early_kernels", "warning", message, ["idle"] if early > _FEW * len(tied) else [])


# ---------------------------------------------------------------- what names tell

# Tensor Core kernels: the profiler plugin's list (Volta to Ampere), and later ones.
_YES = re.compile(
    r"h884|s884|h1688|s1688|c1688|i8816|16816|hmma|imma_|bmma_|dmma|wmma|wgmma|gmma|tcgen05|nvjet|tensorop|tf32"
    r"|tensor\d+x\d+x\d+|xmma_(?:implicit_|sparse_|warp_specialized_implicit_)?gemm|xmma_sparse_conv|sm(?:90|10\d|12\d)_xmma"
    r"|flash_?(?:attn_?)?(?:fwd|bwd|fprop|bprop)|fmha_cutlass[fb]_(?:f16|bf16)|native_sdpa|triton_tem_|triton_mm"
    r"|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group|_mi\d+x\d+x\d+|mfma",
    re.IGNORECASE,
)
# Kernels without matrix products, and products known to run in plain FP32 or FP64 units.
_NO = re.compile(
    r"elementwise_kernel|reduce_kernel|multi_tensor_apply|simt|winograd|fft|[sd]gemm|scudnn|gemv|gemmsn|gemmk1|nccl|rccl"
    r"|splitkreduce|reducesplitk|im2col|col2im|[dw]?grad_engine<float|wgrad_alg\w*<float|convolve_sgemm|computeoffsets"
    r"|triton_(?:poi|red|per)_|dot_kernel|reduce_wgrad",
    re.IGNORECASE,
)
_PRODUCT = re.compile(
    r"gemm|conv(?!ert)|matmul|(?<![a-z])b?mm(?![a-z])|att(?:entio)?n|[dw]grad|fprop|cijk|lstm|gru|rnn",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"elementwise|reduce|softmax|norm|(?<![a-z])bn_|pool|dropout|copy|fill|memset|index|gather|scatter|sort|scan|catarray"
    r"|transpose|nchwtonhwc|nhwctonchw|adam|random|distribution|arange|upsample|embedding|loss|foreach|unrolled|op_tensor",
    re.IGNORECASE,
)
_DIRECTION, _HOST_MEMORY = re.compile("HtoD|DtoH|DtoD|HtoH|PtoP"), re.compile("(?i)pageable|pinned")
WAITS = r"Synchronize|^(cudaMemcpy|hipMemcpy|cuMemcpy)(?!.*Async)(?!.*Peer)"
"""Runtime calls that make the host wait for the device."""
WAITING_OPERATORS = "^aten::(item|_local_scalar_dense|nonzero|is_nonzero)$"


def tensor_core(name: str) -> str:
    """Whether a kernel uses Tensor Cores by its name: `yes`, `no` or `unknown`."""
    name = name[:1000]
    if name.startswith("simulated "):  # as `perfkit.additions.simulate.chrome` calls kernels that never ran
        return "yes" if name.endswith("(Tensor Cores)") else "no"
    if _NO.search(name) and "tensorop" not in name.lower():
        return "no"
    if _YES.search(name):
        return "yes"
    return "no" if _PLAIN.search(name) and not _PRODUCT.search(name) else "unknown"
