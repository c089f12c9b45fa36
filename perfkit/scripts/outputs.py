"""What a script that is measured writes: kept within a mirror of its folder (`scratch`), refused elsewhere.

In the mirror, folders on the way and those with Python files are real; Python files are copies, so that a
path made from `__file__` leads into the mirror, also by `Path(__file__).resolve()`; all else is linked.
Before the script writes, the folders on the way become real ones, and the file a copy: its writes stay in the
mirror, and all else is read where it is. A path outside cannot be redirected.
"""

import contextlib
import errno
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfkit.errors import InvalidValue

clock = time.perf_counter
"""Taken here because this module is imported before any code of the script, which may replace it."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES_A_FILE = ("open", "os.truncate", "os.chmod", "os.utime", "sqlite3.connect")
_PATHS = {
    **dict.fromkeys((*_CHANGES_A_FILE, "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"), 1),
    **dict.fromkeys(("os.rename", "os.link", "os.symlink"), 2),
}
"""Audit events before something is written, and how many of their arguments are paths."""
_MOST_ENTRIES = 20_000
"""Entries of a folder that are linked; a folder above it with more is left out."""
_MOST_FOLDERS = 500
"""Folders that are searched for Python files, the nearest first."""


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
        if event not in _PATHS:
            return
        flags = args[2] if event == "open" and isinstance(args[2], int) else 0
        if event == "open" and not flags & _WRITES:
            return
        for path in args[: _PATHS[event]]:
            if isinstance(path, str | bytes | os.PathLike):
                self.before(os.fsdecode(path), event, bool(flags & os.O_TRUNC))

    def before(self, path: str, event: str = "open", replaces: bool = True) -> None:
        """Something is about to be written; `replaces`: an existing file loses its contents."""
        if self._ignoring:
            return
        with self.ignored():
            place = os.path.abspath(path)
            if _is_within(place, self._scratch):
                self._unfold(place, event, replaces)
            elif not self._may_write(os.path.realpath(place), event):
                reason = (
                    "a script that is measured writes into a copy of its folder; give it a path below that"
                )
                raise PermissionError(errno.EACCES, reason, place)

    def _may_write(self, place: str, event: str) -> bool:
        if any(_is_within(place, folder) for folder in self._allowed) or "__pycache__" in place.split(os.sep):
            return True
        on_the_way = any(_is_within(folder, place) for folder in self._allowed)
        return event == "os.mkdir" and (on_the_way or os.path.isdir(place))

    def _unfold(self, place: str, event: str, replaces: bool) -> None:
        """Makes the folders on the way real, and the file a copy."""
        here = self._scratch
        *folders, last = os.path.relpath(place, self._scratch).split(os.sep)
        for name in folders:
            here = os.path.join(here, name)
            if os.path.islink(here) and os.path.isdir(here):
                make_real(here, os.path.realpath(here))
        file = os.path.join(here, last)
        if not os.path.islink(file):
            return
        if os.path.isdir(file):
            if event in ("os.mkdir", "shutil.rmtree"):
                make_real(file, os.path.realpath(file))
        elif event in _CHANGES_A_FILE:
            target = os.path.realpath(file)
            os.unlink(file)
            if not replaces and os.path.exists(target):
                shutil.copy2(target, file)


def _writable_folders() -> Iterator[str]:
    """Where every script may write: temporary files, devices, caches, hidden folders of the home folder."""
    yield from ("/dev", "/proc", os.path.realpath(tempfile.gettempdir()))
    home = os.path.realpath(os.path.expanduser("~"))
    with contextlib.suppress(OSError):
        yield from (os.path.join(home, name) for name in os.listdir(home) if name.startswith("."))
    yield os.path.join(home, ".cache")
    for name, value in os.environ.items():
        if name.endswith(
            ("_CACHE_DIR", "_CACHE_PATH", "_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
        ):
            yield os.path.realpath(value)


def _is_within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip(os.sep) + os.sep)


def make_real(place: str, folder: str, most: float = math.inf) -> None:
    """Makes a folder, in place of a link, with links to what another one holds; empty if that is too much."""
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    if os.path.islink(place):
        os.unlink(place)
    os.mkdir(place)
    for name in names if len(names) <= most else ():
        os.symlink(os.path.join(folder, name), os.path.join(place, name))


class Mirror:
    """A mirror of the file system as far as it is needed; relative paths lead where they would."""

    def __init__(self, root: Path) -> None:
        make_real(str(root), root.anchor, _MOST_ENTRIES)
        self._root = root.resolve()

    def place(self, path: Path) -> Path:
        """The place of a real path in the mirror."""
        return self._root.joinpath(*path.resolve().parts[1:])

    def add(self, folder: Path) -> Path:
        """Mirrors a folder, with the Python files below it.

        Raises:
            InvalidValue: the folder holds too much to be linked.
        """
        folder = folder.resolve()
        here = self._make(folder)
        if not any(here.iterdir()) and any(folder.iterdir()):
            what = f"{folder} has more than {_MOST_ENTRIES:,} entries, too many to link for a measuring run"
            raise InvalidValue(what, "Start the script from another folder")
        folders = [folder]
        for real in folders:  # the list grows
            folders += _folders(real)[: max(0, _MOST_FOLDERS - len(folders))]
            for source in real.glob("*.py"):
                if source.is_file() and os.access(source, os.R_OK):
                    self.put(source, source.read_bytes())
        return here

    def put(self, path: Path, data: bytes) -> Path:
        """A file of the mirror with this content, in place of the real one; returns its place."""
        path = path.resolve()
        here = self._make(path.parent) / path.name
        here.unlink(missing_ok=True)
        here.write_bytes(data)
        if path.exists():
            shutil.copystat(path, here)
        return here

    def _make(self, folder: Path) -> Path:
        """A real folder in the mirror, with links to what the real one and those above it hold."""
        for real in [*reversed(folder.parents), folder][1:]:
            here = self.place(real)
            if here.is_symlink() or not here.exists():
                make_real(str(here), str(real), _MOST_ENTRIES)
        return self.place(folder)


def _folders(folder: Path) -> list[Path]:
    """The folders below that may hold a project's own Python files."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    names = sorted(entry.name for entry in entries if not entry.name.startswith((".", "__pycache__")))
    # Not Path.exists: it raises for a folder that may not be entered, such as lost+found.
    return [folder / name for name in names if not os.path.exists(folder / name / "pyvenv.cfg")]
