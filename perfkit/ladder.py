"""The optimizations, their order, and the presets: what is changed, one rung at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfkit.errors import one_of
from perfkit.recipe import Recipe, Target, Value, switches, why_not

Exactness = Literal["bitwise", "tolerance", "changes training"]


@dataclass(frozen=True)
class Preset:
    """How much is measured, and at which size."""

    name: str
    batch_size: int
    large_batch: int
    largest_batch: int
    block_samples: int
    """Samples in one measured block; every stage measures the same number."""
    rounds: int
    loss_steps: int
    """First steps of every run; their losses are kept and are those of the exported script."""
    warmup_s: float
    """Warm-up goes on until the step time is steady, at most about this long."""


PRESETS = {
    "smoke": Preset("smoke", 8, 16, 16, block_samples=32, rounds=3, loss_steps=4, warmup_s=1),
    "quick": Preset("quick", 32, 64, 64, block_samples=128, rounds=5, loss_steps=4, warmup_s=4),
    "paper": Preset("paper", 32, 512, 1024, block_samples=10_240, rounds=7, loss_steps=8, warmup_s=20),
}


def preset(name: str | None = None, device: str = "cpu") -> Preset:
    """A preset by name, else by `PERFKIT_PRESET`, else by what the device can bear.

    Raises:
        InvalidValue: no such preset.
    """
    wanted = name or os.environ.get("PERFKIT_PRESET") or ("quick" if device == "cpu" else "paper")
    if wanted not in PRESETS:
        raise one_of(wanted, list(PRESETS), "preset")
    return PRESETS[wanted]


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


def sizing(preset: Preset, target: Target, cores: int) -> Sizing:
    """Sizes for a machine.

    On an accelerator every usable core may load data. On the CPU the model needs the cores itself: one worker
    for every two cores, as more workers than cores are slower than fewer.
    """
    workers = max(1, cores // 2) if target.device == "cpu" else max(1, cores)
    amp = "bf16" if target.bf16 else "fp16"
    threads = max(1, cores - workers) if target.device == "cpu" else cores
    return Sizing(workers, preset.batch_size, preset.large_batch, preset.largest_batch, amp, threads)


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


@dataclass(frozen=True)
class Stage:
    """One rung: the recipe so far plus one optimization."""

    name: str
    title: str
    recipe: Recipe
    reason: str = ""
    """Why it cannot be measured on this machine; empty where it can."""
    not_applied: Mapping[str, str] | None = None
    """Switches of this stage that cannot act here, with the reason, where others of it can."""


def _always(**changes: Value) -> Callable[[Sizing], Mapping[str, Value]]:
    return lambda sizes: changes


def _amp(sizes: Sizing) -> Mapping[str, Value]:
    return {"amp": sizes.amp, "batch_size": sizes.largest_batch}


def _data_loading(sizes: Sizing) -> Mapping[str, Value]:
    changes: dict[str, Value] = {"workers": sizes.workers, "persistent_workers": True, "prefetch_factor": 4}
    return changes | ({"cpu_threads": sizes.threads} if sizes.share_cores else {})


_V100 = "V100-SXM2-16GB, PyTorch 2.0"

OPTIMIZATIONS: dict[str, Optimization] = {
    optimization.name: optimization
    for optimization in (
        Optimization(
            "baseline",
            "baseline",
            "How fast is the plain loop, and where does its time go?",
            "none",
            "bitwise",
            lambda sizes: {"batch_size": sizes.batch_size},
            f"80 ms a step, 400 samples/s, GPU 31.65% busy ({_V100})",
        ),
        Optimization(
            "data_loading",
            "data loading",
            "Does the model wait for data, and do loader workers end that?",
            "data",
            "bitwise",
            _data_loading,
            f"37 ms a step, 865 samples/s, GPU 72.81% busy, 8 workers ({_V100})",
        ),
        Optimization(
            "pinning",
            "pinning",
            "Can the copy to the device overlap with the computation?",
            "data",
            "bitwise",
            _always(pin_memory=True, non_blocking=True),
            f"26.7 ms a step, 1,200 samples/s, GPU 92.37% busy ({_V100})",
        ),
        Optimization(
            "batch_size",
            "batch size",
            "Does a larger batch use the device better?",
            "device",
            "changes training",
            lambda sizes: {"batch_size": sizes.large_batch},
            f"batch 512: 324 ms a step, 1,584 samples/s, memory 1 → 11.3 GB ({_V100})",
        ),
        Optimization(
            "uint8_copy",
            "uint8 copy",
            "How much of the copy can be saved by casting on the device?",
            "data",
            "tolerance",
            _always(uint8_copy=True),
            f"1,670 samples/s, GPU 97.51% busy ({_V100})",
        ),
        Optimization(
            "zero_grad",
            "zero_grad",
            "Does dropping gradients beat zeroing them?",
            "device",
            "bitwise",
            _always(set_to_none=True),
            f"no measurable effect ({_V100})",
        ),
        Optimization(
            "device_resize",
            "resize on device",
            "What if the small images are shipped and enlarged on the device?",
            "data",
            "tolerance",
            _always(device_resize=True),
        ),
        Optimization(
            "channels_last",
            "channels_last",
            "Does the NHWC memory layout suit the convolutions better?",
            "device",
            "tolerance",
            _always(channels_last=True),
        ),
        Optimization(
            "amp",
            "AMP",
            "What do 16-bit matrix units give?",
            "device",
            "tolerance",
            _amp,
            f"fp16, batch 1,024: 2,477 samples/s, Tensor Core time 26.3% ({_V100})",
        ),
        Optimization(
            "compile",
            "compile",
            "What do fused kernels and less Python give?",
            "host",
            "tolerance",
            _always(compile=True),
            f"3,268 samples/s, +32% ({_V100})",
        ),
        Optimization(
            "amp_fp16",
            "AMP in fp16",
            "Does fp16 with gradient scaling serve better than bf16?",
            "device",
            "tolerance",
            _always(amp="fp16"),
        ),
        Optimization(
            "batched_fetch",
            "batched fetch",
            "What does fetching one sample at a time through PIL cost?",
            "data",
            "tolerance",
            _always(batched_fetch=True),
        ),
        Optimization(
            "resident",
            "resident data",
            "What if the whole data set lies on the device?",
            "data",
            "tolerance",
            _always(
                resident=True,
                uint8_copy=True,
                device_resize=True,
                workers=0,
                persistent_workers=False,
                prefetch_factor=2,
                pin_memory=False,
                non_blocking=False,
                device_prefetch=False,
                batched_fetch=False,
            ),
        ),
        Optimization(
            "device_prefetch",
            "device prefetch",
            "Does copying the next batch on a side stream hide the copy?",
            "data",
            "bitwise",
            _always(device_prefetch=True, pin_memory=True, non_blocking=True),
        ),
        Optimization(
            "fused_optimizer",
            "fused optimizer",
            "What do many small optimizer kernels cost?",
            "host",
            "tolerance",
            _always(optimizer_impl="fused"),
        ),
        Optimization(
            "tf32",
            "TF32",
            "What does float32 with a shorter mantissa give?",
            "device",
            "tolerance",
            _always(tf32=True),
        ),
        Optimization(
            "cudnn_benchmark",
            "cuDNN search",
            "Are cuDNN's default algorithms the best for these shapes?",
            "device",
            "tolerance",
            _always(cudnn_benchmark=True),
        ),
        Optimization(
            "max_autotune",
            "compile, autotuned",
            "Does a longer search at compile time pay?",
            "device",
            "tolerance",
            _always(compile=True, compile_mode="max-autotune"),
        ),
        Optimization(
            "cpu_threads",
            "fewer CPU threads",
            "Do compute threads and loader workers fight for the cores?",
            "host",
            "tolerance",
            lambda sizes: {"cpu_threads": sizes.threads},
        ),
        Optimization(
            "accumulation",
            "accumulation",
            "What does one optimizer step for several batches save?",
            "device",
            "changes training",
            _always(accumulation=4),
        ),
    )
}
"""Every optimization by name: the default ladder first, in its order, then the further ones."""


def exactness(recipe: Recipe) -> Exactness:
    """The loosest class among the optimizations whose own switch a recipe has changed."""
    order: list[Exactness] = ["bitwise", "tolerance", "changes training"]
    sizes, changed = Sizing(1, 32, 64, 64, "bf16", 1), recipe.diff(Recipe())
    found = [o.exactness for o in OPTIMIZATIONS.values() if next(iter(o.changes(sizes)), "") in changed]
    return max(found, key=order.index, default="bitwise")


LADDER = tuple(list(OPTIMIZATIONS)[:10])
"""The default ladder: the article's order, with what lies beyond it."""


