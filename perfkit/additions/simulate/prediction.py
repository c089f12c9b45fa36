"""Predicts a training step on a simulated GPU with a virtual host, and the error of the prediction."""

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

from msgspec import structs

from perfkit.additions.inside import MemoryReport
from perfkit.additions.simulate import costs
from perfkit.additions.simulate.costs import Action, Gpu, constants
from perfkit.additions.simulate.host import LAUNCHES_BAND, Host, Outcome, SimulatedTraining
from perfkit.additions.simulate.step import Allocate, Copy, OperatorCall, StepEvents
from perfkit.errors import RunFailed
from perfkit.recipe import Recipe
from perfkit.results.schema import Simulated

_CONTEXT = 450 << 20
"""The bytes that CUDA and the libraries' code take before the first tensor; 300 to 500 MiB are usual."""
_WORKSPACE = 256 << 20  # bytes for the scratch memory of cuDNN and cuBLAS; assumed
_BAND, _COMPILED_BAND = 0.05, 0.25
"""The expected error of the peak, as a fraction. Blocks are counted, not modelled; but a compiled step may
need less, because it recomputes some tensors instead of keeping them."""
_CLAIMS = ("amp", "channels_last", "compile")
"""Switches whose gain has its own error; other changes of kernels have the error of a rate."""
_ON_THE_HOST = {
    "workers", "prefetch_factor", "scaled_decode", "pin_memory", "non_blocking", "device_prefetch",
    "cpu_threads", "uint8_copy",
}  # fmt: skip
"""Switches that leave the kernels unchanged, or nearly so."""


def _rounded(nbytes: int) -> int:
    """Rounded to a multiple of 512, away from 0."""
    return -(-nbytes // 512) * 512 if nbytes > 0 else nbytes // 512 * 512


@dataclass(frozen=True)
class Prediction:
    """A step of a recipe on a GPU with a virtual host; `RunFailed` if it does not fit into its memory.

    `fetch_s` is the core time to fetch a sample under the recipe.
    """

    gpu: Gpu
    step: StepEvents
    recipe: Recipe
    host: Host
    fetch_s: float

    def __post_init__(self) -> None:
        needed_gib = (self.peak[0] + _CONTEXT + _WORKSPACE) / 2**30
        if needed_gib > self.gpu.memory_gib:
            needs = f"the step needs {needed_gib:.2f} GiB with context and workspaces"
            what = f"{needs}, and a {self.gpu.name} has {self.gpu.memory_gib:.2f} GiB"
            remedy = "Lower batch_size or raise accumulation; amp saves memory too"
            raise RunFailed(f"out of memory on the simulated GPU: {what}", remedy)

    @cached_property
    def peak(self) -> tuple[int, int]:
        """The most bytes that tensors hold, as torch's allocator rounds them, and after how many events."""
        first = sum(_rounded(block.nbytes) for block in self.step.resident)
        changes = (_rounded(e.nbytes) if isinstance(e, Allocate) else 0 for e in self.step.events)
        held = [*itertools.accumulate(changes, initial=first)]
        return max(held), held.index(max(held))

    @cached_property
    def actions(self) -> list[Action]:
        """The actions of the host in a step, with the kernels that it launches."""
        return costs.actions(self.step, self.gpu)

    @property
    def kernel_s(self) -> float:
        """The kernel time of a step."""
        return sum(seconds for _, kernels in self.actions for _, seconds in kernels)

    @cached_property
    def steady(self) -> Outcome:
        """The training in its steady state."""
        return self.outcome()

    @property
    def kernel_share(self) -> float:
        """Kernel time / step, at most 1."""
        return min(1.0, self.kernel_s / self.steady.step_s)

    def outcome(self, around: Host | None = None, noted: int = 0) -> Outcome:
        """The training in its steady state (`SimulatedTraining.steady`), or what it would be on another host.

        Operators and launches keep the times of the prediction's own host.
        """
        costs_of = {"operator_s": self.host.operator_s, "launch_s": self.host.launch_s}
        around = structs.replace(around or self.host, **costs_of)
        link_gbs = around.link_gbs or self.gpu.link_gbs
        return SimulatedTraining(around, self.recipe, self.fetch_s, link_gbs).steady(self.actions, noted)

    @cached_property
    def launch_error(self) -> float:
        """The log of how much longer a step takes if launches are as slow as their band allows."""
        longer = 1 + LAUNCHES_BAND
        costs_more = {"operator_s": longer * self.host.operator_s, "launch_s": longer * self.host.launch_s}
        slow = replace(self, host=structs.replace(self.host, **costs_more))
        return math.log(slow.steady.step_s / self.steady.step_s)

    @property
    def band(self) -> float:
        """The expected error of samples/s, as a fraction: of the kernels and the host, by their shares."""
        share = self.kernel_share
        kernels = math.log1p(self.gpu.band("compiled" if self.step.compiled else "rate")) * share
        host = max(math.log1p(self.host.band) * (1 - share), self.launch_error)
        return math.expm1(math.hypot(kernels, host))

    def band_of_gain(self, before: "Prediction") -> float:
        """The expected error of the ratio to a different prediction, as a fraction.

        What both have in common cancels as far as their kernel shares agree. Added to the rest are the error
        of the gain of each switch that changes kernels, and the whole error of launches.
        """
        low, high = sorted((before.kernel_share, self.kernel_share))
        common = [math.log1p(band) * (high - low) for band in (self.gpu.band("rate"), self.host.band)]
        changed = {*before.recipe.diff(self.recipe)} - _ON_THE_HOST
        claims = {name if name in _CLAIMS else "rate" for name in changed}
        gains = [math.log1p(self.gpu.band(claim)) * high for claim in claims]
        return math.expm1(math.hypot(*common, *gains, max(before.launch_error, self.launch_error)))

    @property
    def memory_band(self) -> float:
        """The expected error of the peak, as a fraction."""
        return _COMPILED_BAND if self.step.compiled else _BAND

    def simulated(self) -> Simulated:
        """The facts about the model for a run of this prediction."""
        return Simulated(
            gpu=self.gpu.name,
            host=self.host.name,
            model=str(constants().version),
            constants=constants().digest,
            band=self.band,
            memory_band=self.memory_band,
            kernel_s=self.kernel_s,
        )

    def memory(self) -> MemoryReport:
        """What occupies device memory in a step."""
        allocated, count = self.peak
        events = self.step.events[:count]
        taken = [*self.step.resident, *(event for event in events if isinstance(event, Allocate))]
        held = {block.block: block for block in taken}  # the last state of each block; negative if freed
        steps = (getattr(e, "phase", "copy") for e in reversed(events) if isinstance(e, OperatorCall | Copy))
        phase = next(steps, "copy")
        phase = "data" if phase in ("copy", "prepare") else phase
        blocks = [(block.kind, block.nbytes) for block in held.values() if block.nbytes > 0]
        note = f"Simulated {self.gpu.name}: no kernel ran. Predicted, ±{self.memory_band:.0%}"
        recipe = self.recipe.describe()
        return MemoryReport.of(
            blocks, peak_phase=phase, allocated=allocated, reserved=None, recipe=recipe, simulated=note
        )
