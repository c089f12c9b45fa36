"""The optimizations: what each changes, what it asks, what the articles measured of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfkit.program.recipe import Value

Exactness = Literal["bitwise", "tolerance", "changes training"]


@dataclass(frozen=True)
class Sizing:
    """The numbers of a ladder that depend on machine and preset."""

    workers: int
    batch_size: int
    large_batch: int
    largest_batch: int
    amp: str
    threads: int
    share_cores: bool = False
    """Whether loader workers get cores of their own, taken from the compute threads of a CPU."""


@dataclass(frozen=True)
class Optimization:
    """One named change of a recipe; its prose is the card `cards/NAME.md`."""

    name: str
    title: str
    question: str
    attacks: Literal["data", "host", "device", "none"]
    exactness: Exactness
    changes: Callable[[Sizing], Mapping[str, Value]]
    """The switches it sets; the first is the one it is about: without that one it does not apply."""
    published: str = ""
    """What the articles measured, on their machine."""

    def card(self) -> str:
        """The card's text, in Markdown."""
        return (Path(__file__).parent / "cards" / f"{self.name}.md").read_text(encoding="utf-8")


def _always(**changes: Value) -> Callable[[Sizing], Mapping[str, Value]]:
    return lambda sizes: changes


def _amp(sizes: Sizing) -> Mapping[str, Value]:
    return {"amp": sizes.amp, "batch_size": sizes.largest_batch}


def _data_loading(sizes: Sizing) -> Mapping[str, Value]:
    changes: dict[str, Value] = {"workers": sizes.workers, "persistent_workers": True, "prefetch_factor": 4}
    return changes | ({"cpu_threads": sizes.threads} if sizes.share_cores else {})


_V100 = "V100-SXM2-16GB, PyTorch 2.0"

