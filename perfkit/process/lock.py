"""One measurement at a time: on the machine's cores, and on each GPU, by whatever name it was called."""

import contextlib
import getpass
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from perfkit import machine
from perfkit.errors import Cancelled

EVERYTHING = "everything"
"""The cores and all GPUs: for a script, whose device shows only when it runs."""
_POLL_S = 0.1


@contextlib.contextmanager
def device_lock(
    device: str, cancelled: threading.Event | None = None, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Waits until no other measurement uses a device, and holds it.

    Args:
        device: as torch names it; or `EVERYTHING`.
        cancelled: set from any thread to give up.
        on_wait: called repeatedly while another measurement holds the device.

    Raises:
        Cancelled: `cancelled` was set.
    """
    with contextlib.ExitStack() as stack:
        for name in lock_names(device):
            lock = filelock.FileLock(_folder() / f"{name}.lock")
            while not _is_held(lock):
                if cancelled and cancelled.is_set():
                    raise Cancelled("stopped on request")
                on_wait()
            stack.callback(lock.release)
        yield


def lock_names(device: str) -> list[str]:
    """What a measurement on a device must hold, in the order in which everybody takes it."""
    gpus = [gpu["uuid"] for gpu in machine.facts()["gpus"] if gpu.get("uuid")]
    if device == EVERYTHING:
        return ["cores", *sorted(gpus)]
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return ["cores"]
    number = int(index or 0)
    # CUDA_VISIBLE_DEVICES renumbers the GPUs, by index or UUID.
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    chosen = visible[number] if number < len(visible) else str(number)
    found = [uuid for at, uuid in enumerate(gpus) if chosen == str(at) or uuid.startswith(chosen)]
    return found[:1] or [f"gpu-{chosen}"]


def _is_held(lock: filelock.FileLock) -> bool:
    with contextlib.suppress(OSError):  # a folder that cannot be written to: nobody can wait there
        try:
            lock.acquire(timeout=_POLL_S)
        except filelock.Timeout:
            return False
    return True


def _folder() -> Path:
    """One folder for all notebooks, checkouts and shells of a user; PERFKIT_LOCKS sets another one."""
    plain = Path(tempfile.gettempdir()) / f"perfkit-locks-{getpass.getuser()}"
    folder = Path(os.environ.get("PERFKIT_LOCKS") or plain)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder
