"""All cores but one are idle, even while the model computes."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_loader(samples=1024):
    def start_worker(number):
        torch.set_num_threads(1)  # workers are many: one thread each

    start_worker(0)
    data = TensorDataset(torch.randn(samples, 512), torch.randint(10, (samples,)))
    return DataLoader(data, batch_size=256, worker_init_fn=start_worker)


def train(epochs=500):
    torch.manual_seed(0)
    loader = make_loader()
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    train()
