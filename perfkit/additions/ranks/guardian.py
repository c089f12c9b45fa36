"""A program that ends whatever a launch has started once the process that started it has gone, in any way.

Its standard input closes with that process. The environment of each process of the launch names its private
folder, which identifies it: ranks have their own sessions, may be suspended, and may have lost their parents.
"""

import contextlib
import shutil
import sys

import psutil

_MOST_ROUNDS = 20  # for processes that start others meanwhile, or do not end in a second


def guard(folder: str, meeting: str) -> None:
    """Ends all processes whose environment names the folder, then removes it and the socket's folder."""
    sys.stdin.read()
    for _ in range(_MOST_ROUNDS):
        killed = list[psutil.Process]()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
                if any(folder in value for value in process.environ().values()):
                    process.kill()
                    killed.append(process)
        if not killed:
            break
        psutil.wait_procs(killed, timeout=1.0)
    for private in (folder, meeting):
        shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    guard(*sys.argv[1:])
