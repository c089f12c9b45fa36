"""The memory of a process and of the processes that it has started."""

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

import psutil

from perfkit.process.tree import Tree


class Memory(NamedTuple):
    """Memory in bytes: of the first process, now and at its peak; of the others, only what is unshared."""

    own: int = 0
    peak: int = 0
    others: int = 0
    threads: int = 0  # the most threads in one of the others

    @classmethod
    def of(cls, tree: Tree) -> "Memory":
        """The memory of a process and of all that it has started."""
        own = peak = others = threads = 0
        for process in tree.processes():
            with contextlib.suppress(psutil.Error, OSError, AttributeError):  # it has just ended
                if process == tree.root:
                    own = peak = process.memory_info().rss
                    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="ignore")
                    peak = max(own, *(int(size) << 10 for size in re.findall(r"VmHWM:\s+(\d+) kB", status)))
                else:
                    others += process.memory_full_info().uss
                    threads = max(threads, process.num_threads())
        return cls(own, peak, others, threads)
