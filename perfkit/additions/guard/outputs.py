"""What a script that is measured writes: kept within a mirror of its folders, refused elsewhere.

Python announces each change of a file (`sys.addaudithook`): the file in the mirror becomes a copy, and a path
outside is refused in words. `landlock` refuses what Python does not announce; without it, a warning says so.
"""

import contextlib
import errno
import glob
import itertools
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from perfkit import lookup
from perfkit.additions.shared import clock  # noqa: F401 - loaded before a script can replace its own
from perfkit.errors import FileProblem

_EVENTS = lookup.toml(__package__, "events")
_PATHS = _EVENTS["file"] | _EVENTS["folder"] | _EVENTS["entry"]
_SHELL = ["/bin/sh", "-c"]  # as `shell=True` and `os.system` start a line
_UP = re.compile(r"(.*/)?\.\.(?=/|\Z)", re.DOTALL)  # a path as far as its last `..`
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SAID = 16 << 20  # a copy of more bytes is reported
_MOST = 1 << 30  # a copy of more bytes is refused
_PRIVATE = (".ssh", ".gnupg", ".git", ".aws", ".kube")  # hidden folders of the home that are not writable
_MOST_OF_DISK = 0.5  # a copy that takes more than this part of the free disk is refused


class Write(NamedTuple):
    """A change that Python announces, by the name of its event."""

    path: str
    event: str = "open"
    keeps_content: bool = False  # of a file


def writes(event: str, args: tuple[Any, ...]) -> list[Write]:
    """The changes of files that an event announces; most events announce none."""
    flags = args[2] if event == "open" and isinstance(args[2], int) else 0
    if event not in _PATHS or (event == "open" and not flags & _WRITES):
        return []
    paths = [_path(event, *(args[number] for number in numbers)) for numbers in _PATHS[event]]
    return [Write(path, event, not flags & os.O_TRUNC) for path in paths if path not in ("", ":memory:")]


def _path(event: str, path: Any, folder: Any = -1) -> str:
    """A path, which may begin at a folder's descriptor; empty for the contents of an open file."""
    if isinstance(path, int):
        return _path_of(path) if event in _EVENTS["attributes"] else ""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    start = _path_of(folder) if isinstance(folder, int) and folder >= 0 else ""
    return os.path.join(start, os.fsdecode(path))


def _path_of(descriptor: int) -> str:
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.path.realpath(f"/proc/self/fd/{descriptor}")


class Outputs:
    """Sees what this process writes; `scratch` is the root of the mirror.

    `is_guarded`: whether the kernel refuses what Python does not announce. `more`: another writable folder.
    """

    def __init__(self, scratch: str, is_guarded: bool = True, more: str = "") -> None:
        self._scratch = os.path.realpath(scratch)
        self._is_guarded = is_guarded
        self._thread = threading.local()
        lock = threading.RLock()
        self._lock = lock
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
        here = os.path.realpath(os.curdir).removeprefix(self._scratch)
        self.writable = [folder for folder in _writable_folders(more) if not is_within(here, folder)]
        """Folders outside of the mirror that every script may change."""
        self.notes: list[str] = []  # remarks on copies, for a person

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """Whatever this thread writes meanwhile is perfkit's own."""
        before = self._is_ignoring()
        self._thread.is_ignored = True
        try:
            yield
        finally:
            self._thread.is_ignored = before

    def _is_ignoring(self) -> bool:
        return getattr(self._thread, "is_ignored", False)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """For `sys.addaudithook`."""
        for write in writes(event, args):
            self.before(write)
        if event in _EVENTS["start"] and not self._is_guarded:
            self._before_start(event, args[_EVENTS["start"][event]])

    def before(self, write: Write) -> None:
        """Makes room for a write in the mirror; refuses it elsewhere."""
        if self._is_ignoring():
            return
        place = os.path.abspath(write.path)
        if up := _UP.match(write.path):  # it leaves the folder that a link leads to
            place = os.path.normpath(os.path.realpath(up[0]) + write.path[up.end() :])
        with self.ignored(), self._lock:
            if is_within(place, self._scratch):
                self.notes += make_room(self._scratch, place, write)
            elif not self._may_write(place, write.event):
                reason = "a measured script writes only below a copy of its folder"
                raise PermissionError(errno.EACCES, f"{reason}: {self._remedy(write.path)}", place)

    def _remedy(self, path: str) -> str:
        if is_within(os.path.abspath(path), self._scratch):
            return f".. leaves that copy through a link, so use {os.path.relpath(path)}"
        name = os.path.relpath(path, os.path.expanduser("~")).split(os.sep)[0]
        if name.startswith(".") and name not in (".", "..", *_PRIVATE):
            return f"hidden folders of the home are writable if they exist, so make ~/{name} first"
        if os.path.isabs(path):
            return "use a relative path"
        return "change back to that folder first (os.chdir)"

    def _before_start(self, event: str, command: Any) -> None:
        given = command if isinstance(command, list | tuple) else [command]
        words = [os.fsdecode(word) for word in given]
        is_harmless = _is_harmless([*_SHELL, *words] if event == "os.system" else words)
        if not (is_harmless or self._is_ignoring()) and _is_by_the_script():
            reason = "on this system a measured script starts no other program, as it could change your files"
            raise PermissionError(errno.EACCES, reason, " ".join(words))

    def place(self, folder: str) -> str:
        """Where to look for a folder: in the mirror if it is real there, as its files may then differ."""
        place = self._scratch + os.path.realpath(folder)
        return place if os.path.isdir(place) and os.path.realpath(place) == place else folder

    def _may_write(self, place: str, event: str) -> bool:
        if event in _EVENTS["entry"]:  # removing or renaming a link changes only the folder that lists it
            place = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
        else:
            place = os.path.realpath(place)
        if event == "os.chdir" or any(is_within(place, folder) for folder in self.writable):
            return True
        is_on_the_way = any(is_within(folder, place) for folder in self.writable)
        return event == "os.mkdir" and (is_on_the_way or os.path.isdir(place))


