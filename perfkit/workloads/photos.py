"""A folder of JPEG files, decoded and cropped one by one: a workload that waits for its data.

The files are generated once, always with the same bytes, and decode as slowly as real photos: about 500 × 375
pixels with detail at every scale, 80 KB each. The class of a photo is its dominant colour.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image, ImageDraw
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms import v2

RED, GREEN, BLUE, YELLOW = (200, 60, 50), (60, 150, 70), (60, 90, 190), (210, 180, 70)
COLOURS = [RED, GREEN, BLUE, YELLOW, (140, 70, 160), (70, 170, 180), (30, 30, 30), (230, 230, 230)]


def make_photo(number: int) -> bytes:
    """One JPEG file: noise from coarse to fine over a ground colour, some shapes, grain."""
    random = np.random.default_rng([2024, number])
    ground = COLOURS[number % len(COLOURS)]
    width, height = (500, 375) if random.random() < 0.7 else (375, 500)
    photo = Image.new("RGB", (width, height), ground)
    for cells, share in ((4, 0.35), (12, 0.25), (40, 0.2), (120, 0.15)):
        noise = random.integers(0, 256, (cells * 3 // 4, cells, 3), dtype=np.uint8)
        photo = Image.blend(
            photo, Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR), share
        )
    draw = ImageDraw.Draw(photo)
    for _ in range(12):
        x, y, size = (int(random.integers(limit)) for limit in (width, height, height // 5))
        fill = tuple(part // 2 + int(random.integers(128)) for part in ground)
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape((x - size, y - size // 2, x + size, y + size // 2), fill=fill)
    grain = random.integers(-16, 17, (height, width, 1), dtype=np.int16)
    pixels = np.clip(np.asarray(photo, dtype=np.int16) + grain, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def cache_folder() -> Path:
    """Where generated files are kept: `cache` in `$PERFKIT_DATA`, else in `data`, else in `perfkit-data`."""
    if os.environ.get("PERFKIT_DATA"):
        return Path(os.environ["PERFKIT_DATA"], "cache")
    folders = Path(__file__).resolve().parents
    checkouts = [folder for folder in folders if (folder / "perfkit/workloads").is_dir()]
    for folder in [*checkouts, Path.cwd()]:
        if (folder / "data").is_dir():
            return folder / "data" / "cache"
    return Path.cwd() / "perfkit-data" / "cache"


def photo_files(count: int) -> list[Path]:
    """The photos' files; missing or damaged ones are generated first.

    The list of digests is written last: without it a folder is unfinished, and a file that differs from it is
    damaged. Every file is written atomically, so two processes may do this at once.

    Raises:
        RuntimeError: the folder cannot be written.
    """
    folder = cache_folder() / f"photos-{count}"
    listing = folder / "digests.json"
    digests = read_digests(listing)
    files = [folder / f"{number:04d}.jpg" for number in range(count)]
    damaged = [number for number, file in enumerate(files) if digest(file) != digests.get(file.name)]
    try:
        for number in damaged:
            write_in_one_go(files[number], make_photo(number))
            digests[files[number].name] = digest(files[number])
        if damaged:
            write_in_one_go(listing, json.dumps(digests, indent=1, sort_keys=True).encode())
    except OSError as problem:
        raise RuntimeError(
            f"the photos cannot be written to {folder}: {problem.strerror or problem}. "
            "Free some space there, or set PERFKIT_DATA to a folder that can be written"
        ) from problem
    return files


def read_digests(listing: Path) -> dict[str, str]:
    """Digests by file name; empty if the list is missing or damaged."""
    try:
        found = json.loads(listing.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def digest(file: Path) -> str:
    """The SHA-256 of a file, or "unreadable"."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


