"""Tables of operators, kernels, copies and synchronising calls of a trace."""

import re
from math import isnan
from typing import Any, TypeVar

import numpy as np

from perfkit.trace.intervals import Floats, Ints
from perfkit.trace.model import Kernel, Operator, Sync, Transfer
from perfkit.trace.table import KERNELS, Kind, Trace, take

_Row = TypeVar("_Row")


def structs(row: type[_Row], /, **columns: Any) -> list[_Row]:
    """Rows from columns; NaN becomes None."""
    plain = [
        [None if isinstance(value, float) and isnan(value) else value for value in column.tolist()]
        if isinstance(column, np.ndarray)
        else column
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
        bytes=[None if isnan(size) else int(size) for size in moved.tolist()],
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
    if name.startswith("simulated "):  # as `perfkit.simulate.chrome` calls kernels that never ran
        return "yes" if name.endswith("(Tensor Cores)") else "no"
    if _NO.search(name) and "tensorop" not in name.lower():
        return "no"
    if _YES.search(name):
        return "yes"
    return "no" if _PLAIN.search(name) and not _PRODUCT.search(name) else "unknown"
