"""Two workers fetch, and the loop waits for data longer than with none."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def train(steps=500):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 64), torch.randint(10, (512,)))
    loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        inputs, targets = next(iter(loader))
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    train()
