"""What a script writes: kept within its scratch folder, or refused, or only noted where it is to run on.

The scratch folder mirrors the script's own with links (`process.scratch`). When the script is about to write,
the folders on the way become real ones, with links to what they hold, and a file that it changes a copy: what
it writes stays here, and all else is read where it is. A path outside cannot be redirected: it is refused.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    "open": 1, "os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1, "os.utime": 1,
    "os.rename": 2, "os.link": 2, "os.symlink": 2, "shutil.rmtree": 1, "sqlite3.connect": 1,
}  # fmt: skip
"""Audit events before something is written: how many of their arguments are paths."""
_CACHES = (
    "HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH",
)  # fmt: skip
_MOST = 20


class WriteRefused(PermissionError):
    """A script that is measured was about to write elsewhere; `filename` says where."""


class Outputs:
    """Watches what this process writes.

    Args:
        scratch: the root of the mirror; empty where writes are only noted.
    """

    def __init__(self, scratch: str) -> None:
        self.written: list[str] = []
        """The first paths outside, that it wrote or that were refused."""
        self._scratch = os.path.realpath(scratch) if scratch else ""
        self._busy = False
        self._allowed = tuple(_realpaths())

    def pause(self, own: bool) -> None:
        """While `own`, it is perfkit that writes."""
        self._busy = own

    def watch(self) -> None:
        """Sees every write from now on."""
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        count = _PATHS.get(event)
        if not count or self._busy:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & _WRITES):
            return
        replaces = isinstance(args[-1], int) and bool(args[-1] & os.O_TRUNC)
        for path in args[:count]:
            if isinstance(path, str | bytes | os.PathLike):
                self.before(os.fsdecode(path), event, replaces)

    def before(self, path: str, event: str = "open", replaces: bool = True) -> None:
        """Something is about to be written.

        Args:
            path: where.
            event: as Python names it.
            replaces: whether a file that is there loses its contents.

        Raises:
            WriteRefused: it is outside, and may not be written.
        """
        if self._busy:
            return
        self._busy = True
        try:
            place = os.path.abspath(path)
            if self._scratch and _within(place, self._scratch):
                self._unfold(place, event, replaces)
            elif not self._may_write(os.path.realpath(place), event):
                self._outside(place)
        finally:
            self._busy = False

    def _may_write(self, place: str, event: str) -> bool:
        if event == "os.mkdir" and (
            os.path.isdir(place) or any(_within(folder, place) for folder in self._allowed)
        ):
            return True  # it is there already, or leads to a folder that may be written to
        folder, name = os.path.split(place)
        in_memory = event == "sqlite3.connect" and name == ":memory:"
        compiled = "__pycache__" in (name, os.path.basename(folder))
        return in_memory or compiled or any(_within(place, allowed) for allowed in self._allowed)

    def _outside(self, place: str) -> None:
        if place not in self.written and len(self.written) < _MOST:
            self.written.append(place)
        if self._scratch:
            what = "a script that is measured may write only below its working directory"
            raise WriteRefused(errno.EACCES, what, place)

    def _unfold(self, place: str, event: str, replaces: bool) -> None:
        """Real folders on the way, and a file of its own."""
        so_far = self._scratch
        *folders, last = os.path.relpath(place, self._scratch).split(os.sep)
        for name in folders:
            so_far = os.path.join(so_far, name)
            if os.path.islink(so_far) and os.path.isdir(so_far):
                _make_real(so_far)
        file = os.path.join(so_far, last)
        if not os.path.islink(file):
            return
        if os.path.isdir(file):
            if event in ("os.mkdir", "shutil.rmtree"):
                _make_real(file)
        elif event in ("open", "os.truncate", "os.chmod", "os.utime", "sqlite3.connect"):
            target = os.path.realpath(file)
            os.unlink(file)
            if not replaces and os.path.exists(target):
                shutil.copy2(target, file)


def _realpaths() -> Iterator[str]:
    """Where everything may be written: temporary files, devices, caches, settings of other programs."""
    yield from ("/dev", "/proc", os.path.realpath(tempfile.gettempdir()))
    home = os.path.realpath(os.path.expanduser("~"))
    yield from (os.path.join(home, name) for name in _hidden(home))
    yield from (os.path.realpath(value) for name in _CACHES if (value := os.environ.get(name)))


def _hidden(home: str) -> Iterator[str]:
    yield from (".cache", ".config", ".local", ".triton", ".nv", ".keras", ".matplotlib")
    try:
        yield from (name for name in os.listdir(home) if name.startswith("."))
    except OSError:
        return


def _within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip(os.sep) + os.sep)


def _make_real(link: str) -> None:
    """A real folder in place of a link to one, with links to what that holds."""
    target = os.path.realpath(link)
    names = os.listdir(target)
    os.unlink(link)
    os.mkdir(link)
    for name in names:
        os.symlink(os.path.join(target, name), os.path.join(link, name))
