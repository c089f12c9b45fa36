"""The errors that a user may see: what happened, where, and what to do about it."""

import difflib
import errno
import traceback
from collections.abc import Sequence


class PerfkitError(Exception):
    """An error that the user can act on: what happened and where, in one sentence, and what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what.strip().rstrip(".")
        self.remedy = remedy.strip()

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}" if self.remedy else self.what

    def _render_traceback_(self) -> list[str]:
        """Shows only the message in IPython, after the traceback of the user's code if that is the cause."""
        is_users = isinstance(self, WorkloadError) and self.__cause__
        cause = traceback.format_exception(self.__cause__) if is_users else []
        return [*"".join(cause).splitlines(), f"{type(self).__name__}: {self}"]


class InvalidValue(PerfkitError):
    """A name or a value that is not allowed."""


class WorkloadError(PerfkitError):
    """A workload that cannot be imported, built or trained."""


class RunFailed(PerfkitError):
    """A measuring process that ended without a result (a crash, a timeout …)."""

    output = ""  # the end of the script's own output
    given: PerfkitError | None = None
    """The error that the process raised, if the user's input was its cause."""


class TookTooLong(RunFailed):
    """A measuring process that did not answer a question within its time limit."""


class OutOfMemory(RunFailed):
    """A measuring process that ran out of memory, on the host or on its GPU."""


class TrainingEnded(RunFailed):
    """A training that finished before it had been measured."""


class TrainingRaised(RunFailed):
    """A training whose own code raised an exception."""


class FileProblem(PerfkitError, OSError):
    """A problem with a file. A user's script may handle it like any other `OSError`."""


class StoreError(PerfkitError):
    """The store of runs, or a recording, cannot be read or written."""


class Cancelled(PerfkitError):
    """The user stopped what was running."""


def one_of(name: object, allowed: Sequence[str], what: str, see: str = "") -> InvalidValue:
    """The error for an unknown name: it gives the closest match, the allowed names, and `see`."""
    near = difflib.get_close_matches(str(name), allowed, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return InvalidValue(f"unknown {what} '{name}'", f"{hint}Allowed: {', '.join(allowed) or 'none'}{see}")


_REMEDIES = {
    errno.ENOENT: "Check the path",
    errno.ENOTDIR: "Check the path: a part of it is a file",
    errno.EEXIST: "Choose another name: this one is taken",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.EACCES: "Choose another place, or change its permissions",
    errno.EROFS: "Choose another place: this one is read-only",
    errno.ENOSPC: "Free space on that disk",
    errno.ENOMEM: "Close other programs: the machine's memory is used up",
    errno.EAGAIN: "Close other programs: no more processes can be started (ulimit -u)",
    errno.EMFILE: "Close files that this process has open, or restart it; ulimit -n allows it more",
}


def in_words(problem: OSError, file: object = "") -> PerfkitError | None:
    """The error to show for a problem with a file or a full disk; None for any other, which is a bug."""
    what, remedy = what_and_remedy(problem, file)
    is_of_a_file = problem.filename is not None or problem.errno == errno.ENOSPC
    return PerfkitError(what, remedy) if remedy and is_of_a_file else None


def what_and_remedy(problem: OSError, file: object = "") -> tuple[str, str]:
    """What happened and, if known, what to do. The text `file` is used if the error names no file."""
    files = [str(name) for name in (problem.filename, problem.filename2) if name is not None]
    names = " and ".join(files) or str(file)
    what = problem.strerror or str(problem) or type(problem).__name__
    return f"{names}: {what}" if names else what, _REMEDIES.get(problem.errno or 0, "")
