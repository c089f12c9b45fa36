"""A trace in a notebook: what it says, and its timeline."""

from pathlib import Path
from typing import Any

from IPython.display import HTML

from perfkit.additions.trace import profile as profiling
from perfkit.additions.trace.model import Analysis
from perfkit.additions.trace.timeline import interactive, lanes
from perfkit.notebook.shown import Shown, with_line
from perfkit.show.html import fragment


class TraceView(Shown[Analysis]):
    """What a trace says. Figure: `breakdown`.

    Args:
        file: a `*.pt.trace.json[.gz]`, or a folder or an archive with one of each rank; `recorded:NAME` is
            one that comes with perfkit.
        own: a profile that was just recorded, in the place of a file.

    Raises:
        TraceError: the file is not a trace, or is damaged.
    """

    def __init__(self, file: str | Path = "", own: profiling.Profile | None = None) -> None:
        self.profile = own or with_line(lambda now: profiling.read(file, now.share))
        self.analysis = self.profile.analysis
        super().__init__(self.analysis, self.profile.sections())

    def timeline(self, step: int = 0) -> HTML:
        """A step's threads, streams and copies, to zoom and pan in."""
        return HTML(fragment([interactive(lanes(self.profile.trace, step))]))


def profile(*which: Any, **how: Any) -> TraceView:
    """Profiles some steps in a fresh process, and reads the trace; arguments as for `perfkit.profile`."""
    return TraceView(own=profiling.profile(*which, **how))
