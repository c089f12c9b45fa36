"""Child processes: start, ask, cancel, time out, and say in words how one ended."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from perfkit import environment
from perfkit.errors import Cancelled, RunFailed

Progress = Callable[[str, float], None]
"""Told the phase and how much of it is done (0 to 1)."""

_GRACE_S = 3.0
_POLL_S = 0.1


@contextlib.contextmanager
def turn(
    device: str, cancelled: threading.Event | None = None, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Waits for its turn on a device: two runs never share one, whatever notebook or shell they are from.

    Args:
        device: the device's name.
        cancelled: set from any thread to give up.
        on_wait: called again and again while another run holds the device.

    Raises:
        Cancelled: `cancelled` was set.
    """
    lock = filelock.FileLock(environment.runs_folder() / f"{device.replace(':', '-')}.lock")
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
            pass  # a folder that can't be written to: then nothing is stored there either, and none queues
        break
    with held:
        yield


class Child:
    """One measuring process and its loader workers, in a process group of their own.

    Args:
        on_progress: called from the thread that asks, with the phase and its fraction.
        cancelled: set from any thread to end what is under way.
        deadline: `time.monotonic()` at which waiting ends; None for no limit.
    """

    def __init__(
        self,
        on_progress: Progress = lambda phase, fraction: None,
        cancelled: threading.Event | None = None,
        deadline: float | None = None,
    ) -> None:
        self._on_progress = on_progress
        self._cancelled = cancelled or threading.Event()
        self.deadline = deadline
        self.started = time.time()
        self.log: collections.deque[str] = collections.deque(maxlen=200)
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = self._start()
        threading.Thread(target=self._read_events, daemon=True).start()
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()

    @property
    def pid(self) -> int:
        """Of the child itself."""
        return self._process.pid

    def _start(self) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C must not reach the child, and all of it can be ended at once.
        own_group: dict[str, Any] = (
            {"start_new_session": True}
            if os.name == "posix"
            else {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined,unused-ignore]
        )
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "perfkit.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=child_environment(),
            **own_group,
        )

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a line cut off by a crash
                self._events.put(json.loads(line))
        self._events.put(None)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip("\n"))

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Gives one command and waits for its answer; progress goes to `on_progress` meanwhile.

        Raises:
            RunFailed: the child failed, died, or took too long.
            Cancelled: `cancelled` was set.
        """
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            pass  # it is dead: what it said last, or how it ended, comes out of the queue
        while True:
            event = self._next_event()
            if event["event"] == "progress":
                self._on_progress(event["phase"], event["done"] / max(1, event["total"]))
            elif event["event"] == "error":
                raise failure(event)
            elif event["event"] == do:
                return event

    def _next_event(self) -> dict[str, Any]:
        while True:
            if self._cancelled.is_set():
                raise Cancelled("stopped on request")
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise RunFailed(
                    "the run took longer than its time limit", "Raise --timeout, or use a smaller preset"
                )
            try:
                event = self._events.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if event is None:
                raise self._death()
            return event

    def _death(self) -> RunFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._log_reader.join(_GRACE_S)
        code = self._process.returncode
        last = next((line.strip() for line in reversed(self.log) if line.strip()), "")
        return ended(code, last)

    def stop(self) -> None:
        """Ends the child and everything it started; returns when nothing of it is left."""
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()  # the child ends its whole group when its input ends
        end_tree(self._process)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def failure(event: dict[str, Any]) -> RunFailed:
    """The error that a child reported."""
    problem = RunFailed(event["what"], event["remedy"])
    problem.kind = event["kind"]
    return problem


def ended(code: int | None, last_line: str = "") -> RunFailed:
    """How a process ended that gave no reason itself."""
    name = signal.Signals(-code).name if code is not None and code < 0 else ""
    said = f" (it last said: {last_line})" if last_line else ""
    if name == "SIGKILL":
        problem = RunFailed(
            "the measuring process was killed, most likely because memory ran out",
            "Lower batch_size or workers, or give the machine (or container) more memory",
        )
        problem.kind = "out of memory"
        return problem
    if name == "SIGBUS":
        return RunFailed(
            "the measuring process died of a bus error: shared memory is full",
            "Enlarge /dev/shm (docker run --shm-size=8g), or lower workers or prefetch_factor",
        )
    how = f"was ended by {name}" if name else f"ended with exit status {code}"
    return RunFailed(
        f"the measuring process {how}{said}", "Run `perfkit doctor`; try workers=0 to see the cause"
    )


def end_tree(process: subprocess.Popen[str]) -> None:
    """Terminates a process group, then kills what is left of it."""
    import psutil

    try:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    _signal_group(process, terminate=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _signal_group(process, terminate=False)
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    psutil.wait_procs(tree, timeout=_GRACE_S)


def _signal_group(process: subprocess.Popen[str], terminate: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGTERM if terminate else signal.SIGKILL)
        elif process.poll() is None:
            process.terminate() if terminate else process.kill()


def child_environment() -> dict[str, str]:
    """The child's environment: threads for the usable cores, caches kept, this perfkit importable."""
    here = str(Path(__file__).parent.parent)
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    # What a notebook has put on its path, the child finds too; its own library comes first as usual.
    own = {*sysconfig.get_paths().values(), here}
    added = [path for path in sys.path if path and path not in own and "lib-dynload" not in path]
    paths = [here, *filter(None, [inherited.get("PYTHONPATH")]), *added]
    cache = environment.cache_folder().absolute() / "inductor"
    # A quota below the visible cores makes torch start too many threads (metrics §4).
    # glibc moves its threshold for giving memory back by what happened before, so that equal processes train
    # at speeds that differ for good: by 4 to 6% (standard deviation of 6 processes, small conv net, two
    # cores), by 0.6% with these.
    kept = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
    defaults = {
        "GLIBC_TUNABLES": kept,
        "OMP_NUM_THREADS": str(environment.usable_cores()),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "PERFKIT_DATA": str(environment.data_folder().absolute()),
        "PYTHONWARNINGS": "ignore",
    }
    return defaults | inherited | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
