"""Workloads with one planted bottleneck each, for the reader to find first, then for the tools.

`Chatty` makes the host wait for the device in every step; `clean=True` does the same work without waiting.
The others spend their time on fetching (`DataBound`), on launching many small operators (`HostBound`) or on a
few large ones (`DeviceBound`). `Recommender` has an embedding that does not fit on many devices.
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
