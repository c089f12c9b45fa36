"""As the SAM optimizer in the wild: two passes a step; the weights move before the inner optimizer's step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, inner, **options):
        super().__init__(parameters, options)
        self.inner = inner(self.param_groups, **options)

    @torch.no_grad()
    def first_step(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["old"] = parameter.data.clone()
            parameter.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data = self.state[parameter]["old"]
        self.inner.step()
        self.zero_grad()


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(512, 32), torch.randint(4, (512,))), batch_size=16)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
for _epoch in range(1000):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.first_step()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.second_step()
