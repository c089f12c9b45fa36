"""Autocast on the simulated device gives the shapes that CUDA's gives."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_sums_keep_their_dimensions_and_are_float32() -> None:
    from perfkit.simulate import device

    simulated = device.register()
    x = torch.empty(4, 8, 5, 5, device=simulated, dtype=torch.float16)
    gate = torch.empty(4, 8, 1, 1, device=simulated, dtype=torch.float16, requires_grad=True)
    with torch.autocast(device.NAME, torch.float16):
        assert x.sum((2, 3), keepdim=True).shape == (4, 8, 1, 1)
        assert x.sum((2, 3)).shape == (4, 8)
        assert x.sum((2, 3)).dtype == torch.float32
        assert torch.softmax(x, 1).shape == x.shape
        (x * gate).sum().backward()
    assert gate.grad.shape == gate.shape
