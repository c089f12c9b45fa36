"""Each of the first eight steps takes seconds. Then the compiled model is as slow as if it were not compiled."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
        self.samples = 0

    def forward(self, inputs):
        self.samples += len(inputs)
        return self.layers(inputs)


def train(steps=500):
    torch.manual_seed(0)
    model = Model()
    step_model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        inputs, targets = torch.randn(64, 64), torch.randint(10, (64,))
        loss = F.cross_entropy(step_model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    print(f"{model.samples} samples seen")
    return losses


if __name__ == "__main__":
    train()
