"""What a script that is measured writes: kept within a mirror of its folder (`scratch`), refused elsewhere.

In the mirror the folders on the way are real, and all else is linked: relative paths lead where they would.
Before the script writes, further folders become real, and the file a copy; so does a module before it is
imported: `Path(__file__).resolve()` leads into the mirror. A path outside cannot be redirected.
"""

import contextlib
import errno
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

clock = time.perf_counter
"""Taken here because this module is imported before any code of the script, which may replace it."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES_A_FILE = ("open", "os.truncate", "os.chmod", "os.utime", "sqlite3.connect")
_CHANGES_A_FOLDER = ("mkdir", "remove", "rmdir", "rename", "link", "symlink")
_EVENTS = {*_CHANGES_A_FILE, *(f"os.{name}" for name in _CHANGES_A_FOLDER), "shutil.rmtree"}
"""Audit events before something is written."""


class Outputs:
    """Sees what this process writes; `scratch` is the root of the mirror."""

    def __init__(self, scratch: str) -> None:
        self._scratch = os.path.realpath(scratch)
        self._ignoring = False
        here = os.path.realpath(os.curdir).removeprefix(self._scratch)
        self._allowed = [folder for folder in _writable_folders() if not _is_within(here, folder)]

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """While it lasts, writes are perfkit's own."""
        before, self._ignoring = self._ignoring, True
        try:
            yield
        finally:
            self._ignoring = before

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """For `sys.addaudithook`; most events are none of a file."""
        if event not in _EVENTS:
            return
        flags = args[2] if event == "open" and isinstance(args[2], int) else 0
        if event == "open" and not flags & _WRITES:
            if isinstance(args[0], str) and args[0].endswith(".pyc"):
                self._before_import(args[0])
            return
        for path in args[:1] if event == "open" else args[:2]:
            if isinstance(path, str | bytes | os.PathLike):
                self.before(os.fsdecode(path), event, bool(flags & os.O_TRUNC))

    def before(self, path: str, event: str = "open", replaces: bool = True) -> None:
        """Makes room for a write: real folders on the way, and a copy of the file unless it is replaced."""
        if self._ignoring:
            return
        place = os.path.abspath(path)
        with self.ignored():
            if not _is_within(place, self._scratch):
                if not self._may_write(os.path.realpath(place), event):
                    reason = "a measured script writes below a copy of its folder only: use a relative path"
                    raise PermissionError(errno.EACCES, reason, place)
                return
            unfold(self._scratch, os.path.dirname(place))
            if event in ("os.mkdir", "shutil.rmtree"):
                unfold(self._scratch, place)
            elif event in _CHANGES_A_FILE and os.path.islink(place) and not os.path.isdir(place):
                target = os.path.realpath(place)
                os.unlink(place)
                if not replaces and os.path.exists(target):
                    shutil.copy2(target, place)

    def place(self, folder: str) -> str:
        """Where a folder is in the mirror, if it is a real one there, as those are in which files differ."""
        place = self._scratch + os.path.realpath(folder)
        return place if os.path.isdir(place) and os.path.realpath(place) == place else folder

    def _may_write(self, place: str, event: str) -> bool:
        if any(_is_within(place, folder) for folder in self._allowed):
            return True
        is_on_the_way = any(_is_within(folder, place) for folder in self._allowed)
        return event == "os.mkdir" and (is_on_the_way or os.path.isdir(place))

    def _before_import(self, compiled: str) -> None:
        """Makes a module of the mirror a copy, before Python looks for what it compiled of it."""
        folder, name = os.path.split(compiled)
        source = os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")
        if _is_within(source, self._scratch):
            self.before(source, replaces=False)


def _writable_folders() -> Iterator[str]:
    """Where every script may write: temporary files, devices, caches, hidden folders of the home folder."""
    yield from ("/dev", "/proc", os.path.realpath(tempfile.gettempdir()))
    home = os.path.realpath(os.path.expanduser("~"))
    yield from (os.path.join(home, ".cache"), *glob.glob(os.path.join(home, ".*")))
    caches = ("_CACHE_DIR", "_CACHE_PATH", "_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
    yield from (os.path.realpath(value) for name, value in os.environ.items() if name.endswith(caches))


def _is_within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip(os.sep) + os.sep)


def unfold(scratch: str, place: str) -> None:
    """Makes all folders of a path in the mirror real, with links to what the real ones hold."""
    here, real = scratch, os.sep
    for name in ["", *os.path.relpath(place, scratch).split(os.sep)]:
        here = os.path.join(here, name)
        is_link = os.path.islink(here)
        real = os.path.realpath(here) if is_link else os.path.join(real, name)
        is_real = os.path.exists(here) and not is_link
        if is_real or not os.path.isdir(real) or _is_within(real, scratch):
            continue
        if is_link:
            os.unlink(here)
        os.mkdir(here)
        with contextlib.suppress(OSError):  # it may not be listed
            for entry in os.listdir(real):
                os.symlink(os.path.join(real, entry), os.path.join(here, entry))
