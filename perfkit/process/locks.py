"""One measurement at a time: a lock for the cores of this machine, and one for each GPU."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from perfkit import machine
from perfkit.errors import Cancelled, PerfkitError, what_and_remedy
from perfkit.machine import gpus

Tell = Callable[[str], None]
POLL_S = 0.1
_OTHER_FOLDER = "Set PERFKIT_LOCKS to a folder that you may write to"


@contextlib.contextmanager
def device_lock(
    device: str | None, cancelled: threading.Event | None = None, tell: Tell = lambda who: None
) -> Iterator[None]:
    """Waits until no other measurement uses a device, and holds it. None means the cores and all GPUs.

    While it waits, it keeps calling `tell` with who uses what. Raises `Cancelled` once `cancelled` is set,
    and a `PerfkitError` if the folder of the locks cannot be used.
    """
    folder = _own_folder()
    with contextlib.ExitStack() as stack:
        for name in lock_names(device):
            lock = filelock.FileLock(folder / f"{name}.lock", mode=0o666)  # other users may share the folder
            holder = folder / f"{name}.holder"
            resource = "the cores" if name == "cores" else "the GPU"
            while not _acquired(lock):
                check_cancelled(cancelled)
                tell(f"{_command_in(holder)} uses {resource}")
            stack.callback(lock.release)
            with contextlib.suppress(OSError):  # only waiting processes read it, and they can do without it
                holder.write_text(_own_command(), encoding="utf-8", errors="replace")
                stack.callback(holder.unlink, missing_ok=True)  # another user could not write to it
        yield


def lock_folder() -> Path:
    """One folder for all of a user's notebooks, checkouts and shells, whatever their TMPDIR.

    The variable PERFKIT_LOCKS names a different folder, which several users may share.
    """
    return Path(os.environ.get("PERFKIT_LOCKS") or f"/tmp/perfkit-locks-{os.getuid()}")


def _own_folder() -> Path:
    """The folder of the locks, made if it is missing. In /tmp, anyone may have made one of this name."""
    folder = lock_folder()
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            if os.environ.get("PERFKIT_LOCKS"):
                folder.chmod(0o1777)  # as /tmp: each user may add files, and remove only their own
        owner = folder.lstat().st_uid
    except OSError as problem:
        raise _unusable(problem) from problem
    if owner != os.getuid() and not os.environ.get("PERFKIT_LOCKS"):
        raise PerfkitError(f"the folder of perfkit's locks, {folder}, belongs to another user", _OTHER_FOLDER)
    return folder


def _acquired(lock: filelock.BaseFileLock) -> bool:
    try:
        lock.acquire(timeout=POLL_S)
    except filelock.Timeout:
        return False
    except OSError as problem:
        raise _unusable(problem) from problem
    return True


def _unusable(problem: OSError) -> PerfkitError:
    what, _ = what_and_remedy(problem, lock_folder())
    return PerfkitError(f"perfkit's locks cannot be used: {what}", _OTHER_FOLDER)


def _own_command() -> str:
    """How this process is named to others that wait for it."""
    program = Path(sys.argv[0]).name
    command = "a notebook" if "ipykernel" in program else " ".join([program, *sys.argv[1:]])
    return f"{command:.80} (process {os.getpid()})"


def _command_in(holder: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return "".join(filter(str.isprintable, holder.read_text(encoding="utf-8"))) or "another run"
    return "another run"


def check_cancelled(cancelled: threading.Event | None) -> None:
    """Raises `Cancelled` if the user has stopped it."""
    if cancelled and cancelled.is_set():
        raise Cancelled("stopped on request")


def lock_names(device: str | None) -> list[str]:
    """The locks that a measurement on a device must hold, in the order in which everyone takes them.

    A training on a GPU holds the cores as well, because its loaders use all of them.
    """
    if device is None:
        return ["cores", *sorted(gpu["uuid"] for gpu in machine.facts()["gpus"] if gpu.get("uuid"))]
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return ["cores"]
    names = sorted(gpus.uuids(index or "0")) or [f"gpu-{index or 0}"]
    return ["cores", *names]
