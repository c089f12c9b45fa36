"""How well the device was used: utilisation, SM efficiency, occupancy, Tensor Cores, launches."""

import re
from typing import Any

import numpy as np

from perfkit.trace.columns import Kind
from perfkit.trace.intervals import merge, weighted
from perfkit.trace.link import Links
from perfkit.trace.steps import Activity, Steps

# Names of Tensor Core kernels: the profiler plugin's list (Volta to Ampere), and later ones.
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


_SIMULATED = re.compile(r"simulated (\w+): ")
"""How `perfkit.simulate.chrome` begins the name of a kernel that never ran, with its class."""


def tensor_core(name: str) -> str:
    """Whether a kernel uses Tensor Cores by its name: `yes`, `no` or `unknown`."""
    name = name[:1000]
    if _SIMULATED.match(name):
        return "yes" if name.endswith("(Tensor Cores)") else "no"
    if _NO.search(name) and "tensorop" not in name.lower():
        return "no"
    if _YES.search(name):
        return "yes"
    return "no" if _PLAIN.search(name) and not _PRODUCT.search(name) else "unknown"


def is_bandwidth_bound(name: str) -> bool:
    """Whether memory bandwidth limits a kernel, by its name: element-wise, norms, layout."""
    name = name[:1000]
    if simulated := _SIMULATED.match(name):
        return simulated[1] not in ("conv", "gemm", "attention")
    return _PLAIN.search(name) is not None and not (_PRODUCT.search(name) or _YES.search(name))


def sums(links: Links, steps: Steps, act: Activity) -> dict[str, float]:
    """Sums over the steps S in ns, to be added up over ranks before any ratio; absent = not recorded.

    `busy` |K∩S|, `with_copies`, `sm` Σ min(blocks/SM, 1)·d (overlaps summed, capped at 1),
    `occupancy` Σ OCC·d and its `occupancy_time` Σ d, Tensor Core time by `yes`, `no`, `unknown`.
    """
    columns = links.columns
    rows = columns.rows(Kind.KERNEL)
    totals = {"step": float(steps.total), "busy": float(steps.length(act.kernels))}
    totals["with_copies"] = float(steps.length(act.device))
    start, end = columns.start[rows], columns.end[rows]
    inside = merge(steps.start, steps.end).within(start, end).astype(np.float64)
    blocks, occupancy = columns.blocks[rows], columns.occupancy[rows]
    if (sized := blocks > 0).any():
        zero = start[sized].min()  # floats hold nanoseconds only near zero
        times, area = weighted(start[sized] - zero, end[sized] - zero, blocks[sized])
        integral = np.interp([steps.start - zero, steps.end - zero], times, area)
        totals["sm"] = float(np.diff(integral, axis=0).sum())
    measured = ~np.isnan(occupancy)
    if (time := inside[measured]).sum() > 0:
        totals["occupancy"] = float((occupancy[measured] * time).sum())
        totals["occupancy_time"] = float(time.sum())
    per_name = np.bincount(columns.name[rows], inside, len(columns.names))
    for code in np.flatnonzero(per_name).tolist():
        answer = tensor_core(columns.names[code])
        totals[answer] = totals.get(answer, 0.0) + float(per_name[code])
    return totals


def launches(links: Links) -> dict[str, Any] | None:
    """Launch delay (launch start to kernel start, µs) and how many kernels wait in the queue."""
    columns = links.columns
    call, kernel = (rows[columns.kind[links.tied[1]] == Kind.KERNEL] for rows in links.tied)
    if not len(kernel):
        return None
    begun, run = columns.start[call], columns.start[kernel]
    delay = np.maximum(run - begun, 0) / 1e3
    moments = np.concatenate((begun, run))
    order = np.argsort(moments, kind="stable")
    queue = np.cumsum(np.repeat([1, -1], len(call))[order])
    median, high = np.quantile(delay, [0.5, 0.9]).tolist()
    spans = np.diff(moments[order])
    mean = float((queue[:-1] * spans).sum() / spans.sum()) if spans.sum() else None
    return {
        "kernels": len(kernel),
        "call_mean_us": float(columns.duration(call).mean() / 1e3),
        "delay_median_us": median,
        "delay_p90_us": high,
        "delay_max_us": float(delay.max()),
        "queue_mean": mean,
        "queue_max": int(queue.max()),
        "kernels_shorter_than_launch": float((columns.duration(kernel) < columns.duration(call)).mean()),
    }
