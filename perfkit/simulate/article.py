"""What the ladder's article published, beside predictions. Nothing is fitted to it.

Source: "PyTorch Model Performance Analysis and Optimization" (towardsdatascience.com, 2023): ResNet-18 on
images of 224 × 224, Tesla V100-SXM2-16GB in an Amazon p3.2xlarge, PyTorch 2.0.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from perfkit.results.run import Run
from perfkit.show import sentences, units
from perfkit.show.document import Bullets, Cell, Content, Section, Table

WORKLOAD = "perfkit.workloads.cifar_resnet18:CifarResNet18"
GPU = "v100"
IMAGE_SIZE = 224


class Published(Struct, frozen=True, kw_only=True):
    """A stage of the article; None is what it does not say."""

    stage: str
    """The optimization here."""
    batch_size: int
    samples_per_s: float
    utilization: float | None = None
    """Kernel time / step, 0 to 1."""
    memory_gb: float | None = None
    """10^9 bytes."""


STAGES = (
    # Of these two the article gives the time of a step.
    Published(stage="baseline", batch_size=32, samples_per_s=32 / 0.080, utilization=0.3165),
    Published(stage="data_loading", batch_size=32, samples_per_s=32 / 0.037, utilization=0.7281),
    Published(stage="pinning", batch_size=32, samples_per_s=1200, utilization=0.9237),
    Published(stage="batch_size", batch_size=512, samples_per_s=1584, memory_gb=11.3),
    Published(stage="uint8_copy", batch_size=512, samples_per_s=1670, utilization=0.9751),
    Published(stage="amp", batch_size=1024, samples_per_s=2477),
    Published(stage="compile", batch_size=1024, samples_per_s=3268),
)

LADDER = tuple(stage.stage for stage in STAGES[1:])
"""Its optimizations, in its order; not `set_to_none=True`, which is torch's default, then as now."""

FETCH_SHARES = {
    (): 1.0, ("uint8_copy",): 0.42, ("device_resize",): 0.135, ("uint8_copy", "device_resize"): 0.043,
}  # fmt: skip
"""By switches: CPU time of a sample / that of the plain recipe, for CIFAR-10 at 224 × 224 in one thread (Xeon
at 2.5 GHz, torch 2.15.0, 2026-11); two calls differed by up to a tenth."""

_INCONSISTENCIES = (
    "The article gives 46 ms for the step of pinning; 32 samples at its 1,200 samples/s take 26.7 ms, and "
    "46 ms would be slower than the stage before: the rate is used here.",
    "Its listing of the uint8 copy has batch 1,024 and torch.compile in it, evidently from the end: 512 is "
    "assumed.",
    "Its stage `set_to_none=True` states no figure: it does what PyTorch 2.0 does anyway, and is left out.",
    "Its AMP has no gradient scaling; perfkit's fp16 has.",
)


_COLUMNS = (
    "stage", "predicted samples/s", "published", "error", "gain predicted", "gain published",
    "kernels' share", "published share", "memory", "published memory",
)  # fmt: skip


def is_articles(reference: str, options: Mapping[str, Any]) -> bool:
    """Whether a workload is the article's, at its sizes."""
    return reference == WORKLOAD and options.get("image_size") == IMAGE_SIZE


def published(stage: str) -> Published | None:
    """The article's figures of a stage; None where it has no such stage."""
    return next((figures for figures in STAGES if figures.stage == stage), None)


def sections(runs: Sequence[Run]) -> list[Content]:
    """Predicted beside published; nothing unless GPU, host, workload and batch sizes are the article's."""
    rows: list[list[Cell | str]] = []
    errors: list[float] = []
    before: tuple[float, float] | None = None
    for run in runs:
        figures, rate, known = published(run.stage), run.samples_per_s, run.simulated
        if not (known and rate and figures and known.host == "article" and run.workload == WORKLOAD):
            continue
        if run.device != f"sim:{GPU}" or run.recipe["batch_size"] != figures.batch_size:
            continue
        rates = rate.value, figures.samples_per_s
        gains = [now / then for now, then in zip(rates, before, strict=True)] if before else [None, None]
        before = rates
        errors.append(rates[0] / rates[1] - 1)
        row: list[Cell | str] = [
            sentences.name(run),
            sentences.rate(run, rate),
            Cell(figures.samples_per_s, "{:,.0f}".format),
            Cell(errors[-1], "{:+.0%}".format),
            *(Cell(gain, units.times) for gain in gains),
            *(Cell(share, units.percent) for share in (run.utilization, figures.utilization)),
            Cell(run.peak_memory_bytes, units.size),
            Cell(figures.memory_gb, "{:g} GB".format),
        ]
        rows.append(row)
    if not rows:
        return []
    note = (
        f"Mean error of samples/s {units.percent(statistics.fmean(map(abs, errors)))}, worst "
        f"{max(errors, key=abs):+.0%}, over {len(errors)} stages. A small error of a later stage may be two "
        "that cancel: look at the gains too."
    )
    table = Table(_COLUMNS, rows, "Simulated, beside the article's figures", note)
    return [Section("Predicted beside published", [table, Bullets(_INCONSISTENCIES)])]
