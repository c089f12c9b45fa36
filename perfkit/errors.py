"""The errors a user may see: what happened, and what to do about it."""

from __future__ import annotations


class PerfkitError(Exception):
    """Something a user can act on. `str()` gives one line: what happened, then the remedy."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what.strip().rstrip(".")
        self.remedy = remedy.strip()

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}" if self.remedy else self.what


class InvalidValue(PerfkitError):
    """A name or a value that is not among the allowed ones."""


class WorkloadError(PerfkitError):
    """A workload that cannot be imported, built or trained."""


class RunFailed(PerfkitError):
    """A measuring process that ended without a result (crash, out of memory, time-out …)."""

    kind = "failed"


class StoreError(PerfkitError):
    """The store of runs cannot be read or written."""


class Cancelled(PerfkitError):
    """The person stopped it."""


def one_of(given: object, allowed: list[str], what: str, see: str = "") -> InvalidValue:
    """The error for an unknown name: what was given, what is allowed, the nearest match."""
    import difflib

    near = difflib.get_close_matches(str(given), allowed, n=1, cutoff=0.4)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return InvalidValue(f"unknown {what} '{given}'", f"{hint}Allowed: {', '.join(allowed)}{see}")