def write_in_one_go(file: Path, content: bytes) -> None:
    """Writes beside the file, then renames: no reader ever sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


class PhotoFolder(Dataset[Any]):
    """Photos with their classes, one at a time, through PIL; an epoch goes through the folder many times.

    How a photo is cropped depends on the seed, its index and the epoch, not on the process that loads it: so
    more workers change nothing but the speed.
    """

    def __init__(self, count: int, rounds: int, augment: Any, convert: Any) -> None:
        self.files = [str(file) for file in photo_files(count)] * rounds
        self.labels = [number % len(COLOURS) for number in range(count)] * rounds
        self.augment = augment
        self.convert = convert
        self.seed = torch.initial_seed()
        self.visits = torch.zeros(len(self), dtype=torch.int64).share_memory_()  # shared by all workers

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        photo = Image.open(self.files[index]).convert("RGB")
        return self.convert(self.cropped(photo, index)), self.labels[index]

    def cropped(self, photo: Any, index: int) -> Any:
        """The photo, cropped and flipped at random."""
        visit = int(self.visits[index])
        self.visits[index] = visit + 1
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed((self.seed + visit * len(self) + index) % 2**63)
            return self.augment(photo)


class BatchedPhotoFolder(PhotoFolder):
    """The same photos, a whole batch at a time, decoded to tensors without PIL."""

    def __getitems__(self, indices: list[int]) -> Any:
        photos = [self.cropped(decode_jpeg(read_file(self.files[index])), index) for index in indices]
        return self.convert(torch.stack(photos)), torch.tensor([self.labels[index] for index in indices])


class Photos:
    """A small convolutional net on photos: most of a step goes to reading, decoding and cropping.

    It offers no `device_resize`: photos of different sizes form a batch only after the crop.

    Args:
        image_size: side of the images the model sees.
        count: photos in the folder.
        rounds: how often an epoch goes through the folder. Workers start each epoch with an empty queue,
            which would dominate epochs of a few steps; real data sets have thousands.
    """

    offers = frozenset({"uint8_copy", "batched_fetch"})
    presets = {
        "smoke": {"image_size": 48, "count": 48},
        "quick": {"image_size": 96, "count": 256},
        "paper": {"image_size": 224, "count": 512},
    }

    def __init__(self, image_size: int = 224, count: int = 512, rounds: int = 40) -> None:
        self.image_size = image_size
        self.count = count
        self.rounds = rounds

    def dataset(self, recipe: Any) -> Any:
        """The folder, with the transforms on the host."""
        if recipe.batched_fetch:
            augment = v2.Compose([v2.RandomResizedCrop(self.image_size), v2.RandomHorizontalFlip()])
            return BatchedPhotoFolder(self.count, self.rounds, augment, self.batch_conversion(recipe))
        augment = T.Compose([T.RandomResizedCrop(self.image_size), T.RandomHorizontalFlip()])
        return PhotoFolder(self.count, self.rounds, augment, self.conversion(recipe))

    def conversion(self, recipe: Any) -> Any:
        """From a PIL image to what is copied to the device."""
        if recipe.uint8_copy:
            return T.PILToTensor()
        return T.Compose([T.ToTensor(), T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])

    def batch_conversion(self, recipe: Any) -> Any:
        """From a batch, uint8[N, 3, H, W], to what is copied to the device."""
        if recipe.uint8_copy:
            return v2.Identity()
        return v2.Compose(
            [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
        )

    def prepare(self, images: torch.Tensor, recipe: Any) -> torch.Tensor:
        """The transforms on the device."""
        if recipe.uint8_copy:
            images = (images.to(torch.float32) / 255 - 0.5) / 0.5
        return images

    def model(self) -> nn.Module:
        """Six convolutions, each with batch norm, then one linear layer."""
        layers: list[nn.Module] = []
        channels = 3
        for width, stride in ((16, 2), (32, 1), (32, 2), (64, 2), (64, 1), (128, 2)):
            layers.append(nn.Conv2d(channels, width, 3, stride, padding=1, bias=False))
            layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            channels = width
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, len(COLOURS))
        )

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy."""
        return functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, **implementation: Any) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, **implementation)
