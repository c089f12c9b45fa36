"""Results in a notebook: ordinary outputs of static HTML, which a reader without a kernel sees as well.

Below them is what a cell calls by name besides the panels: a recording, a training loop, the pipeline.
"""

import base64
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Generic, TypeVar

from IPython.core.getipython import get_ipython
from IPython.display import HTML, Markdown, display

from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.show import html, tables, terminal
from perfkit.show.document import Bullets, Content, Table, find
from perfkit.show.sentences import verdicts
from perfkit.show.style import Figure
from perfkit.studies import rungs, sources
from perfkit.studies.sources import Progress, Update

Result = TypeVar("Result")
Recipes = Mapping[str, Mapping[str, Any]]
"""Titles, and the switches that differ from the plain loop."""


class Sectioned:
    """Something with sections: tables and figures are picked from them by name."""

    _contents: Sequence[Content] = ()

    def sections(self) -> Sequence[Content]:
        """What is shown, in the order of reading."""
        return self._contents

    def parts(self) -> Sequence[Content]:
        """What tables and figures are picked from."""
        return self.sections()

    def table(self, title: str = "") -> HTML:
        """One table by the beginning of its title; the first one if empty."""
        return HTML(html.fragment([find(self.parts(), Table, title)]))

    def plot(self, name: str = "") -> HTML:
        """One figure by its name, as a PNG with a text for those who do not see it; the first if empty."""
        figure = find(self.parts(), Figure, name)
        data = base64.b64encode(figure.png()).decode()  # the Image of IPython 7 takes no text
        return HTML(f'<img alt="{escape(figure.alt)}" src="data:image/png;base64,{data}">')


class Shown(Sectioned, Generic[Result]):
    """A result: what was found, and how it is shown.

    Args:
        found: what a study returned, for calculations of one's own.
        contents: its sections.
    """

    def __init__(self, found: Result, contents: Sequence[Content]) -> None:
        self.found = found
        self._contents = contents

    def __repr__(self) -> str:
        return terminal.text(self.sections())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return html.mimebundle(self.sections())


class Output:
    """A result in a cell, replaced in place from any thread: a page finds it by its id, whatever runs."""

    def __init__(self) -> None:
        self.cell = ""
        """The cell that has it; empty while there is none."""
        self._handle: Any = None
        self._shown_at = 0.0

    def place(self) -> None:
        """Makes an output in the cell that runs, and empties the place that it had before."""
        self.show(())
        self.cell = current_cell()
        self._handle = display(_NOTHING, raw=True, display_id=True)

    def show(self, contents: Sequence[Content]) -> None:
        """Replaces what it shows."""
        if self._handle:
            self._handle.update(html.mimebundle(contents) if contents else _NOTHING, raw=True)

    def line(self, now: Update) -> None:
        """Shows what is done, at most once a second: a browser lays out the notebook for each."""
        if get_ipython() and time.monotonic() - self._shown_at >= 1:
            self._shown_at = time.monotonic()
            if not self._handle:
                self.place()
            self._handle.update({"text/plain": f"{now.describe()}, {now.fraction:.0%}"}, raw=True)


_NOTHING = {"text/html": "", "text/plain": ""}


def in_colab() -> bool:
    """Whether the kernel is Colab's, where nothing shows that a thread sets (colabtools #3373)."""
    return "google.colab" in sys.modules


def current_cell() -> str:
    """What names the run of a cell that is under way; empty without a kernel."""
    shell = get_ipython()
    return f"cell {shell.execution_count}" if shell else ""


# ---------------------------------------------------------------- what a cell calls by name


def with_line(study: Callable[[Progress], Result]) -> Result:
    """Does a study while its progress is shown in the cell; the line is gone afterwards."""
    output = Output()
    try:
        return study(Progress(output.line))
    finally:
        output.show(())


def recording(name: str | Path, stage: str | None = None) -> Shown[list[Run]]:
    """Runs of `perfkit run -o FILE`, from here or elsewhere, with the tables and figures of stored ones.

    Args:
        name: a recording that ships with perfkit, one of the user's, or a file.
        stage: the stage to show, beside the one that it was compared with; all of them if None.

    Raises:
        InvalidValue: there is no such recording, or no such stage.
        StoreError: the file is not a recording.
    """
    if stage is None:
        runs = recordings.find(str(name))
        return Shown(runs, tables.sections(runs))
    runs = rungs.climb(sources.plan(stages=[stage], device=f"{recordings.PREFIX}{name}", below=True))
    origin = runs[0].origin
    assert origin, "it is of a recording"
    return Shown(runs, [Bullets(verdicts(runs)[-1:]), tables.ladder(runs), origin.details()])


def training_loop(runs: Sequence[Run]) -> Markdown:
    """The script of the first run."""
    return Markdown(f"```python\n{next(iter(rungs.scripts(runs).values()))}```")


def pipeline() -> HTML:
    """A training loop as two queues, with knobs; it needs no kernel once it is shown."""
    return HTML(html.pipeline())
