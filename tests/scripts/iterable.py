"""A stream of samples, an `IterableDataset`, which more workers would repeat."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            x = torch.randn(16, generator=generator)
            yield x, x.sum().sign().long().clamp(0)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
for x, y in DataLoader(Stream(), batch_size=8):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
