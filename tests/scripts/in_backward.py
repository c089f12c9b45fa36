"""As PyTorch's tutorial on optimizer steps in backward: one optimizer for each parameter, run by a hook."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(
    TensorDataset(torch.randn(512, 32), torch.randint(4, (512,))), batch_size=16, shuffle=True
)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for each in model.parameters():
    each.register_post_accumulate_grad_hook(update)

for _epoch in range(1000):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
