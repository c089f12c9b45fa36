"""The one error that reading a trace raises."""

from __future__ import annotations

from perfkit.errors import PerfkitError


class TraceError(PerfkitError):
    """A file that cannot be read as a profiler trace: what is wrong with it and what to do."""
