"""Workloads with one planted bottleneck each, for the reader to find first, then for the tools.

`Chatty` makes the host wait for the device in every step; `clean=True` does the same work without waiting.
The others spend their time on fetching (`DataBound`), on launching many small operators (`HostBound`), on a
few large ones (`DeviceBound`, and `Wide` with one matrix product), on reading and writing memory
(`Pointwise`), or on gradients that no step needs (`Experts`). `Recommender` has an embedding that does not
fit on many devices.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset


class _Images(Dataset[Any]):
    def __init__(self, count: int, size: int, fetch_s: float) -> None:
        self.count, self.size, self.fetch_s = count, size, fetch_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        until = time.perf_counter() + self.fetch_s
        while time.perf_counter() < until:  # keeps a core busy, as decoding does
            pass
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, self.size, self.size, generator=generator), index % 10


class _Seeded:
    """What the workloads have in common."""

    offers = frozenset[str]()
    size, fetch_s = 32, 0.0

    def dataset(self, recipe: Any) -> Any:
        """1,024 made-up images, `float32[3, size, size]`."""
        return _Images(1024, self.size, self.fetch_s)

    def model(self) -> nn.Module:
        """A small conv net."""
        return nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
            nn.Flatten(), nn.Linear(1024, 10),
        )  # fmt: skip

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy."""
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        """SGD with momentum."""
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, **implementation)


class Chatty(_Seeded):
    """Reads values in every step.

    Args:
        clean: does not read them.
    """

    def __init__(self, clean: bool = False) -> None:
        self.clean = clean
        self.history: list[float] = []

    def prepare(self, inputs: torch.Tensor, recipe: Any) -> torch.Tensor:
        """Crops to a size that is computed on the device and then read by the host."""
        if self.clean:
            return inputs[:, :, : inputs.shape[2] - 4, : inputs.shape[3] - 4]
        size = torch.tensor(inputs.shape[2:], device=inputs.device) - 4
        return inputs[:, :, : int(size[0]), : int(size[1])]

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy over the samples that are not outliers."""
        each = nn.functional.cross_entropy(outputs, targets, reduction="none")
        kept = each < 100
        if self.clean:
            return torch.where(kept, each, 0.0).sum() / kept.sum()
        found = each[kept].mean()
        self.history.append(found.item())
        return found


class DataBound(_Seeded):
    """Fetching a sample takes 2 ms of one core."""

    fetch_s = 0.002


class _ManySmall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(120))
        self.head = nn.Linear(48, 10)

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = inputs.mean(3).flatten(1)[:, :48]
        for layer in self.layers:
            hidden = torch.relu(layer(hidden)) / len(self.layers) + hidden
        return self.head(hidden)


class HostBound(_Seeded):
    """Hundreds of tiny operators: the device runs them faster than the host can launch them."""

    def model(self) -> nn.Module:
        """120 small layers."""
        return _ManySmall()


class DeviceBound(_Seeded):
    """Wide convolutions on larger images: the device computes all the time.

    Args:
        size: of the images.
    """

    presets = {"smoke": {"size": 24}, "quick": {"size": 64}, "paper": {"size": 224}}  # noqa: RUF012

    def __init__(self, size: int = 64) -> None:
        self.size = size

    def model(self) -> nn.Module:
        """Three wide convolutions."""
        return nn.Sequential(
            nn.Conv2d(3, 128, 3), nn.ReLU(), nn.Conv2d(128, 128, 3), nn.ReLU(),
            nn.Conv2d(128, 128, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip


class _Clicks(Dataset[Any]):
    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.items = torch.randint(rows, (4096, 20), generator=generator)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index], int(self.items[index].sum()) % 10


class _Ranker(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, width, sparse=True)
        self.head = nn.Sequential(
            nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def forward(self, items: torch.Tensor) -> Any:
        return self.head(self.embedding(items).mean(1))


class Recommender(_Seeded):
    """An embedding of `rows` × `width` float32 and a small net; at `paper` 5.59 GiB, as in the article.

    Args:
        rows: of the table.
        width: of a row.
    """

    offers = frozenset({"embedding_device"})
    presets = {"smoke": {"rows": 1000}, "quick": {"rows": 100_000}, "paper": {"rows": 10_000_000}}  # noqa: RUF012

    def __init__(self, rows: int = 100_000, width: int = 150) -> None:
        self.rows, self.width = rows, width

    def dataset(self, recipe: Any) -> Any:
        """4,096 made-up lists of items, `int64[20]`."""
        return _Clicks(self.rows)

    def model(self) -> nn.Module:
        """Looks up and averages 20 rows, then three linear layers; the table's gradients are sparse."""
        return _Ranker(self.rows, self.width)

    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        """Plain SGD: it takes sparse gradients."""
        return torch.optim.SGD(parameters, lr=0.1, **implementation)


