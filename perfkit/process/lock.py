"""One run at a time on each device, whatever notebook or shell it was started from."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import filelock

from perfkit import machine
from perfkit.errors import Cancelled

_POLL_S = 0.1


@contextlib.contextmanager
def device_lock(
    device: str, cancelled: threading.Event | None = None, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Waits until no other run uses a device, and holds it.

    Args:
        device: the device's name.
        cancelled: set from any thread to give up.
        on_wait: called repeatedly while another run holds the device.

    Raises:
        Cancelled: `cancelled` was set.
    """
    lock = filelock.FileLock(machine.runs_folder() / f"{device.replace(':', '-')}.lock")
    held = contextlib.ExitStack()
    while True:
        if cancelled and cancelled.is_set():
            raise Cancelled("stopped on request")
        try:
            held.enter_context(lock.acquire(timeout=_POLL_S))
        except filelock.Timeout:
            on_wait()
            continue
        except OSError:
            pass  # a folder that cannot be written to: nothing is stored there either, and nobody waits
        break
    with held:
        yield
