"""The file is 1.6 MB. In one epoch the loader reads 800 MB of it."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

FOLDER = tempfile.TemporaryDirectory()
FILE = Path(FOLDER.name) / "images.npy"
np.save(FILE, np.random.default_rng(0).integers(0, 256, (512, 3, 32, 32), dtype=np.uint8))


class Images(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        images = np.load(FILE)
        return torch.from_numpy(images[index]).float() / 255, index % 10


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
