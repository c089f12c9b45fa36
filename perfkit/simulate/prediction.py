"""What a training step takes on a simulated GPU: its kernels, what the host issues, its memory."""

from dataclasses import dataclass
from functools import cached_property

from perfkit.errors import RunFailed
from perfkit.recipe import Recipe
from perfkit.results.run import Simulated
from perfkit.simulate import bands, costs, host
from perfkit.simulate.costs import constants
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.host import Host, Outcome
from perfkit.simulate.queue import Queue
from perfkit.simulate.step import Action, Allocate, Copy, Operator, Step
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
    """A step of a recipe on a GPU beside a virtual host."""

    gpu: Gpu
    recipe: Recipe
    step: Step
    actions: list[Action]
    host: Host
    fetch_s: float
    """Core seconds that a sample takes under the recipe."""

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
        """The training in its steady state, on another host if one is given."""
        values, around = constants().values, around or self.host
        rates = 1e9 * (around.link_gbs or self.gpu.link_gbs), 1e9 * around.pageable_gbs
        queue = Queue(*rates, values["host.operator_us"] * 1e-6, values["host.launch_us"] * 1e-6)
        return host.run(self.actions, self.recipe, around, queue, self.fetch_s, noted)

    @property
    def memory_band(self) -> float:
        """The error of the peak to expect, as a fraction."""
        return _COMPILED_BAND if self.step.compiled else _BAND

    @property
    def band(self) -> float:
        """The error of samples/s to expect, as a fraction."""
        return bands.of_rate(self.gpu, self.host, self.kernel_share, self.step.compiled)

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
        held: dict[int, tuple[str, str, int]] = {
            block.block: (block.kind, block.kind, block.nbytes) for block in self.step.resident
        }
        phase = where = "data"
        for event in self.step.events[: at + 1]:
            match event:
                case Operator():
                    phase = "data" if event.phase in ("copy", "prepare") else event.phase
                    where = event.module or event.phase
                case Copy():
                    phase = where = "data"
                case Allocate() if event.nbytes > 0:
                    held[event.block] = where, event.kind, event.nbytes
                case Allocate():
                    held.pop(event.block, None)
        note = f"Simulated {self.gpu.name}: no kernel ran. Predicted, ±{self.memory_band:.0%}"
        about = self.recipe.describe()
        return MemoryReport.of(
            held.values(), peak_phase=phase, allocated=allocated, reserved=None, recipe=about, simulated=note
        )


def predict(gpu: Gpu, step: Step, recipe: Recipe, around: Host, fetch_s: float) -> Prediction:
    """Predicts the kernels of a planned step.

    Raises:
        RunFailed: it does not fit into the GPU's memory.
    """
    needed = peak(step)[0] + _CONTEXT + _WORKSPACE
    if needed > gpu.memory_gib * 2**30:
        raise RunFailed(
            f"{OUT_OF_MEMORY}: the step needs {needed / 2**30:.2f} GiB with context and workspaces, and a "
            f"{gpu.name} has {gpu.memory_gib:.2f} GiB",
            "Lower batch_size or raise accumulation; amp saves memory too",
            OUT_OF_MEMORY,
        )
    return Prediction(gpu, recipe, step, costs.actions(step, gpu), around, fetch_s)
