"""What a look inside a training finds, as typed data: memory, kernels, a profile, syncs, parity."""

import msgspec

from perfkit.results.parity import Check


class Judged(msgspec.Struct, frozen=True):
    """What the checks of a puzzle say of an answer."""

    right: bool
    sentence: str
    """Which mistake it is, if it is not right."""
    proofs: list[str] = []
    """What was seen of a right answer."""


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What holds memory in a training step; sizes in bytes."""

    peak: int
    peak_phase: str
    parts: dict[str, int]
    """By kind, at the peak."""
    phases: dict[str, int]
    """The highest of each phase."""
    places: list[tuple[str, str, int]]
    """The largest at the peak: where, kind, size."""
    allocated: int | None
    """The allocator's own peaks (CUDA only)."""
    reserved: int | None
    recipe: str
    """In words."""
    simulated: str = ""
    """Of a simulated GPU: what the numbers rest on, and their error; empty where they were measured."""


class ShapeTiming(msgspec.Struct, frozen=True, kw_only=True):
    """One operation at one shape."""

    shape: str
    kind: str
    dtype: str
    seconds: float
    flops_per_s: float
    flops_per_byte: float


class StepWork(msgspec.Struct, frozen=True):
    """FLOPs (products and convolutions) and bytes (as if no operators were fused) of a step."""

    flops: int | None
    bytes: int | None
    dtype: str
    """The type of its products."""
    why: str = ""
    """Why the counts are not known."""


class MisalignedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer with sizes that do not suit 16-bit matrix units."""

    layer: str
    kind: str
    sizes: list[int]
    padded: list[int]
    more_flops: float
    """FLOPs of the padded layer / those of this one, minus 1."""


class KernelReport(msgspec.Struct, frozen=True, kw_only=True):
    """Measured roofs of a device, timings by shape, and the work of a training step."""

    peaks: dict[str, float]
    """FLOP/s by type."""
    bytes_per_s: float
    rows: list[ShapeTiming]
    work: StepWork
    misaligned: list[MisalignedLayer]
    step_s: float
    mfu: float | None
    """FLOP/s of the step / the measured peak of its type."""
    light_share: float | None
    """The least time of its operators, each at the roof of its FLOPs or of its bytes / the step's."""
    recipe: str
    """In words."""
    device: str
    simulated: str = ""
    """As in a `MemoryReport`."""


class ProfileReport(msgspec.Struct, frozen=True):
    """What the trace file does not hold; seconds on the clock that all processes of a machine share."""

    plain_step_s: float
    """Of a step without the profiler."""
    taken: list[tuple[int, float, float]]
    """Of each batch: its number, when it was requested, when it was received."""
    marks: list[float]
    """The start of each recorded step, and the end of the last."""
    pins: list[float]
    """How long the loader's pin thread took for each batch."""


class Place(msgspec.Struct):
    """One line of a program that copies or waits."""

    call: str
    where: str
    """`file:line` of the innermost frame that is neither torch's nor perfkit's."""
    kind: str
    """`wait`, `host to device`, `device to host`."""
    fix: str
    memory: str = ""
    """`pinned` or `pageable` host memory, of copies."""
    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


ITEM_REMEDY = "read it after the loop, or every N steps: losses can be kept on the device"
TO_HOST_REMEDY = "keep it on the device, or read it every N steps"


def copy_remedy(memory: str, asynchronous: bool) -> str:
    """What to do about a copy to the device, from `pinned` or `pageable` memory."""
    if memory == "pageable":
        return "pin it in the loader (pin_memory), then copy with non_blocking"
    if asynchronous:
        return "it overlaps as it is"
    return "copy with non_blocking: the memory is pinned already"


class SyncReport(msgspec.Struct, frozen=True):
    """Copies and waits between host and device in some steps."""

    places: list[Place]
    steps: int
    device: str
    simulated: str = ""
    """As in a `MemoryReport`."""


class ParityReport(msgspec.Struct, frozen=True):
    """Whether a recipe trains the same as the plain program."""

    checks: list[Check]
    losses: dict[str, list[float]]
    """Of the candidate, and of the plain program in float32 and in float64."""
