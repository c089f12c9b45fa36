"""How much is measured, at which size: presets by name, and the sizes that follow on a machine."""

import math
import os
from dataclasses import dataclass

from perfkit.errors import one_of
from perfkit.machine import usable_cores
from perfkit.rules import Target


@dataclass(frozen=True)
class Preset:
    """How much is measured, and at which size."""

    name: str
    batch_size: int
    large_batch: int
    largest_batch: int
    block_samples: int
    """Samples in one measured block; the same for every stage."""
    rounds: int
    loss_steps: int
    """The losses of the first steps of every run are kept; the exported script gives the same ones."""
    warmup_s: float
    """Warm-up ends once the step time is steady, or after about this long."""
    queues: int = 2
    """Minimum length of a block on a CPU, in fillings of the loader's queue: in a shorter one the batches
    that were queued before it would decide the result. 0 in a smoke test, which gives no verdict."""
    block_s: float = 0.0
    """Minimum length of a block in seconds, judged by the steps of the warm-up."""
    precision: float = 0.05
    """Rounds go on until half the width of every interval / ratio is at most this …"""
    part: float = 0.15
    """… or this part of the effect, which is clear then: nobody need wait to see it better …"""
    budget_s: float = 0.0
    """… or until they have taken this many seconds for each stage …"""
    limit_s: float = math.inf
    """… or the whole ladder this many."""


MOST_WORKERS = 16
"""Of a stage beside an accelerator; `tune` tries more."""

PRESETS = {
    "smoke": Preset("smoke", 8, 16, 16, block_samples=16, rounds=3, loss_steps=4, warmup_s=0.5, queues=0),
    "quick": Preset("quick", 32, 64, 64, block_samples=128, rounds=5, loss_steps=4, warmup_s=4, block_s=1,
                    budget_s=60, limit_s=320),
    "paper": Preset("paper", 32, 512, 1024, block_samples=2_048, rounds=5, loss_steps=8, warmup_s=10,
                    block_s=1, budget_s=60, limit_s=570),
}  # fmt: skip


def preset(name: str | None = None, device: str = "cpu") -> Preset:
    """A preset by name, else by `PERFKIT_PRESET`, else `paper` on CUDA and `quick` on every other device.

    Raises:
        InvalidValue: no such preset.
    """
    wanted = name or os.environ.get("PERFKIT_PRESET") or ("paper" if device == "cuda" else "quick")
    if wanted not in PRESETS:
        raise one_of(wanted, list(PRESETS), "preset")
    return PRESETS[wanted]


@dataclass(frozen=True)
class Sizing:
    """The values of a ladder that depend on machine and preset; a card refers to one as `"$NAME"`."""

    workers: int
    batch_size: int
    large_batch: int
    largest_batch: int
    amp: str
    threads: int
    """Of a CPU that trains, beside its workers; 0, torch's own choice, beside an accelerator."""
    wait_policy: str = "default"
    """With loader workers: on a CPU that trains, threads that spin at barriers would take their cores."""


def sizing(preset: Preset, target: Target) -> Sizing:
    """Sizes for a machine.

    With an accelerator every usable core may load data, but no more than `MOST_WORKERS`: each one lengthens
    the queue, and with it the blocks. On a CPU the model needs the cores itself: one worker for every two
    cores, because more of them make it slower.
    """
    cores = target.cores or usable_cores()
    workers = max(1, cores // 2 if target.device == "cpu" else min(cores, MOST_WORKERS))
    threads = max(1, cores - workers) if target.device == "cpu" else 0
    # On a simulated GPU, what a published figure vouches for.
    bf16 = target.bf16 and (target.anchored is None or "bfloat16" in target.anchored)
    amp = "bf16" if bf16 else "fp16"
    waiting = "passive" if target.device == "cpu" else "default"
    return Sizing(workers, preset.batch_size, preset.large_batch, preset.largest_batch, amp, threads, waiting)
