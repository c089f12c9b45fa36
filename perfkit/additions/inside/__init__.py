"""What is inside a step: the memory it holds, kernels by shape, hidden copies and waits.

`step` and `syncs` run in the measured process; `looks` asks for their reports, which are defined here, and
shows them. `loop` times the steps of a notebook's own cell.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

COMMANDS = {"memory": ("perfkit.additions.inside.looks:memory_command", "What holds memory during a step")}
PUBLIC = {
    "detect_syncs": "perfkit.additions.inside.syncs:detect_syncs",
    "load_ipython_extension": "perfkit.additions.inside.panel:load_ipython_extension",
}
NOTEBOOK = {name: f"perfkit.additions.inside.panel:{name}" for name in ("kernels", "memory")}

MEMORY, KERNELS = "perfkit.additions.inside.step:memory", "perfkit.additions.inside.step:kernels"
SYNCS = "perfkit.additions.inside.syncs:syncs"  # questions to a training (see `Procedures.answer`)

KINDS = ("weights", "gradients", "optimizer", "batch", "activations", "workspace")


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The memory held in a training step; sizes in bytes.

    `parts` are the sizes at the peak by kind; `allocated` and `reserved` are the allocator's own peaks (CUDA
    only). `simulated` is what the numbers of a simulated GPU are based on.
    """

    peak: int
    peak_phase: str
    parts: dict[str, int]
    allocated: int | None
    reserved: int | None
    recipe: str
    simulated: str = ""

    @classmethod
    def of(cls, held: Iterable[Sequence[Any]], **fields: Any) -> "MemoryReport":
        """A report from the kind and size of each block that is held at the peak."""
        parts = dict.fromkeys(KINDS, 0)
        for kind, size in held:
            parts[kind] += size
        return cls(peak=sum(parts.values()), parts=parts, **fields)


class ShapeTiming(msgspec.Struct, frozen=True):
    """The timing of a matrix product, `m x k x n`."""

    shape: str
    dtype: str
    seconds: float
    flops_per_s: float
    flops_per_byte: float


class KernelReport(msgspec.Struct, frozen=True, kw_only=True):
    """Measured roofs of a device (`peaks` in FLOP/s by type), timings by shape, and the work of a step.

    `flops` are those of products and convolutions; None if they cannot be counted. `dtype` is the fastest
    format that the step computes in (`tf32` for convolutions on most GPUs), so no share can exceed its peak.
    """

    peaks: dict[str, float]
    bytes_per_s: float
    rows: list[ShapeTiming]
    flops: int | None
    dtype: str
    step_s: float
    recipe: str

    @property
    def mfu(self) -> float | None:
        """FLOP/s of the step / the measured peak of its type; None if either is not known."""
        peak = self.peaks.get(self.dtype)
        return self.flops / peak / self.step_s if self.flops and peak else None


class Place(msgspec.Struct, frozen=True):
    """A line of a program that copies or waits. `kind` is `wait`, `host to device` or `device to host`."""

    call: str
    where: str  # `file:line` of the innermost frame that is not torch's or perfkit's
    kind: str
    fix: str
    count: int


class SyncReport(msgspec.Struct, frozen=True):
    """The copies and waits between host and device in some steps."""

    places: list[Place]
    steps: int
    device: str
