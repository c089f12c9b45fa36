"""Clocks that are taken before a script begins, because the script may replace those of `time`."""

import contextlib
import sys
import time

clock = time.perf_counter


def own_time() -> float:
    """A clock that stops while this thread waits for a core, so that shares hold on a busy machine.

    A GPU goes on working meanwhile, so next to one it is the plain clock.
    """
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        return clock()
    waited_ns = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/thread-self/schedstat", "rb") as file:
        waited_ns = int(file.read().split()[1])
    return clock() - waited_ns / 1e9