def _is_harmless(words: list[str]) -> bool:
    """Whether a program changes no files, or is a Python, which stays in the mirror by itself."""
    if words[:2] == _SHELL and len(words) > 2:  # with these characters, its line may do more than start it
        words = [] if re.search(r"[;&|<>()$`\n]", words[2]) else words[2].split()
    program = os.path.basename(words[0]) if words else ""
    if program == "git" and len(words) > 1:
        return words[1] in _EVENTS["git_only_reads"]
    return program in _EVENTS["only_read"] or bool(re.fullmatch(r"python[\w.-]*", program))


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
    hidden -= {os.path.join(home, name) for name in _PRIVATE}
    yield from map(os.path.realpath, (os.path.join(home, ".cache"), *hidden))
    caches = ("_CACHE_DIR", "_CACHE_PATH", "_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
    named = (value for name, value in os.environ.items() if name.endswith(caches))
    yield from (os.path.realpath(value) for value in (*named, more) if value)


_MOST_ENTRIES, _MOST_OF_A_FOLDER = 5000, 1000
_MOST_BYTES, _MOST_OF_A_FILE, _MOST_S = 32 << 20, 8 << 20, 1.0
"""What is copied before the script starts. It stays small, so that training data are read where they are."""
_MOST_LINKS = 100_000  # of one folder: each is made for every process that is started


def is_within(place: str, folder: str) -> bool:
    """Whether a place is a folder or below it."""
    return place == folder or place.startswith(folder.rstrip(os.sep) + os.sep)


def make_room(mirror: str, place: str, write: Write) -> list[str]:
    """Makes a changed file and its folders real in the mirror; returns remarks on large copies."""
    is_itself = write.event in _EVENTS["file"]  # else only the folder that lists it
    is_folder = write.event in _EVENTS["folder"] or (is_itself and os.path.isdir(place))
    unfold(mirror, place if is_folder else os.path.dirname(place))
    if not is_itself or not os.path.islink(place):
        return []
    if not (write.keeps_content and os.path.exists(place)):
        os.unlink(place)
        return []
    size = os.path.getsize(place)
    name = place.removeprefix(mirror)
    if size > min(_MOST, _MOST_OF_DISK * shutil.disk_usage(mirror).free):
        reason = f"it is opened for changes, and its copy would take {size >> 20} MB: open it for reading"
        raise PermissionError(errno.EACCES, f'{reason} (mode "r"; NumPy\'s memmap begins with "r+")', name)
    _replace_by_copy(place)
    said = f"{name} was copied ({size >> 20} MB), as the script opens it for changes"
    return [said] if size > _SAID else []


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
        entries = list[str]()
        with contextlib.suppress(OSError):  # it may not be listed
            entries = os.listdir(real)
        if len(entries) > _MOST_LINKS:
            what = f"over {_MOST_LINKS:,} entries are too many to mirror: {real}"
            raise FileProblem(what, "Start it in a folder with fewer entries")
        if is_link:
            os.unlink(here)
        os.mkdir(here)
        for entry in entries:
            os.symlink(os.path.join(real, entry), os.path.join(here, entry))


def fill(mirror: str, place: str) -> None:
    """Makes small folders below a real one real, and replaces links to small files by copies.

    Other programs, and libraries in C or Rust, change files without announcing it. A large folder stays a
    link, because programs that walk through folders do not follow links; so do other file systems, and Git's
    folder, in which a commit of the mirror would end.
    """
    waiting = deque([place])
    left, bytes_left = _MOST_ENTRIES, _MOST_BYTES
    until = time.monotonic() + _MOST_S
    while waiting:
        for entry in sorted(os.scandir(waiting.popleft()), key=lambda entry: entry.name):
            if time.monotonic() > until:
                return
            real = os.readlink(entry.path) if entry.is_symlink() else ""
            if entry.name in (".git", "__pycache__") or os.path.islink(real) or not os.path.exists(real):
                continue
            if entry.is_file() and entry.stat().st_size <= min(bytes_left, _MOST_OF_A_FILE):
                bytes_left -= entry.stat().st_size
                with contextlib.suppress(OSError):  # it may not be read
                    _replace_by_copy(entry.path)
            elif entry.is_dir() and not os.path.ismount(real):
                count = _count(real, min(left, _MOST_OF_A_FOLDER))
                if count < min(left, _MOST_OF_A_FOLDER):
                    left -= count
                    unfold(mirror, entry.path)
                    waiting.append(entry.path)


def _count(folder: str, most: int) -> int:
    count = 0
    waiting = [folder]
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


def _replace_by_copy(link: str) -> None:
    copy = f"{link}.perfkit-copy"
    shutil.copy2(link, copy)
    os.replace(copy, link)
