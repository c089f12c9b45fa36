"""The data set has grown. Since then every single image takes longer to fetch, and all of them are in memory."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        self.images = torch.randint(256, (256, 3, 32, 32), dtype=torch.uint8)
        self.labels = torch.randint(10, (256,))

    @property
    def normalized(self):
        return (self.images / 255 - 0.5) / 0.5

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.normalized[index], self.labels[index]


def train(epochs=50):
    torch.manual_seed(0)
    loader = DataLoader(Images(), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    train()
