"""What the names of kernels and calls tell."""

import re

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
_SIMULATED = re.compile(r"simulated (\w+): ")
"""How `perfkit.simulate.chrome` begins the name of a kernel that never ran, with its class."""
_COPY = re.compile(r"(HtoD|DtoH|DtoD|HtoH|PtoP)(?:.*\((\w+) -> (\w+)\))?")
WAITS = r"Synchronize|^(cudaMemcpy|hipMemcpy|cuMemcpy)(?!.*Async)(?!.*Peer)"
"""Runtime calls that make the host wait for the device."""
WAITING_OPERATORS = "^aten::(item|_local_scalar_dense|nonzero|is_nonzero)$"


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


def direction(copy: str) -> tuple[str, str | None]:
    """Of a copy: `HtoD`, …, and whether host memory is `pinned`, `pageable` or not recorded."""
    match = _COPY.search(copy)
    if match is None:
        return copy, None
    ends = " ".join(filter(None, match.groups()[1:])).lower()
    return match[1], next((word for word in ("pageable", "pinned") if word in ends), None)
