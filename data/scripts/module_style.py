"""Trains a classifier of signals with a module of hooks and a `Trainer` that calls them, both in this file.

    python module_style.py --epochs 20

It is built as scripts for Lightning are, without that package. The signals are computed as they are needed.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """Noisy oscillations: each is filtered and normalised again in every epoch."""

    def __init__(self, count, length, seed):
        self.count, self.length, self.seed = count, length, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = np.random.default_rng([self.seed, index])
        time = np.linspace(0, 1, self.length)
        signal = np.sin(2 * np.pi * (4 + 3 * (index % 4)) * time) + random.normal(0, 1, self.length)
        spectrum = np.fft.rfft(signal)
        spectrum[self.length // 8 :] = 0
        filtered = np.fft.irfft(spectrum, self.length)
        filtered = (filtered - filtered.mean()) / filtered.std()
        return torch.tensor(filtered[None], dtype=torch.float32), index % 4


class DataModule:
    def __init__(self, batch_size, signals, length):
        self.batch_size, self.signals, self.length = batch_size, signals, length

    def train_dataloader(self):
        return DataLoader(Signals(self.signals, self.length, seed=1), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(Signals(self.signals // 8, self.length, seed=2), batch_size=self.batch_size)


class Module(nn.Module):
    """What a user writes: the steps and the optimizer. `log` keeps the values of an epoch."""

    def __init__(self):
        super().__init__()
        self.logged = {}

    def log(self, name, value):
        self.logged.setdefault(name, []).append(value.item())


class Classifier(Module):
    def __init__(self, width=48, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 9, stride=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 9, stride=2), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.Conv1d(2 * width, 2 * width, 9, stride=2), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, 4),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Trainer:
    """Calls the hooks: batches to the device, a closure for the optimizer, validation after each epoch."""

    def __init__(self, max_epochs):
        self.max_epochs = max_epochs
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def fit(self, module, data):
        module.to(self.device)
        optimizer, train, validation = module.configure_optimizers(), data.train_dataloader(), data.val_dataloader()
        for epoch in range(self.max_epochs):
            module.train()
            for index, batch in enumerate(train):
                batch = [part.to(self.device) for part in batch]

                def closure(batch=batch, index=index):
                    optimizer.zero_grad(set_to_none=False)
                    loss = module.training_step(batch, index)
                    loss.backward()
                    return loss

                optimizer.step(closure)
            self.validate(module, validation)
            means = {name: f"{np.mean(values):.4f}" for name, values in module.logged.items()}
            module.logged.clear()
            print(f"epoch {epoch}", means, flush=True)

    @torch.no_grad()
    def validate(self, module, loader):
        module.eval()
        for index, batch in enumerate(loader):
            module.validation_step([part.to(self.device) for part in batch], index)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--signals", type=int, default=1024)
    parser.add_argument("--length", type=int, default=512)
    given = parser.parse_args()
    torch.manual_seed(0)
    Trainer(max_epochs=given.epochs).fit(Classifier(), DataModule(given.batch_size, given.signals, given.length))


if __name__ == "__main__":
    main()
