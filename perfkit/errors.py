"""The errors that a user may see: what happened, where, and what to do about it."""

from __future__ import annotations

import difflib


class PerfkitError(Exception):
    """Something that a user can act on.

    Args:
        what: what happened and where, in one sentence.
        remedy: what to do. `str()` gives both on one line.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what.strip().rstrip(".")
        self.remedy = remedy.strip()

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}" if self.remedy else self.what


class InvalidValue(PerfkitError):
    """A name or a value that is not allowed."""


class WorkloadError(PerfkitError):
    """A workload that cannot be imported, built or trained."""


class RunFailed(PerfkitError):
    """A measuring process that ended without a result (crash, out of memory, time-out …)."""

    kind = "failed"


class StoreError(PerfkitError):
    """The store of runs cannot be read or written."""


class TraceError(PerfkitError):
    """A file that cannot be read as a profiler trace."""


class Cancelled(PerfkitError):
    """The user stopped it."""


def one_of(given: object, allowed: list[str], what: str, see: str = "") -> InvalidValue:
    """The error for an unknown name: what was given, the nearest match, what is allowed.

    Args:
        given: the unknown name.
        allowed: all names that exist.
        what: the kind of name, such as "device".
        see: added to the list of allowed names.
    """
    near = difflib.get_close_matches(str(given), allowed, n=1, cutoff=0.4)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return InvalidValue(f"unknown {what} '{given}'", f"{hint}Allowed: {', '.join(allowed)}{see}")