class _Product(nn.Module):
    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.linspace(-1, 1, rows)[:, None])
        self.product = nn.Linear(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = inputs.flatten(1)[:, None, : self.product.in_features] * self.rows
        return self.head(torch.relu(self.product(hidden)).mean(1))


class Wide(_Seeded):
    """One wide matrix product: nothing but the speed of matrix units matters.

    Args:
        width: of the square weight.
        rows: that a sample contributes to the product.
    """

    presets = {  # noqa: RUF012
        "smoke": {"width": 256, "rows": 2}, "quick": {"width": 2048, "rows": 16},
        "paper": {"width": 3072, "rows": 64},
    }  # fmt: skip

    def __init__(self, width: int = 2048, rows: int = 16) -> None:
        self.width, self.rows = width, rows

    def model(self) -> nn.Module:
        """Some multiples of each sample, a square linear layer, a head."""
        return _Product(self.width, self.rows)

    def step_flops(self, batch_size: int) -> int:
        """Floating-point operations of the product and its two gradients in a step."""
        return 3 * 2 * batch_size * self.rows * self.width**2


class _Chain(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, width))
        self.head = nn.Linear(96, 10)

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = inputs.mean(3).flatten(1)[:, :, None] * self.weight
        for _ in range(7):
            hidden = torch.relu(hidden) * 0.9 + 0.1
        return self.head(hidden.mean(2))


class Pointwise(_Seeded):
    """A chain of element-wise operators on large tensors: each one reads and writes all of the memory again.

    Args:
        width: elements that each of a sample's 96 numbers is spread over.
    """

    presets = {"smoke": {"width": 64}, "quick": {"width": 1024}, "paper": {"width": 4096}}  # noqa: RUF012

    def __init__(self, width: int = 1024) -> None:
        self.width = width

    def model(self) -> nn.Module:
        """21 element-wise operators between a product and a mean."""
        return _Chain(self.width)


class _Routed(nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(96, width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: torch.Tensor) -> Any:
        chosen = int(inputs[0, 0, 0, 0].abs() * 997) % len(self.experts)
        return self.head(torch.relu(self.experts[chosen](self.stem(inputs.mean(3).flatten(1)))))


class Experts(_Seeded):
    """Many large layers, of which each batch uses one: the others' gradients stay as `zero_grad` left them.

    Args:
        count: of the layers.
        width: of their square weights.
    """

    presets = {"smoke": {"width": 64}, "quick": {"width": 3584}, "paper": {"width": 8192}}  # noqa: RUF012

    def __init__(self, count: int = 8, width: int = 3584) -> None:
        self.count, self.width = count, width

    def model(self) -> nn.Module:
        """The first sample of a batch decides which expert the batch goes through."""
        return _Routed(self.count, self.width)

    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        """Plain SGD: a gradient of zeros changes nothing, while momentum would go on moving the weight."""
        return torch.optim.SGD(parameters, lr=0.01, **implementation)
