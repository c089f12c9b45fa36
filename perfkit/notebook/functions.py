"""What a cell calls by name, besides the panels: studies, traces to read, facts and commands to copy."""

from __future__ import annotations

import ast
import html
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from IPython.display import HTML, Markdown

from perfkit import trace
from perfkit.errors import InvalidValue, PerfkitError, one_of
from perfkit.machine import Check, checkup, describe, facts
from perfkit.notebook.job import Line
from perfkit.notebook.ladder import Recipes
from perfkit.notebook.shown import Shown
from perfkit.recipe import Value
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.search import attribute as attributing
from perfkit.search import tables as tables_search
from perfkit.search import tune as tuning
from perfkit.search.attribution import Attribution
from perfkit.search.tuning import Tuned
from perfkit.show import html as page
from perfkit.show import tables, tables_inside, tables_studies
from perfkit.show.document import Bullets
from perfkit.show.html import fragment
from perfkit.show.sentences import verdicts
from perfkit.studies import inspect, scaling
from perfkit.studies import plan as plans
from perfkit.trace import diagnosis, report
from perfkit.trace.figures import interactive
from perfkit.worker import reports

_Result = TypeVar("_Result")


def with_line(study: Callable[[Callable[[plans.Progress], None]], _Result]) -> _Result:
    """Does a study while a line of progress is shown, which ends with its error."""
    line = Line()
    try:
        result = study(lambda step: line.progress(step.describe(), step.fraction))
    except PerfkitError as problem:
        line.end(str(problem))
        raise
    line.end()
    return result


def attribute(names: Sequence[str] | None = None, minutes: float = 10.0, **where: Any) -> Shown[Attribution]:
    """Measures what each optimization is worth; the stop button ends it, and what was measured is kept.

    Tables: What each, Interactions. Figure: worth.

    Args:
        names: optimizations; those of the default ladder that can act here if None.
        minutes: of measuring.
        where: `workload`, `preset`, `device`, `options` as for the panels.

    Raises:
        PerfkitError: a name that is not allowed, or nothing could be measured.
    """
    plan = plans.plan(stages=["baseline"], **where)
    found = with_line(lambda show: attributing.attribute(plan, names, 60 * minutes, on_progress=show))
    return Shown(found, tables_search.attribution(found))


def tune(
    space: Mapping[str, Sequence[Value]] | None = None, minutes: float = 10.0, memory_gb: float | None = None,
    **where: Any,
) -> Shown[Tuned]:  # fmt: skip
    """Finds the fastest recipe of a space; the stop button ends it, and what was measured is kept.

    Table: Tried. Figure: pareto.

    Args:
        space: values by switch; the usual ones if None.
        minutes: of measuring.
        memory_gb: a cap; recipes above it are not picked.
        where: `workload`, `preset`, `device`, `options` as for the panels.

    Raises:
        PerfkitError: a switch or value that is not allowed, or nothing could be measured.
    """
    plan = plans.plan(stages=["baseline"], **where)
    cap = int(memory_gb * 1e9) if memory_gb else None
    found = with_line(lambda show: tuning.tune(plan, space, cap, 60 * minutes, on_progress=show))
    return Shown(found, tables_search.tuning(found))


def memory(recipes: Recipes, workload: str | None = None, **where: Any) -> Shown[Any]:
    """What holds memory in a step of each recipe; arguments as for `perfkit.profile`. Figure: held."""
    ledgers = [
        msgspec.structs.replace(inspect.memory(workload, settings=changes, **where), recipe=title)
        for title, changes in recipes.items()
    ]
    return Shown(ledgers, tables_inside.memory(ledgers))


def kernels(workload: str | None = None, recipe: Any = None, **where: Any) -> Shown[Any]:
    """The device's roofs, shapes, and a step's share of them; arguments as for `perfkit.profile`.

    Figures: roofline, shapes.
    """
    found = inspect.kernels(workload, recipe, **where)
    return Shown(found, tables_inside.kernels(found))


class SyncReport(Shown[Any]):
    """Lines that copy or wait between host and device in a training's steps."""

    def __init__(self, report: reports.SyncReport) -> None:
        super().__init__(report.places, tables_inside.syncs(report))
        self.places, self.steps = report.places, report.steps

    @property
    def a_step(self) -> float:
        """How many there are in a step."""
        return sum(place.count for place in self.places) / self.steps


