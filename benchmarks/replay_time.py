"""Whether a replay keeps the planned device time: `python -m benchmarks.replay_time` (on a quiet machine).

A step of the article's recipe on a simulated V100 is planned, and replayed on a batch that is on the device
already. The time of a step is then that of the longer of kernels and launches, which an ideal virtual host
gives as well.
"""

from __future__ import annotations

import itertools
import statistics
import time

import torch

from perfkit import workloads
from perfkit.recipe import Recipe
from perfkit.simulate import gpus, host, prediction
from perfkit.simulate.queue import Link
from perfkit.simulate.replay import ON_DEVICE, Replay

OPTIONS = {"image_size": 224, "samples": 2048, "weights": "random"}
BLOCKS, SECONDS = 7, 2.0


def main() -> None:
    """Prints planned and replayed time of a step for two batch sizes."""
    sheet = gpus.gpu("v100")
    workload = workloads.load("cifar_resnet18", OPTIONS)
    for size in (32, 512):
        recipe = Recipe(batch_size=size)
        planned = prediction.predict(sheet, "cifar_resnet18", OPTIONS, recipe).planned
        wanted = host.run(planned.actions, recipe, host.IDEAL, sheet.link_gbs).step_s
        replay = Replay(workload, recipe, planned.actions, Link(12e9, 6e9))
        batches = itertools.repeat(tuple(torch.empty(size, 1, device=ON_DEVICE) for _ in range(2)))
        steps = max(5, int(SECONDS / wanted))
        times = []
        for _ in range(BLOCKS):
            replay.queue.synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                replay.step(batches)
            replay.queue.synchronize()
            times.append((time.perf_counter() - start) / steps)
        off = [value / wanted - 1 for value in times]
        print(
            f"batch {size}: planned {1e3 * wanted:.3f} ms, replayed {1e3 * statistics.median(times):.3f} ms, "
            f"off by {statistics.median(off):+.2%} (blocks from {min(off):+.2%} to {max(off):+.2%})"
        )


if __name__ == "__main__":
    main()
