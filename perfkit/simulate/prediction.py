"""What a training step takes on a simulated GPU: its plan, predicted kernels, memory, and the error."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.errors import RunFailed
from perfkit.recipe import Recipe
from perfkit.results.simulated import Simulated
from perfkit.simulate import bands, costs, memory, planning, queue
from perfkit.simulate.constants import constants
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.step import Kernel, Step

OUT_OF_MEMORY = "out of memory on the simulated GPU"
"""The kind of that failure: more memory of this machine would not help."""

PAGEABLE_GBS = 6.0
"""Of copies from pageable memory beside a real host: between 2 and 10 GB/s on machines with such GPUs. This
machine's own copy is part of it, and counts where it takes longer."""


@dataclass(frozen=True)
class Prediction:
    """A step of a recipe on a GPU."""

    gpu: Gpu
    recipe: Recipe
    step: Step
    kernels: list[Kernel]
    planned: queue.Planned

    @property
    def kernel_s(self) -> float:
        """Kernel time of a step."""
        return sum(kernel.seconds for kernel in self.kernels)

    def band(self, step_s: float) -> float:
        """Error of samples/s to expect, as a fraction, where a step takes this long."""
        return bands.of_rate(self.gpu, self.kernel_s / step_s)

    def simulated(self, host: str, step_s: float, copy_s: float | None = None) -> Simulated:
        """What a run of it rests on; a step takes this long, and so do its copies (else: as planned)."""
        return Simulated(
            gpu=self.gpu.name, host=host, model=str(constants().version), constants=constants().digest,
            band=self.band(step_s), memory_band=bands.MEMORY_BAND, anchors=bands.anchors(self.gpu),
            kernel_s=self.kernel_s,
            copy_s=self.planned.copy_s if copy_s is None else copy_s,
            copies_ahead=any(copy.stream for copy in self.planned.copies),
            torch=self.step.torch,
        )  # fmt: skip


def predict(
    gpu: Gpu,
    workload: str,
    options: Mapping[str, Any],
    recipe: Recipe,
    cancelled: threading.Event | None = None,
) -> Prediction:
    """Plans a step and predicts its kernels.

    Args:
        gpu: data sheet.
        workload: `package.module:name`.
        options: all arguments of its constructor.
        recipe: it must be able to act there.
        cancelled: set from any thread to stop planning.

    Raises:
        InvalidValue: a part of the step cannot be simulated.
        RunFailed: it does not fit into the GPU's memory.
    """
    step = planning.plan_step(workload, recipe, options=dict(options), cancelled=cancelled)
    peak = memory.peak(step).allocated
    reserved = memory.reserved(step, int(gpu.memory_gib * 2**30))
    if reserved is None:
        raise _does_not_fit(gpu, peak)
    kernels = costs.kernels(step, gpu)
    values = constants().values
    host = queue.HostCosts(values["host.operator_us"] * 1e-6, values["host.launch_us"] * 1e-6)
    planned = queue.Planned(
        actions=queue.actions(step, kernels, host), link=queue.Link(gpu.link_gbs * 1e9, PAGEABLE_GBS * 1e9),
        peak_bytes=peak, reserved_bytes=reserved,
    )  # fmt: skip
    return Prediction(gpu, recipe, step, kernels, planned)


def _does_not_fit(gpu: Gpu, needed: int) -> RunFailed:
    problem = RunFailed(
        f"{OUT_OF_MEMORY}: the step needs {needed / 2**30:.2f} GiB, and a {gpu.name} has "
        f"{gpu.memory_gib:.2f} GiB",
        "Lower batch_size, or raise accumulation instead; amp and activation_checkpointing save memory too",
    )
    problem.kind = OUT_OF_MEMORY
    return problem