def find_syncs(*which: Any, **how: Any) -> SyncReport:
    """Watches some training steps in a fresh process; arguments as for `perfkit.profile`."""
    return SyncReport(inspect.syncs(*which, **how))


class TraceView(Shown[trace.Analysis]):
    """What a trace says. Figures: `breakdown`, `ladder`, `operators`, `kernels`, `memory`, `timeline`.

    Args:
        files: `*.pt.trace.json[.gz]`, one per rank.
        own: a profile of one's own, in the place of files.

    Raises:
        TraceError: a file is not a trace, or is damaged.
    """

    def __init__(
        self, files: str | Path | Sequence[str | Path] = (), own: inspect.Profile | None = None
    ) -> None:
        self.profile = own
        self.trace = own.trace if own else trace.load(files)
        self.analysis = own.analysis if own else trace.analyse(self.trace)
        self.findings = diagnosis.diagnose(self.analysis)
        window = self._window(0)
        contents = report.sections(self.analysis, self.findings, window, own.loading if own else None)
        super().__init__(self.analysis, contents)

    def timeline(self, step: int = 0) -> HTML:
        """A step's threads, streams, copies and workers, to zoom and pan in."""
        window = self._window(step)
        return HTML(fragment([interactive(window) if window else "n/a: the trace has no steps"]))

    def _window(self, step: int) -> trace.Lanes | None:
        if not self.analysis.steps:
            return None
        return self.profile.lanes(step) if self.profile else trace.lanes(self.trace, step)


def recording(name: str | Path, stage: str | None = None) -> Shown[list[Run]]:
    """Runs of `perfkit run --record`, from here or elsewhere, with the tables and figures of stored ones.

    Args:
        name: of a recording that ships with perfkit or of the user's own; or a file.
        stage: show what this one did, beside the measured one before it; all of them if None.

    Raises:
        InvalidValue: there is no such recording, or no such stage in it.
        StoreError: the file is not one.
    """
    loaded = recordings.find(str(name))
    origin = loaded.provenance.describe()
    if stage is None:
        return Shown(loaded.runs, [origin, *tables.sections(loaded.runs)])
    stages = [run.stage for run in loaded.runs]
    if stage not in stages:
        raise one_of(stage, stages, "stage of this recording")
    at = stages.index(stage)
    measured = [run for run in loaded.runs[:at] if run.status == "ok"]
    pair = [*measured[-1:], loaded.runs[at]]
    return Shown(pair, [Bullets(verdicts(pair)[-1:]), tables.short_ladder(pair), origin])


def training_loop(runs: Sequence[Run]) -> Markdown:
    """Loader and training loop of the first run's script; the whole of it is folded."""
    from perfkit import export

    script = next(iter(plans.scripts(runs).values()))
    return Markdown(
        f"```python\n{export.excerpt(script)}```\n\n<details><summary>The whole script, "
        f"{len(script.splitlines())} lines</summary>\n\n```python\n{script}```\n\n</details>"
    )


def profile(*which: Any, **how: Any) -> TraceView:
    """Profiles some steps in a fresh process, and reads the trace; arguments as for `perfkit.profile`."""
    return TraceView(own=inspect.profile(*which, **how))


def pipeline() -> HTML:
    """A training loop as two queues, with knobs; it needs no kernel once it is shown."""
    return HTML(page.pipeline())


def machine() -> Markdown:
    """This machine in one line, and which parts of the workbook can run on it."""
    return Markdown(html.escape(describe(facts())))


def doctor() -> Shown[list[Check]]:
    """The machine check, as a table."""
    checks = list(checkup())
    return Shown(checks, tables_studies.doctor(describe(facts()), checks, []))


def torchrun(ranks: int, nodes: int = 1) -> Markdown:
    """The command for a cluster.

    Raises:
        InvalidValue: the ranks cannot be split evenly.
    """
    return Markdown(f"```bash\n{scaling.torchrun('train.py', ranks, nodes)}\n```")


def source(workload: str) -> str:
    """The code of a workload's class, read from its file: nothing is imported.

    Raises:
        InvalidValue: no such class there.
    """
    module, _, name = workload.partition(":")
    spec = importlib.util.find_spec(module)
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return (ast.get_source_segment(text, node) or "") + "\n"
    raise InvalidValue(f"there is no class {name} in {module}", "Write package.module:Name")
