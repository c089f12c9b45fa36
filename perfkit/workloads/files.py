"""Files that the built-in workloads train on: photos, which are made on first use, and texts."""

import contextlib
import itertools
import secrets
import shutil
import time
from pathlib import Path

from perfkit.errors import WorkloadError
from perfkit.machine import data_folder, shipped

COLOURS = {
    "black": (30, 30, 30), "blue": (60, 90, 190), "cyan": (70, 170, 180), "green": (60, 150, 70),
    "purple": (140, 70, 160), "red": (200, 60, 50), "white": (230, 230, 230), "yellow": (210, 180, 70),
}  # fmt: skip


def photo_folder(count: int) -> str:
    """The folder with this many photos, by class; made if missing, even by several processes at once."""
    if count < 1:
        raise WorkloadError(f"count={count} photos were asked for", "There must be at least one")
    folder = str(data_folder() / "cache" / f"photo-folder-{count}")
    if Path(folder).is_dir():
        return folder
    _remove_left_behind(Path(folder))
    unfinished = Path(f"{folder}.{secrets.token_hex(4)}")
    try:
        for number, (colour, ground) in zip(range(count), itertools.cycle(COLOURS.items())):
            file = unfinished / colour / f"{number:04d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_photo(file, number, ground)
        unfinished.rename(folder)
    except OSError as problem:
        if not Path(folder).is_dir():  # else another process was faster
            what = f"the photos cannot be written to {folder}: {problem.strerror or problem}"
            remedy = "Free some space there, or set PERFKIT_DATA to a folder that can be written"
            raise WorkloadError(what, remedy) from problem
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _remove_left_behind(folder: Path) -> None:
    """Removes what killed processes left unfinished. Writing photos never takes an hour."""
    for unfinished in folder.parent.glob(f"{folder.name}.*"):
        with contextlib.suppress(OSError):  # another process was faster
            if time.time() - unfinished.stat().st_mtime > 3600:
                shutil.rmtree(unfinished)


def write_photo(file: Path, number: int, ground: tuple[int, int, int]) -> None:
    """Writes the JPEG file of a number, as slow to decode as a real photo: detail at every scale, 80 KB."""
    import numpy as np
    from PIL import Image, ImageDraw

    random = np.random.default_rng([2024, number])
    width, height = (500, 375) if random.random() < 0.7 else (375, 500)
    photo = Image.new("RGB", (width, height), ground)
    for cells, share in ((4, 0.35), (12, 0.25), (40, 0.2), (120, 0.15)):
        noise = Image.fromarray(random.integers(0, 256, (cells * 3 // 4, cells, 3), dtype=np.uint8))
        photo = Image.blend(photo, noise.resize((width, height), Image.Resampling.BILINEAR), share)
    draw = ImageDraw.Draw(photo)
    for _ in range(12):
        x, y, size = (int(random.integers(limit)) for limit in (width, height, height // 5))
        fill = tuple(part // 2 + int(random.integers(128)) for part in ground)
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape((x - size, y - size // 2, x + size, y + size // 2), fill=fill)
    grain = random.integers(-16, 17, (height, width, 1), dtype=np.int16)
    pixels = np.clip(np.asarray(photo, dtype=np.int16) + grain, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=90)


def text_file(name: str) -> str:
    """The path of a text: as it is named, else in the data folder, else the copy that comes with perfkit."""
    for file in (Path(name), data_folder() / name, shipped(name)):
        if file.is_file():
            return str(file.absolute())
    raise WorkloadError(f"there is no text '{name}'", "Name your own text file, or a file in the data folder")
