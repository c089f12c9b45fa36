# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solution: the capstone
#
# The ten faults, in the order of the file, and why each costs time. The task: [the capstone](capstone.ipynb).
#
# 1. The loop decodes each photo itself, and makes the loader again in each epoch. Workers that stay decode the next batches while the model trains.
# 2. Pixels are normalised on the host in float64, one sample at a time, and copied as float32. uint8 has a quarter of the bytes; the device converts and normalises a batch at once.
# 3. The model sees 4 samples at a time, sixteen times for a step: the overhead of operators is paid sixteen times.
# 4. `.item()` for every part, twice: on a GPU each one waits for all kernels before it.
# 5. `print` for every part, with `flush`: a system call in the inner loop.
# 6. Accuracy in every step, by a second pass through the model.
# 7. A copy of all weights whenever the loss of a step is the best so far; a criterion made again for each part.
# 8. The optimizer loops over parameters (`foreach=False`), and fills gradients with zeros.
# 9. `set_detect_anomaly(True)`, left on after a search for NaN: it checks every operator of the backward pass.
# 10. Everything is computed in float32, operator by operator. Autocast uses the units for 16 bits, and `torch.compile` fuses normalisation, group norm and ReLU.
#
# Workers, uint8, 16 bits and `torch.compile` are the four levers that the check looks for. On a CPU without 16-bit units, autocast makes this model slower: here it is enabled where there is a GPU, which the check accepts.

# %%
"""capstone.py without its ten faults."""

import io
import os

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

BATCH = 64
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
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), self.labels[index]


def make_model():
    """Three convolutions; without batch norm, so that parts of a batch add up to the batch."""
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3))


def main(epochs=1000):
    dataset, model = Photos(), make_model().to(DEVICE)
    mean, std = (torch.tensor(values, device=DEVICE).view(3, 1, 1) for values in (MEAN, STD))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
    workers = max(1, min(8, os.cpu_count() - 1))
    loader = DataLoader(
        dataset,
        BATCH,
        sampler=order,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=DEVICE == "cuda",
    )

    @torch.compile
    def loss_of(images, labels):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            return nn.functional.cross_entropy(model((images / 255 - mean) / std), labels)

    for epoch in range(epochs):
        for images, labels in loader:
            loss = loss_of(images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__" and "__file__" in globals():
    main()
