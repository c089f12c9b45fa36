"""A trace in a notebook, whether a file or one's own run: tables, pictures, the timeline."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython.display import HTML, Image

from perfkit import trace
from perfkit.errors import InvalidValue, one_of
from perfkit.notebook import layout
from perfkit.show import timeline, trace_tables
from perfkit.show import trace_figures as trace_views
from perfkit.studies import inspect
from perfkit.trace import diagnosis, loading


class Reading:
    """What a trace says.

    Args:
        files: `*.pt.trace.json[.gz]`, one a rank.
        own: a profile of one's own, in the place of files.

    Raises:
        TraceError: a file is no trace, or damaged.
    """

    def __init__(
        self, files: str | Path | Sequence[str | Path] = (), own: inspect.Profile | None = None
    ) -> None:
        self.profile = own
        self.trace = own.trace if own else trace.load(files)
        self.analysis = own.analysis if own else trace.analyse(self.trace)
        self.findings = diagnosis.diagnose(self.analysis)
        self.sections = trace_tables.sections(self.analysis, self.findings)
        if own:
            self.sections.append(trace_tables.loading(own.loading))

    def table(self, title: str) -> HTML:
        """One table by the beginning of its title: `Mean step`, `Operators` and so on.

        Raises:
            InvalidValue: no such table.
        """
        titles = [section.title for section in self.sections]
        found = next((s for s in self.sections if s.title.lower().startswith(title.lower())), None)
        if found is None:
            raise one_of(title, titles, "table")
        return _table(found)

    def plot(self, name: str, dark: bool = False) -> Image:
        """A picture: `breakdown`, `pie`, `ladder`, `operators`, `kernels`, `memory`, `timeline`.

        Raises:
            InvalidValue: no such picture.
        """
        figure = trace_views.figure(name, self.analysis, self._window(0), dark)
        return layout.image(figure)

    def timeline(self, step: int = 0) -> HTML:
        """A step's threads, streams, copies and workers, to zoom and pan in."""
        window = self._window(step)
        return HTML(timeline.frame(window) if window else "<p>n/a: the trace has no steps</p>")

    def compare(self, other: Reading) -> HTML:
        """What appeared, vanished, grew and shrank from this trace to another one."""
        changed = trace_tables.comparison(trace.compare(self.analysis, other.analysis))
        return HTML("".join(f"<h4>{section.title}</h4>{_table(section).data}" for section in changed))

    def _window(self, step: int) -> trace.Lanes | None:
        if not self.analysis.steps:
            return None
        if self.profile and self.profile.loading:
            return loading.lanes(
                self.profile.loading, trace.lanes(self.trace, step), self.profile.marks[step]
            )
        return trace.lanes(self.trace, step)


def _table(section: trace_tables.Section) -> HTML:
    shown = layout.html_table(section.columns, section.rows) if section.rows else ""
    return HTML(f"{shown}{layout.message(section.note)}")


def profile(*which: Any, **how: Any) -> Reading:
    """Profiles some steps in a fresh process, and reads the trace; arguments as for `perfkit.profile`."""
    return Reading(own=inspect.profile(*which, **how))


class Found:
    """Lines that copy or wait between host and device in a training's steps."""

    def __init__(self, places: list[dict[str, Any]], steps: int) -> None:
        self.places, self.steps = places, steps

    @property
    def a_step(self) -> float:
        """How many there are in a step."""
        return float(sum(place["count"] for place in self.places)) / self.steps

    def table(self) -> HTML:
        """One row a line of code, with the way out."""
        if not self.places:
            return HTML(layout.message("no copy and no wait between host and device"))
        rows = [
            [place["where"], place["call"], place["kind"], f"{place['count'] / self.steps:g}", place["fix"]]
            for place in self.places
        ]
        return HTML(layout.html_table(("line", "call", "is", "a step", "way out"), rows))


def find_syncs(*which: Any, steps: int = 4, **how: Any) -> Found:
    """Watches some training steps in a fresh process; arguments as for `perfkit.profile`."""
    how["steps"] = steps
    return Found(inspect.syncs(*which, **how)["places"], steps)


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
