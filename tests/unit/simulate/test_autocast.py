"""Autocast on the simulated device gives the shapes that CUDA's gives."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: the device is registered for good, and before autograd has run.
PROGRAM = """
import torch
from perfkit.simulate import device

simulated = device.register()
x = torch.empty(4, 8, 5, 5, device=simulated, dtype=torch.float16)
gate = torch.empty(4, 8, 1, 1, device=simulated, dtype=torch.float16, requires_grad=True)
with torch.autocast(device.NAME, torch.float16):
    print(*x.sum((2, 3), keepdim=True).shape)
    print(*x.sum((2, 3)).shape, x.sum((2, 3)).dtype)
    print(*torch.softmax(x, 1).shape)
    (x * gate).sum().backward()
print(*gate.grad.shape)
"""


def test_sums_keep_their_dimensions_and_are_float32() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    shapes = ["4 8 1 1", "4 8 torch.float32", "4 8 5 5", "4 8 1 1"]
    assert done.stdout.splitlines() == shapes, done.stderr[-1000:]
