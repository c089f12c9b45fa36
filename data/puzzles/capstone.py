"""Trains a classifier of small photos. It learns, and it is several times as slow as it has to be.

    python capstone.py

Nothing is downloaded: the JPEG files are drawn when it starts. They stand for a million, which no memory holds
once they are decoded. To count as the same training, each step of the optimizer has to see the same 64 photos in
the same order, and lead to the same loss.
"""

import copy
import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

BATCH, PART = 64, 4  # samples of an optimizer step, and of what the model sees at a time
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photos(Dataset):
    """JPEG files in memory; the label is the dominant colour."""

    def __init__(self, count=512, seed=1):
        self.files, self.labels = [], []
        random = np.random.default_rng(seed)
        for number in range(count):
            coarse = random.integers(0, 200, (6, 8, 3), dtype=np.uint8)
            coarse[..., number % 3] += 55
            file = io.BytesIO()
            Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())
            self.labels.append(number % 3)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        image = image.resize((48, 48), Image.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.float64) / 255
        pixels = (pixels - np.array(MEAN)) / np.array(STD)
        return torch.tensor(pixels.transpose(2, 0, 1), dtype=torch.float32), self.labels[index]


def make_model():
    """Three convolutions; without batch norm, so that parts of a batch add up to the batch."""
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3))


def main(epochs=1000):
    torch.autograd.set_detect_anomaly(True)
    dataset, model = Photos(), make_model().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
    best, best_loss = None, float("inf")
    for epoch in range(epochs):
        loader = DataLoader(dataset, PART, sampler=order, drop_last=True)
        step_loss, right = 0.0, 0
        for number, (images, labels) in enumerate(loader, 1):
            images, labels = images.to(DEVICE), labels.to(DEVICE)
            criterion = nn.CrossEntropyLoss()
            loss = criterion(model(images), labels) * PART / BATCH
            loss.backward()
            step_loss += loss.item()
            print(f"epoch {epoch}, part {number}: {loss.item():.4f}", flush=True)
            if number % (BATCH // PART) == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                with torch.no_grad():
                    right += (model(images).argmax(1) == labels).sum().item()
                if step_loss < best_loss:
                    best, best_loss = copy.deepcopy(model.state_dict()), step_loss
                step_loss = 0.0
        print(f"epoch {epoch}: {right / len(dataset):.1%}, best loss {best_loss:.4f}", flush=True)
    return best


if __name__ == "__main__":
    main()
