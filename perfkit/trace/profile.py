"""One recipe under the profiler, in a fresh process: the trace file, and what it says."""

import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.show.document import Content
from perfkit.studies.inspect import prepared
from perfkit.studies.sources import Progress
from perfkit.trace import report


@dataclass(frozen=True)
class Profile:
    """A trace, and what it says."""

    trace: traces.Trace
    path: Path | None = None
    """The trace; chrome://tracing and ui.perfetto.dev open it."""

    @cached_property
    def analysis(self) -> traces.Analysis:
        """What the trace says."""
        return traces.analyse(self.trace)

    def sections(self) -> list[Content]:
        """Everything that is reported."""
        window = traces.lanes(self.trace) if self.analysis.steps else None
        return report.sections(self.analysis, window)


def profile(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    steps: int = 3,
    stacks: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **where: Any,
) -> Profile:
    """Profiles some steps of a recipe, or of a rung of the ladder.

    Args:
        workload: a built-in one, or `package.module:name`.
        recipe: the switches, or the name of a rung, on top of the default ladder below it; the plain loop
            if None.
        steps: how many to record, after five that are skipped or discarded.
        stacks: whether with Python frames.
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
    with prepared(workload, recipe, where, progress) as (source, used):
        how = {"wait": 1, "warmup": 4, "active": steps, "stacks": stacks}
        source.look(used, "profile", str, path=str(path.absolute()), **how)
    return Profile(traces.load(path), path)
