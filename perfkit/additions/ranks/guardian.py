"""A program: it ends what a launch has started once whoever started it has gone, in whatever way.

Its standard input ends with the process at the other end. What belongs to the launch names its private folder
in its environment: ranks have sessions of their own, may be suspended, and may have lost their parents.
"""

import contextlib
import shutil
import sys

import psutil

_MOST_LOOKS = 20  # at processes that go on starting others, or do not end in a second


def guard(folder: str, meeting: str) -> None:
    """Ends all processes whose environment names the folder, then removes it and the folder of the socket."""
    sys.stdin.read()
    for _ in range(_MOST_LOOKS):
        found = list[psutil.Process]()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
                if any(folder in value for value in process.environ().values()):
                    process.kill()
                    found.append(process)
        if not found:
            break
        psutil.wait_procs(found, timeout=1.0)
    for private in (folder, meeting):
        shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    guard(*sys.argv[1:])