_TABLE = (
    Optimization("baseline", "baseline", "How fast is the plain loop, and where does its time go?",
        "none", "bitwise", lambda sizes: {"batch_size": sizes.batch_size},
        f"80 ms a step, 400 samples/s, GPU 31.65% busy ({_V100})"),
    Optimization("data_loading", "data loading",
        "Does the model wait for data, and do loader workers end that?",
        "data", "bitwise", _data_loading,
        f"37 ms a step, 865 samples/s, GPU 72.81% busy, 8 workers ({_V100})"),
    Optimization("pinning", "pinning", "Can the copy to the device overlap with the computation?",
        "data", "bitwise", _always(pin_memory=True, non_blocking=True),
        f"26.7 ms a step, 1,200 samples/s, GPU 92.37% busy ({_V100})"),
    Optimization("batch_size", "batch size", "Does a larger batch use the device better?",
        "device", "changes training", lambda sizes: {"batch_size": sizes.large_batch},
        f"batch 512: 324 ms a step, 1,584 samples/s, memory 1 → 11.3 GB ({_V100})"),
    Optimization("uint8_copy", "uint8 copy", "How much of the copy can be saved by casting on the device?",
        "data", "tolerance", _always(uint8_copy=True),
        f"1,670 samples/s, GPU 97.51% busy ({_V100})"),
    Optimization("zero_grad", "zero_grad", "Does dropping gradients beat zeroing them?",
        "device", "bitwise", _always(zero_grad_set_to_none=True),
        f"no measurable effect ({_V100})"),
    Optimization("device_resize", "resize on device",
        "What if the small images are shipped and enlarged on the device?",
        "data", "tolerance", _always(device_resize=True)),
    Optimization("channels_last", "channels_last",
        "Does the NHWC memory layout suit the convolutions better?",
        "device", "tolerance", _always(channels_last=True)),
    Optimization("amp", "AMP", "What do 16-bit matrix units give?",
        "device", "tolerance", _amp,
        f"fp16, batch 1,024: 2,477 samples/s, Tensor Core time 26.3% ({_V100})"),
    Optimization("compile", "compile", "What do fused kernels and less Python give?",
        "host", "tolerance", _always(compile=True),
        f"3,268 samples/s, +32% ({_V100})"),
    Optimization("amp_fp16", "AMP in fp16", "Does fp16 with gradient scaling serve better than bf16?",
        "device", "tolerance", _always(amp="fp16")),
    Optimization("batched_fetch", "batched fetch",
        "What does fetching one sample at a time through PIL cost?",
        "data", "tolerance", _always(batched_fetch=True)),
    Optimization("device_dataset", "resident data", "What if the whole data set lies on the device?",
        "data", "tolerance",
        _always(device_dataset=True, uint8_copy=True, device_resize=True, workers=0, persistent_workers=False,
                prefetch_factor=2, pin_memory=False, non_blocking=False, device_prefetch=False,
                batched_fetch=False)),
    Optimization("device_prefetch", "device prefetch",
        "Does copying the next batch on a side stream hide the copy?",
        "data", "bitwise", _always(device_prefetch=True, pin_memory=True, non_blocking=True)),
    Optimization("fused_optimizer", "fused optimizer", "What do many small optimizer kernels cost?",
        "host", "tolerance", _always(optimizer_impl="fused")),
    Optimization("tf32", "TF32", "What does float32 with a shorter mantissa give?",
        "device", "tolerance", _always(tf32=True)),
    Optimization("cudnn_benchmark", "cuDNN search",
        "Are cuDNN's default algorithms the best for these shapes?",
        "device", "tolerance", _always(cudnn_benchmark=True)),
    Optimization("max_autotune", "compile, autotuned", "Does a longer search at compile time pay?",
        "device", "tolerance", _always(compile=True, compile_mode="max-autotune")),
    Optimization("cpu_threads", "fewer CPU threads",
        "Do compute threads and loader workers fight for the cores?",
        "host", "tolerance", lambda sizes: {"cpu_threads": sizes.threads}),
    Optimization("accumulation", "accumulation", "What does one optimizer step for several batches save?",
        "device", "changes training", _always(accumulation=4)),
    Optimization("activation_checkpointing", "checkpointing",
        "What does giving activations up cost, and how much memory is won?",
        "device", "tolerance", _always(activation_checkpointing=True)),
    Optimization("cpu_embedding", "embedding on the CPU", "Can the large table stay in host memory?",
        "none", "tolerance", _always(embedding_device="cpu"),
        "a table of 10,000,000 x 150: 5.59 GiB of device memory saved"),
    Optimization("log_every", "reading the loss seldom", "What does looking at the loss cost?",
        "host", "bitwise", _always(log_every=30)),
    Optimization("nvtx_ranges", "named ranges", "What do ranges for Nsight Systems cost?",
        "none", "bitwise", _always(nvtx_ranges=True)),
    Optimization("ranks", "two ranks", "How much faster are several processes that train together?",
        "device", "changes training", _always(ranks=2)),
    Optimization("no_sync", "no_sync", "What is saved by averaging gradients once a step?",
        "host", "changes training", _always(no_sync=True, accumulation=4, ranks=2)),
    Optimization("bucket_cap_mb", "larger buckets", "Do fewer, larger collectives serve better?",
        "host", "changes training", _always(bucket_cap_mb=100, ranks=2)),
    Optimization("gradient_as_bucket_view", "bucket views", "What does one copy of the gradients less give?",
        "device", "changes training", _always(gradient_as_bucket_view=True, ranks=2)),
    Optimization("static_graph", "static graph", "What does DDP save when no step differs from another?",
        "host", "changes training", _always(static_graph=True, ranks=2)),
    Optimization("gradient_compression", "compressed gradients", "Is half the traffic worth the rounding?",
        "device", "changes training", lambda sizes: {"gradient_compression": sizes.amp, "ranks": 2}),
    Optimization("tcp", "TCP instead of RDMA", "What is the fast network between the machines worth?",
        "host", "changes training", _always(infiniband=False, ranks=2)),
)  # fmt: skip

OPTIMIZATIONS = {optimization.name: optimization for optimization in _TABLE}
"""Every optimization by name: the default ladder first, in its order, then the further ones."""
