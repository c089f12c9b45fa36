"""Shows recordings in a notebook."""

from pathlib import Path

from perfkit.notebook.shown import Shown
from perfkit.results import Run, recordings
from perfkit.show import tables
from perfkit.show.document import Bullets
from perfkit.show.sentences import verdicts
from perfkit.studies import planning
from perfkit.studies.climb import climb


def recording(name: str | Path, stage: str | None = None) -> Shown[list[Run]]:
    """Runs of `perfkit run -o FILE`, from here or elsewhere, with the tables and figures of stored runs.

    `name`: a recording that comes with perfkit, one of the user's, or a file; else an `InvalidValue`.
    `stage`: the stage to show, with the stage that it was compared with; None: all stages.
    """
    if stage is None:
        runs = recordings.find(str(name))
        return Shown(runs, tables.report(runs))
    runs = climb(planning.plan(stages=[stage], device=f"{recordings.PREFIX}{name}").trying(below=True))
    origin = runs[0].origin
    assert origin, "it is of a recording"
    version = f" of perfkit {origin.commit[:10]}" if origin.commit else ""
    details = f"{origin.describe()}, by {origin.command}{version}."
    return Shown(runs, [Bullets(verdicts(runs)[-1:]), tables.ladder(runs), details])
