"""What is inside a step: what holds its memory, its kernels by shape, its hidden copies and waits.

`step` and `syncs` find it in the measured process, `looks` asks for it and shows it; the reports between the
two are here. `loop` times the steps of a notebook's own cell.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

COMMANDS = {
    "memory": ("perfkit.additions.inside.looks:memory_command", "What holds memory in a training step")
}
PUBLIC = {
    "detect_syncs": "perfkit.additions.inside.syncs:detect_syncs",
    "load_ipython_extension": "perfkit.additions.inside.panel:load_ipython_extension",
}
NOTEBOOK = {name: f"perfkit.additions.inside.panel:{name}" for name in ("kernels", "memory")}

MEMORY, KERNELS = "perfkit.additions.inside.step:memory", "perfkit.additions.inside.step:kernels"
SYNCS = "perfkit.additions.inside.syncs:syncs"
"""Questions to a training; see `Procedures.answer`."""

KINDS = ("weights", "gradients", "optimizer", "batch", "activations", "workspace")


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What holds memory in a training step; sizes in bytes.

    `parts` are those at the peak by kind; `allocated` and `reserved` are the allocator's own peaks (CUDA
    only). `simulated`: what the numbers of a simulated GPU rest on.
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
        """An account of what is held at the peak: of which kind, how many bytes."""
        parts = dict.fromkeys(KINDS, 0)
        for kind, size in held:
            parts[kind] += size
        return cls(peak=sum(parts.values()), parts=parts, **fields)


class ShapeTiming(msgspec.Struct, frozen=True):
    """A product of two matrices, `m x k x n`."""

    shape: str
    dtype: str
    seconds: float
    flops_per_s: float
    flops_per_byte: float


class KernelReport(msgspec.Struct, frozen=True, kw_only=True):
    """Measured roofs of a device (`peaks` in FLOP/s by type), timings by shape, the work of a step.

    `flops` are those of products and convolutions, None where they cannot be counted. `dtype` is the fastest
    format that the step computes in (`tf32` for convolutions on most GPUs): no share can exceed its peak.
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
        """FLOP/s of the step / the measured peak of its type; None where they are not known."""
        peak = self.peaks.get(self.dtype)
        return self.flops / peak / self.step_s if self.flops and peak else None


class Place(msgspec.Struct, frozen=True):
    """One line of a program that copies or waits; `kind`: `wait`, `host to device` or `device to host`."""

    call: str
    where: str  # `file:line` of the innermost frame that is neither torch's nor perfkit's
    kind: str
    fix: str
    count: int


class SyncReport(msgspec.Struct, frozen=True):
    """Copies and waits between host and device in some steps."""

    places: list[Place]
    steps: int
    device: str
