"""Final stage against baseline at image size 224, batch 32: ratio with its interval, and pipeline efficiency.

    python benchmarks/cpu_speedup.py [--device cpu]

Target: at least 3 times faster where the CPU has AMX or AVX512-BF16; pipeline efficiency at least 0.95.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from perfkit import machine
from perfkit.ladder.presets import PRESETS
from perfkit.recipe import Recipe
from perfkit.studies import plan as plans
from perfkit.studies.climb import climb


def main() -> None:
    """Measures both, interleaved, and prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    # Found by trying: on two cores a worker takes a core from the model, and compiling gives nothing here.
    final = Recipe(
        batch_size=32, batched_fetch=True, uint8_copy=True, device_resize=True,
        channels_last=True, amp="bf16", optimizer_impl="fused",
    )  # fmt: skip
    plan = plans.plan("cifar_resnet18", "quick", device=device, options={"image_size": 224})
    size = replace(PRESETS["quick"], block_samples=64, warmup_s=15)
    plan = replace(plan, preset=size, recipes=(("baseline", Recipe(batch_size=32)), ("final", final)))
    baseline, last = climb(plan)
    for run in (baseline, last):
        if run.status != "ok":
            raise SystemExit(f"{run.title}: {run.reason}")
    ratio = last.speedup("baseline")
    assert ratio
    print(machine.describe(baseline.machine))
    print(f"bf16 instructions: {machine.facts()['cpu']['flags']}")
    rates = [run.samples_per_s.value for run in (baseline, last) if run.samples_per_s]
    print(f"baseline {rates[0]:.1f} samples/s, final {rates[1]:.1f} samples/s")
    print(f"final / baseline: {ratio.ratio:.2f}x ({ratio.low:.2f}-{ratio.high:.2f}), {ratio.verdict}")
    print(f"pipeline efficiency of the final stage: {last.pipeline_efficiency:.3f}")


if __name__ == "__main__":
    main()
