"""One recipe under the profiler, in a fresh process: the trace file, what it says, what the profiler cost."""

import secrets
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.show.units import number
from perfkit.studies.inspect import prepared
from perfkit.studies.progress import Progress
from perfkit.studies.sources import ProfilerOptions
from perfkit.trace import loading


@dataclass(frozen=True)
class Profile:
    """A profile and its analysis."""

    path: Path
    """The trace; chrome://tracing and ui.perfetto.dev open it."""
    recipe: Recipe
    trace: traces.Trace
    analysis: traces.Analysis
    slowdown: float | None
    """A profiled step's time over that of one without the profiler, by medians of a few: rough."""
    loading: loading.Loading | None
    """What the loader did for these steps; None without one, if the data set lies on the device."""
    marks: list[float]
    """Where each recorded step starts, on the clock of the loader's times."""

    def lanes(self, step: int = 0) -> traces.Lanes:
        """The timeline of a recorded step, with a row for each loader worker on top."""
        window = traces.lanes(self.trace, step)
        return loading.lanes(self.loading, window, self.marks[step]) if self.loading else window

    def describe(self) -> str:
        """Where the file is, and how much the profiler slowed the steps down."""
        cost = f"with the profiler a step takes about {number(self.slowdown)}× the time of one without it"
        if self.analysis.device["simulated"]:
            cost = "simulated, no profiler ran"
        return f"{self.path}: {cost}. Open it in https://ui.perfetto.dev"


def profile(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    profiler: ProfilerOptions | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **where: Any,
) -> Profile:
    """Profiles some steps of a recipe, or of a rung of the ladder.

    Args:
        workload: a built-in one, or `package.module:name`.
        recipe: the switches, or the name of a rung, on top of the default ladder below it; the plain loop
            if None.
        profiler: what to record.
        out: the trace file; a new one among the runs if None.
        progress: follows and stops it.
        where: preset, settings, device, options, seed, host, as for `perfkit.plan`.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}.pt.trace.json.gz"
    path = Path(out) if out else machine.runs_folder() / "profiles" / name
    if not path.name.endswith((".json", ".json.gz")):
        raise InvalidValue(f"cannot write a trace to {path}", "Give a name that ends in .json or .json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="perfkit-") as folder,
        prepared(workload, recipe, where, progress) as (source, used),
    ):
        report = source.profile(used, path, profiler or ProfilerOptions(), Path(folder))
        fetches = list(loading.read_notes(Path(folder)))
    trace = traces.load(path)
    analysis = traces.analyse(trace)
    steps = [step.duration_us / 1e6 for step in analysis.steps]
    slowdown = statistics.median(steps) / report.plain_step_s if steps else None
    marks = report.marks
    loaded = loading.join(fetches, report.taken, used.batch_size, used.workers, marks)
    return Profile(path, used, trace, analysis, slowdown, loaded, marks)
