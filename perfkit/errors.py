"""The errors that a user may see: what happened, where, and what to do about it."""

import difflib
import errno
import traceback
from collections.abc import Sequence


class PerfkitError(Exception):
    """Something that a user can act on: what happened and where, in one sentence, and what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what.strip().rstrip(".")
        self.remedy = remedy.strip()

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}" if self.remedy else self.what

    def _render_traceback_(self) -> list[str]:
        """The message alone for IPython, and the traceback of the user's code if that is the cause."""
        is_users = isinstance(self, WorkloadError) and self.__cause__
        cause = traceback.format_exception(self.__cause__) if is_users else []
        return [*"".join(cause).splitlines(), f"{type(self).__name__}: {self}"]


class InvalidValue(PerfkitError):
    """A name or a value that is not allowed."""


class WorkloadError(PerfkitError):
    """A workload that cannot be imported, built or trained."""


class RunFailed(PerfkitError):
    """A measuring process that ended without a result (crash, time-out …)."""

    output = ""  # the end of what a script wrote itself
    given: PerfkitError | None = None
    """The error that the process raised, if the user's input was its cause."""


class OutOfMemory(RunFailed):
    """A measuring process for which there was too little memory, of the machine or of its GPU."""


class TrainingEnded(RunFailed):
    """A training that came to its own end before it was measured."""


class TrainingRaised(RunFailed):
    """A training whose own code raised something."""


class StoreError(PerfkitError):
    """The store of runs, or a recording, cannot be read or written."""


class Cancelled(PerfkitError):
    """The user stopped it."""


def one_of(name: object, allowed: Sequence[str], what: str, see: str = "") -> InvalidValue:
    """The error for an unknown name of some kind: the name, the nearest match, what is allowed, and `see`."""
    near = difflib.get_close_matches(str(name), allowed, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return InvalidValue(f"unknown {what} '{name}'", f"{hint}Allowed: {', '.join(allowed) or 'none'}{see}")


_REMEDIES = {
    errno.ENOENT: "Check the path",
    errno.ENOTDIR: "Check the path: a part of it is a file",
    errno.EEXIST: "Choose another name: this one is taken",
    errno.EISDIR: "Name a file, not a folder",
    errno.EACCES: "Choose another place, or change its permissions",
    errno.EROFS: "Choose another place: this one is read-only",
    errno.ENOSPC: "Free space on that disk",
    errno.ENOMEM: "Close other programs: the machine's memory is used up",
    errno.EAGAIN: "Close other programs: no further process can start (ulimit -u)",
    errno.EMFILE: "Close files that this process has open, or restart it; ulimit -n allows it more",
}


def in_words(problem: OSError, file: object = "") -> PerfkitError | None:
    """An error of a file or a full disk, which a user can mend; None for any other, which is a bug."""
    what, remedy = explain(problem, file)
    is_of_a_file = problem.filename is not None or problem.errno == errno.ENOSPC
    return PerfkitError(what, remedy) if remedy and is_of_a_file else None


def explain(problem: OSError, file: object = "") -> tuple[str, str]:
    """What happened, and what to do if that is known; `file` is for an error that names none."""
    files = [str(name) for name in (problem.filename, problem.filename2) if name is not None]
    names = " and ".join(files) or str(file)
    what = problem.strerror or str(problem) or type(problem).__name__
    return f"{names}: {what}" if names else what, _REMEDIES.get(problem.errno or 0, "")
