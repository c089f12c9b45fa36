"""Started with `python -m parcel.train --batch-size 8`; the loader is made in another module."""

import argparse

import torch
from torch import nn

from parcel.data import make_loader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    model, loader = Net(), make_loader(args.batch_size)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _epoch in range(1000):
        train(model, loader, optimizer)


if __name__ == "__main__":
    main()
