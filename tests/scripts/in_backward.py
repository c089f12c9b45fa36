"""As PyTorch's tutorial on optimizer steps in backward, a hook for each parameter; on a stream of samples."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(32), torch.randint(4, ())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for each in model.parameters():
    each.register_post_accumulate_grad_hook(update)

for x, y in DataLoader(Stream(), batch_size=16):
    nn.functional.cross_entropy(model(x), y).backward()
