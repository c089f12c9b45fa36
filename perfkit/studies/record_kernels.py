"""Records the operators of the built-in workloads on a GPU, so that a simulated one takes their times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from msgspec.structs import replace

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import slug
from perfkit.rules import Target, applicable
from perfkit.simulate import recorded
from perfkit.simulate.gpus import GPUS
from perfkit.studies.ladder import ladder_stages
from perfkit.studies.plan import Plan, Watch, plan
from perfkit.studies.setup import prepare
from perfkit.worker.messages import RecordKernels
from perfkit.worker.reports import KernelsRecorded

WORKLOADS = ("cifar_resnet18", "photos")
_TORCH_NAMES = {"NVIDIA H100 80GB HBM3": "h100"}
"""Names by torch that share too few words with the data sheet's."""
_BATCHES = (32, 128, 512, 8, 1024)
"""The most useful first: what lies between two of them is interpolated."""
_WITHOUT_OPERATORS = (
    "workers", "persistent_workers", "prefetch_factor", "infinite_sampler", "batched_fetch", "pin_memory",
    "non_blocking", "device_prefetch", "device_dataset", "log_every", "nvtx_ranges", "compile",
    "compile_mode", "cpu_threads",
)  # fmt: skip
"""Switches that change none of the operators; a compiled model's kernels exist only within it."""


def record_kernels(
    workloads: Sequence[str] = WORKLOADS,
    device: str = "cuda",
    out: str | Path | None = None,
    minutes: float = 9.0,
    **watch: Unpack[Watch],
) -> KernelsRecorded:
    """Times the operators of training steps on a GPU, and writes them into a file for `--device sim:…`.

    Started again with the same file, it goes on where its time was over.

    Args:
        workloads: whose operators.
        device: a CUDA device.
        out: the file; that of the GPU among the recordings if None.
        minutes: for everything.
        watch: `on_progress`, called often, and `cancelled`, an event; see `Watch`.

    Raises:
        InvalidValue: there is no such device, or the file is of another GPU or of other versions.
        PerfkitError: a workload cannot be trained.
    """
    if not device.startswith("cuda"):
        raise InvalidValue(f"kernels cannot be recorded on {device}", "They need a real GPU: --device cuda")
    end, new, complete = time.monotonic() + 60 * minutes, 0, True
    for number, workload in enumerate(workloads):
        with prepare(plan(workload, "paper", device=device), **watch) as setup:
            name = setup.description.facts.name or device
            gpu = simulated_name(name)
            path = Path(out) if out else recorded.folder() / f"{gpu}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            # Each workload has its share of the time that is left.
            seconds = max(0.0, end - time.monotonic()) / (len(workloads) - number)
            command = RecordKernels(
                path=str(path.absolute()), gpu=gpu, seconds=seconds, seed=setup.plan.seed,
                recipes=[recipe.to_dict() for recipe in recipes(setup.plan, setup.target)],
            )  # fmt: skip
            last = setup.child().ask(command)
        new, complete = new + last.new, complete and last.complete
    return replace(last, new=new, complete=complete)


def recipes(plan: Plan, target: Target) -> list[Recipe]:
    """What is recorded, the most useful first: the ladder's recipes, then a grid of what they vary."""
    ladder = [stage.recipe for stage in ladder_stages(plan, target) if not stage.reason]
    grid = [
        Recipe(batch_size=batch, channels_last=layout, amp=amp, fp32_precision=precision)
        for batch in _BATCHES
        for amp, precision in (("off", "ieee"), ("fp16", "ieee"), ("off", "tf32"), ("bf16", "ieee"))
        for layout in (False, True)
    ]
    searched = [recipe.replace(cudnn_benchmark=True) for recipe in grid]
    plain = {name: getattr(Recipe(), name) for name in _WITHOUT_OPERATORS}
    wanted = (applicable(recipe.replace(**plain), target)[0] for recipe in (*ladder, *grid, *searched))
    return list(dict.fromkeys(wanted))


def simulated_name(name: str) -> str:
    """What a GPU is called in `--device sim:NAME`, by torch's name of it; a name of its own if unknown.

    >>> simulated_name("NVIDIA A100-SXM4-80GB"), simulated_name("NVIDIA H200")
    ('a100', 'nvidia-h200')
    """
    words = set(slug(name).split("-"))
    for key, sheet in GPUS.items():
        if _TORCH_NAMES.get(name) == key or set(slug(sheet.name).split("-")) - {"tesla", "nvidia"} <= words:
            return key
    return slug(name)
