"""A process and everything it has started: suspended, resumed and ended together.

A process id is reused once its process has ended, so every member is known by its id and its start time.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence

import psutil

GRACE_S = 3.0  # how long a process may take to end by itself
MOST_LOOKS = 20  # the most looks at a tree that keeps growing while it is being suspended


class Tree:
    """The process that has this id now, and everything that it starts from now on.

    Members are found through their parents, in whatever sessions and groups they are. Once seen, they stay
    members when their parents end.
    """

    def __init__(self, pid: int) -> None:
        self.root: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
            self.root = psutil.Process(pid)
        self._members: list[psutil.Process] = [self.root] if self.root else []
        self._was_ended = False

    def processes(self) -> list[psutil.Process]:
        """The members that have not ended, parents before their children."""
        members = list[psutil.Process]()
        for member in self._members:
            with contextlib.suppress(psutil.Error):
                if member not in members:  # a member that is there was searched, which takes 3 ms
                    members += [member, *member.children(recursive=True)]
        self._members = [process for process in dict.fromkeys(members) if _runs(process)]
        return self._members

    def _session(self) -> list[psutil.Process]:
        """The processes of the session that the root leads, including those whose parents have ended.

        No other session can have its id as long as the root has not been waited for.
        """
        processes = []
        for pid in psutil.pids():
            with contextlib.suppress(psutil.Error, OSError):
                if self.root and os.getsid(pid) == self.root.pid:
                    processes.append(psutil.Process(pid))
        is_ours = self.root is not None and self.root.is_running()
        return [process for process in processes if is_ours and _runs(process)]

    def await_end(self, seconds: float) -> None:
        """Waits until the root, or the eldest that is left, has ended by itself, without reaping it."""
        if self._members:
            _await([self._members[0]], seconds)

    def suspend(self) -> None:
        """Suspends every member, parents first, until no new one appears."""
        stopped: set[psutil.Process] = set()
        for _ in range(MOST_LOOKS):
            new = [process for process in self._members if process not in stopped]
            if not new:
                return
            for process in new:
                with contextlib.suppress(psutil.Error):
                    process.suspend()
            stopped.update(new)
            self.processes()

    def resume(self) -> None:
        for process in self._members:
            with contextlib.suppress(psutil.Error):
                process.resume()

    def cpu_s(self) -> float:
        """The CPU seconds that its members have used, including those of children that have ended."""
        used_s = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                used_s += sum(process.cpu_times()[:4])  # user, system, and both of ended children
        return used_s

    def resident_bytes(self) -> int:
        """The memory of all members. Pages that they share count for each of them."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def end(self) -> None:
        """Asks the root to end, then kills what is left; returns when none of it is running.

        multiprocessing's resource trackers come last: they end by themselves, and remove shared semaphores.
        """
        if self._was_ended:
            return
        members = list(dict.fromkeys([*self.processes(), *self._session()]))
        if members:
            eldest = members[0]  # the root, unless it has ended
            with contextlib.suppress(psutil.Error):
                eldest.terminate()
            self.resume()  # a suspended process reacts to nothing but SIGKILL
            _await([eldest])
        members = list(dict.fromkeys([*members, *self.processes(), *self._session()]))
        trackers = [process for process in members if _is_tracker(process)]
        _kill(process for process in members if process not in trackers)
        _await(members)
        _kill(trackers)
        _await(trackers)
        self._members = []
        self._was_ended = True  # only now: if a second Ctrl-C interrupts this, it is called again


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def _is_tracker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("resource_tracker" in word for word in process.cmdline())
    return False


def _await(processes: Sequence[psutil.Process], seconds: float = GRACE_S) -> None:
    deadline = time.monotonic() + seconds
    while any(_runs(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.002)


def _runs(process: psutil.Process) -> bool:
    """Whether a process is still running. A zombie is not; it may stay for seconds if its parent died."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
