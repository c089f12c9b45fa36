"""A mirror of the user's folders: what is real in it a script may change, and all else are links.

The folders on the way to it are real, so relative paths lead where they would.
"""

import contextlib
import itertools
import os
import shutil
import time
from collections import deque

_MOST_ENTRIES, _MOST_OF_A_FOLDER = 5000, 1000
_MOST_BYTES, _MOST_OF_A_FILE = 32 << 20, 8 << 20
_MOST_S = 1.0
"""What is copied before the script starts. It stays small, so that training data are read where they are."""
_LEFT_ALONE = {".git", "__pycache__"}


def is_within(place: str, folder: str) -> bool:
    """Whether a place is a folder or below it."""
    return place == folder or place.startswith(folder.rstrip(os.sep) + os.sep)


def unfold(mirror: str, place: str) -> None:
    """Makes all folders of a path in the mirror real, with links to what the user's folders hold."""
    here, real = mirror, os.sep
    for name in ["", *os.path.relpath(place, mirror).split(os.sep)]:
        here = os.path.join(here, name)
        is_link = os.path.islink(here)
        real = os.path.realpath(here) if is_link else os.path.join(real, name)
        is_real = os.path.exists(here) and not is_link
        if is_real or not os.path.isdir(real) or is_within(real, mirror):
            continue
        if is_link:
            os.unlink(here)
        os.mkdir(here)
        with contextlib.suppress(OSError):  # it may not be listed
            for entry in os.listdir(real):
                os.symlink(os.path.join(real, entry), os.path.join(here, entry))


def fill(mirror: str, place: str) -> None:
    """Makes small folders below a real one real, and small files copies of their own.

    Other programs, and libraries in C or Rust, change those without asking; modules find themselves in the
    mirror. A large folder stays a link as a whole, since those who walk through folders do not follow links.
    So do other file systems, and Git's folder, in which a commit of the mirror would end.
    """
    waiting, left, bytes_left = deque([place]), _MOST_ENTRIES, _MOST_BYTES
    until = time.monotonic() + _MOST_S
    while waiting:
        for entry in sorted(os.scandir(waiting.popleft()), key=lambda entry: entry.name):
            if time.monotonic() > until:
                return
            real = os.readlink(entry.path) if entry.is_symlink() else ""
            if entry.name in _LEFT_ALONE or os.path.islink(real) or not os.path.exists(real):
                continue
            if entry.is_file() and entry.stat().st_size <= min(bytes_left, _MOST_OF_A_FILE):
                bytes_left -= entry.stat().st_size
                with contextlib.suppress(OSError):  # it may not be read
                    replace_by_copy(entry.path)
            elif entry.is_dir() and not os.path.ismount(real):
                count = _count(real, min(left, _MOST_OF_A_FOLDER))
                if count < min(left, _MOST_OF_A_FOLDER):
                    left -= count
                    unfold(mirror, entry.path)
                    waiting.append(entry.path)


def _count(folder: str, most: int) -> int:
    """The entries at all depths of a folder, as far as `most`, which stands for a folder that is not read."""
    count, waiting = 0, [folder]
    try:
        while waiting and count < most:
            with os.scandir(waiting.pop()) as entries:
                for entry in itertools.islice(entries, most - count):
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    except OSError:
        return most
    return count


def replace_by_copy(link: str) -> None:
    """Puts a copy of the file in the place of a link to it."""
    copy = f"{link}.perfkit-copy"
    shutil.copy2(link, copy)
    os.replace(copy, link)
