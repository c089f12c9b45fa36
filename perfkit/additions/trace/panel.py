"""Shows a trace in a notebook."""

import functools
from pathlib import Path
from typing import Unpack

from perfkit.additions.shared.looking import Chosen
from perfkit.additions.trace import profile as profiling
from perfkit.additions.trace import ranks
from perfkit.additions.trace.model import Analysis
from perfkit.notebook.shown import Shown, with_line
from perfkit.studies.planning import Where
from perfkit.studies.sources import Progress


class TraceView(Shown[Analysis]):
    """An analysed trace; a `TraceError` if the file is not a trace, or is damaged. Figure: `breakdown`.

    `file`: a `*.pt.trace.json[.gz]`, a folder or an archive with one of each rank, or `recorded:NAME`, which
    comes with perfkit; `own`: a profile that was just recorded, instead.
    """

    def __init__(self, file: str | Path = "", own: profiling.Profile | None = None) -> None:
        self.profile = own or with_line(lambda now: profiling.Profile(ranks.read(Path(file), now.share)))
        self.analysis = self.profile.analysis
        super().__init__(self.analysis, self.profile.sections())


def profile(
    workload: str | None = None,
    recipe: Chosen = None,
    steps: int = 3,
    stacks: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **where: Unpack[Where],
) -> TraceView:
    """Profiles some steps in a new process, and reads the trace; arguments as for `perfkit.profile`."""
    record = functools.partial(profiling.profile, workload, recipe, steps, stacks, out, **where)
    return TraceView(own=record(progress) if progress else with_line(record))
