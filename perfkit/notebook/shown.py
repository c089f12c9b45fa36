"""Results in a notebook: ordinary outputs of static HTML, which a reader without a kernel sees as well."""

import base64
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Generic, TypeVar

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import HTML, Markdown, display

from perfkit.errors import InvalidValue
from perfkit.results.run import Run
from perfkit.show import html, terminal
from perfkit.show.document import Content, Table, find
from perfkit.show.style import Figure
from perfkit.studies import staging
from perfkit.studies.sources import Progress, Update

Result = TypeVar("Result")
Recipes = Mapping[str, Mapping[str, Any]]  # titles, and the switches that differ from the plain loop


class Sectioned:
    """Something with sections: tables and figures are picked from them by name."""

    _contents: Sequence[Content] = ()

    def sections(self) -> Sequence[Content]:
        return self._contents

    def parts(self) -> Sequence[Content]:
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
    """A result: what a study `found`, for your own calculations, and the sections that show it."""

    def __init__(self, found: Result, contents: Sequence[Content]) -> None:
        self.found = found
        self._contents = contents

    def __repr__(self) -> str:
        return terminal.text(self.sections())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return html.mimebundle(self.sections())


class CellOutput:
    """An output of a cell that any thread can replace: the page finds it by its id, whichever cell runs.

    Where no cell has it, the widget `inside` shows it: in a box of widgets, or in an Output widget, which
    does not update what it has captured.
    """

    def __init__(self, inside: widgets.HTML | None = None) -> None:
        self.cell = ""  # the cell that has it; empty while there is none
        self._inside = inside
        self._handle: Any = None
        self._shown_at = 0.0

    def move_here(self) -> None:
        self.show(())
        self.cell = current_cell()
        self._handle = None
        registered = getattr(widgets.widgets.widget, "_instances", None) or widgets.Widget.widgets
        outputs = [widget for widget in list(registered.values()) if isinstance(widget, widgets.Output)]
        if not (self._inside and any(output.msg_id for output in outputs)):  # it would capture what is shown
            self._handle = display(_NOTHING, raw=True, display_id=True)

    def show(self, contents: Sequence[Content]) -> None:
        if self._handle:
            self._handle.update(html.mimebundle(contents) if contents else _NOTHING, raw=True)
        elif self._inside:
            self._inside.value = html.fragment(contents) if contents else ""

    def line(self, now: Update) -> None:
        """Shows what is done, at most once a second: a browser lays out the notebook for each."""
        if get_ipython() and time.monotonic() - self._shown_at >= 1:
            self._shown_at = time.monotonic()
            if not self._handle:
                self.move_here()
            self._handle.update({"text/plain": f"{now.describe()}, {now.fraction:.0%}"}, raw=True)


_NOTHING = {"text/html": "", "text/plain": ""}


def in_colab() -> bool:
    """Whether the kernel is Colab's, where nothing shows that a thread sets (colabtools #3373)."""
    return "google.colab" in sys.modules


def current_cell() -> str:
    """The name of the run of a cell that is under way; empty without a kernel."""
    shell = get_ipython()
    return f"cell {shell.execution_count}" if shell else ""


def with_line(study: Callable[[Progress], Result]) -> Result:
    """Does a study while its progress is shown in the cell; the line is gone afterwards."""
    output = CellOutput()
    try:
        return study(Progress(output.line))
    finally:
        output.show(())


def training_loop(runs: Sequence[Run]) -> Markdown:
    """The script of the first run that was measured."""
    measured = [run for run in runs if run.status == "ok" and run.script is None]
    if not measured:
        raise InvalidValue("none of these runs has a script", "Give runs that perfkit has measured")
    return Markdown(f"```python\n{staging.script(measured[0])}```")