def optimization(name: str) -> Optimization:
    """An optimization by name.

    Raises:
        InvalidValue: no such optimization.
    """
    if name not in OPTIMIZATIONS:
        raise one_of(name, list(OPTIMIZATIONS), "stage")
    return OPTIMIZATIONS[name]


def rungs(names: Sequence[str]) -> list[Optimization]:
    """The optimizations of a ladder in their order, the baseline first.

    Raises:
        InvalidValue: an unknown optimization.
    """
    return [OPTIMIZATIONS["baseline"], *(optimization(name) for name in names if name != "baseline")]


def below(name: str) -> tuple[str, ...]:
    """The rungs of the default ladder under an optimization; all of them for one that is not in it."""
    return LADDER[1 : LADDER.index(name)] if name in LADDER[1:] else LADDER[1:] if name not in LADDER else ()


def stage(rung: Optimization, before: Recipe, sizes: Sizing, target: Target) -> Stage:
    """One rung on top of a recipe: what it changes on this machine, or why it cannot."""
    changes = {} if rung.name == "baseline" else dict(rung.changes(sizes))
    return _stage(rung, before, before.replace(**changes), target, about=next(iter(changes), ""))


def build(names: Sequence[str], sizes: Sizing, target: Target) -> list[Stage]:
    """The stages of a ladder for a machine, each on top of those before it that can act there.

    Raises:
        InvalidValue: an unknown optimization.
    """
    recipe = Recipe().replace(**dict(OPTIMIZATIONS["baseline"].changes(sizes)))
    stages = []
    for rung in rungs(names):
        stages.append(stage(rung, recipe, sizes, target))
        recipe = stages[-1].recipe
    return stages


def _stage(rung: Optimization, before: Recipe, after: Recipe, target: Target, about: str) -> Stage:
    changed = after.diff(before)
    refused = {name: why for name in changed if (why := why_not(name, after, target))}
    if about in refused or (changed and len(refused) == len(changed)):
        return Stage(rung.name, rung.title, before, reason="; ".join(dict.fromkeys(refused.values())))
    if not changed and rung.name != "baseline":
        return Stage(rung.name, rung.title, before, reason="nothing to change: the recipe has it already")
    kept = {name: switches()[name].default for name in refused}
    return Stage(rung.name, rung.title, after.replace(**kept), not_applied=refused)
