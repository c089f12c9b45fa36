"""What a script that is measured writes: kept within a mirror of its folders, refused elsewhere.

Python announces that it changes a file (`sys.addaudithook`). Then the file in the mirror becomes a copy, more
folders become real, and a path outside is refused in words. What Python does not announce is refused by
`landlock`; where the kernel has none, a warning says so.
"""

import contextlib
import errno
import glob
import itertools
import os
import shutil
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any

from perfkit import registry

clock = time.perf_counter
"""Taken here because this module is imported before any code of the script, which may replace it."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TABLES = {name: frozenset(names) for name, names in registry.toml(__package__, "events").items()}
_EVENTS = _TABLES["file"] | _TABLES["folder"]
_SAID = 16 << 20  # bytes of a copy from which on it is said
_MOST = 1 << 30  # bytes of one from which on it is refused
_MOST_OF_DISK = 0.5  # the part of the free disk from which on it is refused
_PATHS: dict[str, tuple[int, ...]] = dict.fromkeys(_EVENTS, (0,))
_PATHS |= {"os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (1,)}
"""Which of the arguments of an event are paths."""


class Outputs:
    """Sees what this process writes; `scratch` is the root of the mirror.

    `is_guarded`: the kernel refuses what Python does not tell. `more`: a further folder that may be written.
    """

    def __init__(self, scratch: str, is_guarded: bool = True, more: str = "") -> None:
        self._scratch = os.path.realpath(scratch)
        self._is_guarded = is_guarded
        self._thread = threading.local()
        self._lock = threading.RLock()
        release = self._lock.release
        os.register_at_fork(before=self._lock.acquire, after_in_parent=release, after_in_child=release)
        here = os.path.realpath(os.curdir).removeprefix(self._scratch)
        self.writable = [folder for folder in _writable_folders(more) if not is_within(here, folder)]
        """Folders outside of the mirror that every script may change."""
        self.notes: list[str] = []  # what a person is to know of copies

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """While it lasts, what this thread writes is perfkit's own."""
        before = self._is_ignoring()
        self._thread.is_ignored = True
        try:
            yield
        finally:
            self._thread.is_ignored = before

    def _is_ignoring(self) -> bool:
        return getattr(self._thread, "is_ignored", False)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """For `sys.addaudithook`; most events are none of a file."""
        if not self._is_guarded and event in _TABLES["start"]:
            self._before_start(event, args)
        if event not in _EVENTS:
            return
        flags = args[2] if event == "open" and isinstance(args[2], int) else 0
        if event == "open" and not flags & _WRITES:
            return
        for number in _PATHS[event]:
            path = args[number]
            # An open file has none, nor has a database in memory.
            if isinstance(path, str | bytes | os.PathLike) and path != ":memory:":
                self.before(os.fsdecode(path), event, bool(flags & os.O_TRUNC))

    def before(self, path: str, event: str = "open", replaces: bool = True) -> None:
        """Makes room for a write: real folders on the way, and a copy of the file unless it is replaced."""
        if self._is_ignoring():
            return
        place = os.path.abspath(path)
        with self.ignored(), self._lock:
            if not is_within(place, self._scratch):
                if not self._may_write(os.path.realpath(place), event):
                    reason = "a measured script writes only below a copy of its folder: use a relative path"
                    raise PermissionError(errno.EACCES, reason, place)
                return
            unfold(self._scratch, os.path.dirname(place))
            if event in ("os.mkdir", "shutil.rmtree", "os.chdir"):
                unfold(self._scratch, place)
            elif event in _TABLES["file"] and os.path.islink(place) and not os.path.isdir(place):
                if not replaces and os.path.exists(place):
                    self._copy(place)
                else:
                    os.unlink(place)

    def place(self, folder: str) -> str:
        """Where a folder is in the mirror, if it is a real one there, as those are in which files differ."""
        place = self._scratch + os.path.realpath(folder)
        return place if os.path.isdir(place) and os.path.realpath(place) == place else folder

    def _copy(self, link: str) -> None:
        size = os.path.getsize(link)
        name = link.removeprefix(self._scratch)
        if size > min(_MOST, _MOST_OF_DISK * shutil.disk_usage(self._scratch).free):
            reason = f"it is opened for changes, and its copy would take {size >> 20} MB: open it for reading"
            raise PermissionError(
                errno.EACCES, f'{reason} (mode "r"; NumPy\'s memmap begins with "r+")', name
            )
        replace_by_copy(link)
        if size > _SAID:
            self.notes.append(f"{name} was copied ({size >> 20} MB), as the script opens it for changes")

    def _may_write(self, place: str, event: str) -> bool:
        if event == "os.chdir" or any(is_within(place, folder) for folder in self.writable):
            return True
        is_on_the_way = any(is_within(folder, place) for folder in self.writable)
        return event == "os.mkdir" and (is_on_the_way or os.path.isdir(place))

    def _before_start(self, event: str, args: tuple[Any, ...]) -> None:
        command = args[1] if event in ("subprocess.Popen", "os.spawn") else args[0]
        words = command if isinstance(command, list | tuple) else [command]
        given = [os.fsdecode(word) for word in words]
        first = {os.path.basename(word) for word in given[:2]}
        if first & _TABLES["only_read"] or any(name.startswith("python") for name in first):
            return
        if not self._is_ignoring() and _is_by_the_script():
            reason = "on this system a measured script starts no other program, as it could change your files"
            raise PermissionError(errno.EACCES, reason, " ".join(given))


def _is_by_the_script() -> bool:
    from perfkit.process.failures import PACKAGE, is_users  # a script that starts nothing is left as it was

    for frame, _ in traceback.walk_stack(None):
        file = frame.f_code.co_filename
        if is_users(file) or ("-packages" in file and not file.startswith(str(PACKAGE))):
            return is_users(file)
    return False


def _writable_folders(more: str) -> Iterator[str]:
    yield from filter(os.path.isdir, ("/dev", "/proc", "/tmp/nvidia-mps"))
    yield os.path.realpath(tempfile.gettempdir())
    home = os.path.realpath(os.path.expanduser("~"))
    hidden = {place for place in glob.glob(os.path.join(home, ".*")) if os.path.isdir(place)}
    hidden -= {os.path.join(home, name) for name in (".ssh", ".gnupg", ".git", ".aws", ".kube")}
    yield from map(os.path.realpath, (os.path.join(home, ".cache"), *hidden))
    caches = ("_CACHE_DIR", "_CACHE_PATH", "_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
    named = (value for name, value in os.environ.items() if name.endswith(caches))
    yield from (os.path.realpath(value) for value in (*named, more) if value)


# ---------------------------------------------------------------- the mirror

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
    waiting = deque([place])
    left = _MOST_ENTRIES
    bytes_left = _MOST_BYTES
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
