"""What a training step takes on a simulated GPU beside a virtual host, and how far off that may be."""

import math
from dataclasses import dataclass
from functools import cached_property

from perfkit.errors import RunFailed
from perfkit.recipe import Recipe
from perfkit.results.run import Simulated
from perfkit.simulate import costs
from perfkit.simulate.costs import Action, constants
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.host import Host, Outcome, Training
from perfkit.simulate.step import Allocate, Copy, Operator, Step
from perfkit.worker.messages import MemoryReport

OUT_OF_MEMORY = "out of memory on the simulated GPU"
"""The kind of that failure: more memory of this machine would not help."""
_CONTEXT = 450 << 20
"""Bytes that CUDA and the libraries' code take before the first tensor; 300 to 500 MiB are usual."""
_WORKSPACE = 256 << 20
"""Bytes for the scratch memory of cuDNN and cuBLAS; assumed."""
_BAND, _COMPILED_BAND = 0.05, 0.25
"""Error of the peak to expect, as a fraction: blocks are counted, not modelled; but what a compiled step
recomputes, and so does not keep, is not known: it may need less."""
_CLAIMS = ("amp", "channels_last", "compile")
"""Switches whose gain has an error of its own; other changes of kernels have that of a rate."""
_ON_THE_HOST = {
    "workers", "prefetch_factor", "scaled_decode", "pin_memory", "non_blocking", "device_prefetch",
    "cpu_threads", "uint8_copy",
}  # fmt: skip
"""Switches that leave the kernels as they are, or nearly so."""


def peak(step: Step) -> tuple[int, int]:
    """The most bytes that tensors hold, as torch's allocator rounds them, and the event after which they do.

    The event is an index; -1 if the step takes no more than it finds.
    """
    now = most = sum(_rounded(block.nbytes) for block in step.resident)
    at = -1
    for index, event in enumerate(step.events):
        if isinstance(event, Allocate):
            now += _rounded(event.nbytes)
            if now > most:
                most, at = now, index
    return most, at


def _rounded(nbytes: int) -> int:
    """To multiples of 512, away from 0."""
    return -(-nbytes // 512) * 512 if nbytes > 0 else nbytes // 512 * 512


@dataclass(frozen=True)
class Prediction:
    """A step of a recipe on a GPU beside a virtual host.

    `fetch_s`: core seconds that a sample takes under the recipe.

    Raises:
        RunFailed: it does not fit into the GPU's memory.
    """

    gpu: Gpu
    step: Step
    recipe: Recipe
    host: Host
    fetch_s: float

    def __post_init__(self) -> None:
        needed = peak(self.step)[0] + _CONTEXT + _WORKSPACE
        if needed > self.gpu.memory_gib * 2**30:
            raise RunFailed(
                f"{OUT_OF_MEMORY}: the step needs {needed / 2**30:.2f} GiB with context and workspaces, and "
                f"a {self.gpu.name} has {self.gpu.memory_gib:.2f} GiB",
                "Lower batch_size or raise accumulation; amp saves memory too",
                OUT_OF_MEMORY,
            )

    @cached_property
    def actions(self) -> list[Action]:
        """What the host does in a step, with the kernels that it launches."""
        return costs.actions(self.step, self.gpu)

    @property
    def kernel_s(self) -> float:
        """Kernel time of a step."""
        return sum(kernel.seconds for _, kernels in self.actions for kernel in kernels)

    @cached_property
    def steady(self) -> Outcome:
        """The training in its steady state."""
        return self.outcome()

    @property
    def kernel_share(self) -> float:
        """Kernel time / step."""
        return self.kernel_s / self.steady.step_s

    def outcome(self, around: Host | None = None, noted: int = 0) -> Outcome:
        """The training in its steady state, on another host if one is given; see `Training.steady`."""
        around = around or self.host
        link_gbs = around.link_gbs or self.gpu.link_gbs
        return Training(around, self.recipe, self.fetch_s, link_gbs).steady(self.actions, noted)

    @property
    def band(self) -> float:
        """The error of samples/s to expect, as a fraction.

        A step of which kernels are a part moves by that part of their error, and by the rest of the host's.
        """
        share = min(1.0, self.kernel_share)
        kernels = math.log1p(self.gpu.band("compiled" if self.step.compiled else "rate")) * share
        return math.expm1(math.hypot(kernels, math.log1p(self.host.band) * (1 - share)))

    def band_of_gain(self, before: "Prediction") -> float:
        """The error of the ratio to another rate to expect, as a fraction.

        What both have in common cancels so far as their kernel shares agree; to the rest comes the error of
        the gain of each switch that changes kernels.
        """
        shares = min(1.0, before.kernel_share), min(1.0, self.kernel_share)
        differ = abs(shares[0] - shares[1])
        common = [math.log1p(band) * differ for band in (self.gpu.band("rate"), self.host.band)]
        changed = [name for name in before.recipe.diff(self.recipe) if name not in _ON_THE_HOST]
        claims = {name if name in _CLAIMS else "rate" for name in changed}
        gains = [math.log1p(self.gpu.band(claim)) * max(shares) for claim in claims]
        return math.expm1(math.hypot(*common, *gains))

    @property
    def memory_band(self) -> float:
        """The error of the peak to expect, as a fraction."""
        return _COMPILED_BAND if self.step.compiled else _BAND

    def simulated(self) -> Simulated:
        """What a run of it rests on."""
        return Simulated(
            gpu=self.gpu.name, host=self.host.name, model=str(constants().version),
            constants=constants().digest, band=self.band, memory_band=self.memory_band,
            kernel_s=self.kernel_s,
        )  # fmt: skip

    def memory(self) -> MemoryReport:
        """What holds device memory in a step."""
        allocated, at = peak(self.step)
        held = {block.block: (block.kind, block.nbytes) for block in self.step.resident}
        phase = "data"
        for event in self.step.events[: at + 1]:
            match event:
                case Operator():
                    phase = "data" if event.phase in ("copy", "prepare") else event.phase
                case Copy():
                    phase = "data"
                case Allocate() if event.nbytes > 0:
                    held[event.block] = event.kind, event.nbytes
                case Allocate():
                    held.pop(event.block, None)
        note = f"Simulated {self.gpu.name}: no kernel ran. Predicted, ±{self.memory_band:.0%}"
        about = self.recipe.describe()
        return MemoryReport.of(
            held.values(), peak_phase=phase, allocated=allocated, reserved=None, recipe=about, simulated=note
        )
