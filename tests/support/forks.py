"""One process that has imported torch, from which others are forked: the import takes a core 4 s each time.

A process of tests starts it when it forks its first. A notebook's kernel uses the one of its test: its address is
in the environment.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADDRESS = "PERFKIT_TEST_FORKS"
IMPORTED = "tests.support.imported"
READ_BY_LIBRARIES = (
    "CUDA_",
    "GLIBC_",
    "GOMP_",
    "KMP_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "TORCH_",
    "PYTORCH_",
)
"""How the variables begin that are read when torch or a library is loaded."""
STREAMS = 8


class Forked:
    """A process that calls a function with some of this process's open files; as `subprocess.Popen` has it."""

    def __init__(self, function, files, *arguments):
        client = socket.socket(socket.AF_UNIX)
        client.connect(address())
        socket.send_fds(client, [b"f"], files)
        self._line = Connection(client.detach())
        self._line.send((function, arguments))
        self.pid = self._line.recv()
        self.returncode = None
        self._lock = threading.Lock()

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        with self._lock:
            if self.returncode is None:
                if not self._line.poll(timeout):
                    raise subprocess.TimeoutExpired("a forked process", timeout)
                self.returncode = self._line.recv()
                self._line.close()
        return self.returncode

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def address():
    """Where processes are forked: a socket, beside which are the variables of the process that forks them."""
    return os.environ.get(ADDRESS) or start()


def is_alike(environment):
    """Whether libraries find in an environment what they have found where processes are forked."""
    theirs = json.loads(Path(address()).with_name("environment").read_text())
    return _read_by_libraries(environment) == _read_by_libraries(theirs)


def _read_by_libraries(environment):
    return {name: value for name, value in environment.items() if name.startswith(READ_BY_LIBRARIES)}


@functools.cache
def start(**variables):
    """Starts the process that forks others, with more variables than this one's; returns its address."""
    folder = Path(tempfile.mkdtemp(prefix="perfkit-forks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    (folder / "environment").write_text(json.dumps(environment))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        number = listener.fileno()
        program = f"from tests.support import forks; forks.serve({number})"
        how = {"cwd": ROOT, "env": environment, "pass_fds": [number], "start_new_session": True}
        # It ends when its input does: with this process.
        server = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, **how)
    atexit.register(server.communicate)
    return str(folder / "socket")


# ---------------------------------------------------------------- in the process that forks others


def serve(number):
    """Forks a process for each request, and tells its number and how it ended."""
    importlib.import_module(IMPORTED)
    listener = socket.socket(fileno=number)
    ended, wake = os.pipe()
    for end in (ended, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    clients = {}
    while True:
        ready = wait([sys.stdin.fileno(), ended, listener])
        if ended in ready:
            os.read(ended, 1 << 12)
            _tell_ends(clients)
        if listener in ready:
            _fork(listener, clients, (ended, wake))
        if sys.stdin.fileno() in ready:
            os._exit(0)


def _tell_ends(clients):
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with clients.pop(pid) as line, contextlib.suppress(BrokenPipeError):
            line.send(os.waitstatus_to_exitcode(status))


def _fork(listener, clients, pipe):
    client, _ = listener.accept()
    _, files, *_ = socket.recv_fds(client, 1, STREAMS)
    line = Connection(client.detach())
    function, arguments = line.recv()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (
            listener.detach(),
            *pipe,
            line.fileno(),
            *(each.fileno() for each in clients.values()),
        ):
            os.close(number)
        _call(function, files, arguments)
    for number in files:
        os.close(number)
    line.send(pid)
    clients[pid] = line


def _call(function, files, arguments):
    """Calls a function in a forked process, and ends it."""
    code = 1
    try:
        os.setsid()
        code = function(files, *arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
