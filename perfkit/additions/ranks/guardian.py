"""A program that ends whatever a launch has started once the process that started it has gone, in any way.

Its standard input closes with that process. The settings in the environment of each process of the launch
identify it: ranks have their own sessions, may be suspended, and may have lost their parents.
"""

import contextlib
import json
import os
import shutil
import sys

import psutil

_OTHERS = (LookupError, ValueError, TypeError)  # a process without settings, or with another program's
_MOST_ROUNDS = 20  # for processes that start others meanwhile, or do not end in a second


def guard(variable: str, scratch: str, meeting: str) -> None:
    """Ends the processes whose settings, in `variable`, have this `scratch`, then removes both folders."""
    sys.stdin.read()
    for _ in range(_MOST_ROUNDS):
        killed = list[psutil.Process]()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, *_OTHERS):  # it has ended, or is another user's
                if json.loads(process.environ()[variable])["scratch"] == scratch:
                    process.kill()
                    killed.append(process)
        if not killed:
            break
        psutil.wait_procs(killed, timeout=1.0)
    for private in (os.path.dirname(scratch), meeting):
        shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    guard(*sys.argv[1:])
