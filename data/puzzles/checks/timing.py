import torch

from bench import AsyncGpu, require
from judged import proof, seconds_per_step

for kernel_s in (0.004 + torch.rand(()).item() / 100, 0.05 + torch.rand(()).item() / 10):
    gpu = AsyncGpu(kernel_s)
    with gpu.patched():
        measured = seconds_per_step(gpu.step, 20)
    require(isinstance(measured, float), "Return seconds, as a float")
    require(gpu.steps >= 21, f"{gpu.steps} steps were taken: 20 to be timed, and a warm-up before them")
    ratio = measured / kernel_s
    require(
        ratio > 0.9,
        f"A step takes the device {1e3 * kernel_s:.1f} ms and you measured {1e3 * measured:.1f} ms: the clock was read before the device had finished",
    )
    require(
        measured < kernel_s + 0.04,
        f"A step takes the device {1e3 * kernel_s:.1f} ms and you measured {1e3 * measured:.1f} ms: the first step, which takes longer, is in it",
    )
    require(
        ratio < 1.04,
        f"You measured {ratio:.2f} times what a step takes: when the clock starts, the device still works on the warm-up",
    )
    proof(f"measured {1e3 * measured:.2f} ms on a device that takes {1e3 * kernel_s:.2f} ms")
