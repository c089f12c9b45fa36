"""What a cell calls by name besides the panels: recordings to show, facts, commands to copy."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from IPython.display import HTML, Markdown

from perfkit import workloads
from perfkit.errors import InvalidValue
from perfkit.machine import Check, checkup, describe, facts
from perfkit.notebook.ladder import Recipes
from perfkit.notebook.shown import Output, Shown
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.show import html, inside, tables
from perfkit.show.document import Bullets
from perfkit.show.sentences import verdicts
from perfkit.studies import inspect, rungs, sources
from perfkit.studies.progress import Progress
from perfkit.worker.messages import SyncReport as Syncs

_Result = TypeVar("_Result")


def with_line(study: Callable[[Progress], _Result]) -> _Result:
    """Does a study while its progress is shown in the cell; the line is gone afterwards."""
    output = Output()
    try:
        return study(Progress(lambda now: output.line(now.describe(), now.fraction)))
    finally:
        output.show([])


def memory(recipes: Recipes, workload: str | None = None, **where: Any) -> Shown[Any]:
    """What holds memory in a step of each recipe; arguments as for `perfkit.profile`. Figure: held."""
    reports = [
        msgspec.structs.replace(inspect.memory(workload, settings=changes, **where), recipe=title)
        for title, changes in recipes.items()
    ]
    return Shown(reports, inside.memory(reports))


def kernels(workload: str | None = None, recipe: Any = None, **where: Any) -> Shown[Any]:
    """The device's roofs, shapes, and a step's share of them; arguments as for `perfkit.profile`.

    Figures: roofline, shapes.
    """
    report = inspect.kernels(workload, recipe, **where)
    return Shown(report, inside.kernels(report))


class SyncReport(Shown[Syncs]):
    """Lines that copy or wait between host and device in a training's steps."""

    @property
    def a_step(self) -> float:
        """How many there are in a step."""
        return sum(place.count for place in self.found.places) / self.found.steps


def find_syncs(*which: Any, **how: Any) -> SyncReport:
    """Watches some training steps in a fresh process; arguments as for `perfkit.profile`."""
    report = inspect.syncs(*which, **how)
    return SyncReport(report, inside.syncs(report))


def recording(name: str | Path, stage: str | None = None) -> Shown[list[Run]]:
    """Runs of `perfkit run --record`, from here or elsewhere, with the tables and figures of stored ones.

    Args:
        name: a recording that ships with perfkit, one of the user's, or a file.
        stage: the stage to show, beside the one that it was compared with; all of them if None.

    Raises:
        InvalidValue: there is no such recording, or no such stage.
        StoreError: the file is not a recording.
    """
    loaded = recordings.find(str(name))
    origin = loaded.provenance.describe()
    if stage is None:
        return Shown(loaded.runs, [origin, *tables.sections(loaded.runs)])
    runs = rungs.climb(sources.plan(stages=[stage], device=f"{recordings.PREFIX}{name}", below=True))
    return Shown(runs, [Bullets(verdicts(runs)[-1:]), tables.ladder(runs), origin])


def training_loop(runs: Sequence[Run]) -> Markdown:
    """The script of the first run."""
    return Markdown(f"```python\n{next(iter(rungs.scripts(runs).values()))}```")


def pipeline() -> HTML:
    """A training loop as two queues, with knobs; it needs no kernel once it is shown."""
    return HTML(html.pipeline())


def doctor() -> Shown[list[Check]]:
    """The machine check, as a table."""
    checks = list(checkup())
    return Shown(checks, tables.doctor(describe(facts()), checks, []))


def source(workload: str) -> str:
    """The code of a workload's class, read from its file: nothing is imported.

    Raises:
        InvalidValue: no such class there.
    """
    node, text = workloads.declaration(workload)
    if node is None:
        raise InvalidValue(f"there is no class {workload}", "Write package.module:Name")
    return text
