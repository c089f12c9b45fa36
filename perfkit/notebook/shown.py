"""Results in a notebook: ordinary outputs of static HTML, which a reader without a kernel sees as well."""

import time
import uuid
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from IPython.core.getipython import get_ipython
from IPython.display import HTML, Image, display, update_display

from perfkit.show import document, html, terminal

Result = TypeVar("Result")


class Sectioned:
    """Something with sections: tables and figures are picked from them by name."""

    def sections(self) -> Sequence[document.Content]:
        """What is shown, in the order of reading."""
        raise NotImplementedError

    def parts(self) -> Sequence[document.Content]:
        """What tables and figures are picked from."""
        return self.sections()

    def table(self, title: str = "") -> HTML:
        """One table by the beginning of its title; the first one if empty.

        Raises:
            InvalidValue: no such table.
        """
        return HTML(html.fragment([document.table(self.parts(), title)]))

    def plot(self, name: str = "") -> Image:
        """One figure by its name (the first one if empty), as a PNG with a text for those who do not see it.

        Raises:
            InvalidValue: no such figure.
        """
        figure = document.figure(self.parts(), name)
        return Image(data=figure.png(), alt=figure.alt)


class Shown(Sectioned, Generic[Result]):
    """A result: what was found, and how it is shown.

    Args:
        found: what a study returned, for calculations of one's own.
        contents: its sections.
    """

    def __init__(self, found: Result, contents: Sequence[document.Content]) -> None:
        self.found = found
        self._contents = contents

    def sections(self) -> Sequence[document.Content]:
        """What is shown, in the order of reading."""
        return self._contents

    def __repr__(self) -> str:
        return terminal.text(self.sections())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return html.mimebundle(self.sections())


class Output:
    """A result in a cell: what is seen at once, widgets, folded details; replaced in place from any thread.

    A page finds an output by its id, whatever runs meanwhile.
    """

    def __init__(self) -> None:
        self.cell = ""
        """The cell that has it; empty while there is none."""
        self._parts: dict[str, dict[str, Any]] = {}
        """What is shown, by the ids of the three outputs."""
        self._shown_at = 0.0

    def place(self, contents: Sequence[document.Content] = (), acts: Any = None) -> None:
        """Makes outputs in the cell that runs, and empties the place that it had before."""
        self.show([])
        self.cell = current_cell()
        self._parts = {uuid.uuid4().hex: bundle for bundle in _bundles(contents, acts)}
        for name, bundle in self._parts.items():
            display(bundle, raw=True, display_id=name)

    def show(self, contents: Sequence[document.Content], acts: Any = None) -> None:
        """Replaces what it shows; `acts` are widgets between what is seen at once and the folded details."""
        if self._parts:
            for name, bundle in zip(self._parts, _bundles(contents, acts), strict=True):
                self._update(name, bundle)

    def leave(self, keep: bool) -> None:
        """Takes the widgets away, as they stand below a newer result; and the result, unless it is kept."""
        for name in list(self._parts)[1:2] if keep else self._parts:
            self._update(name, _NOTHING)

    def line(self, words: str, fraction: float) -> None:
        """Shows what is done, at most once a second: a browser lays out the notebook for each."""
        now = time.monotonic()
        if get_ipython() and now - self._shown_at >= 1:
            self._shown_at = now
            if not self._parts:
                self.place()
            self._update(next(iter(self._parts)), {"text/plain": f"{words}, {fraction:.0%}"})

    def _update(self, name: str, bundle: dict[str, Any]) -> None:
        if self._parts[name] != bundle:
            self._parts[name] = bundle
            update_display(bundle, raw=True, display_id=name)


_NOTHING: dict[str, Any] = {"text/html": "", "text/plain": ""}


def _bundles(contents: Sequence[document.Content], acts: Any) -> list[dict[str, Any]]:
    folded = [part for part in contents if isinstance(part, document.Section) and part.folded]
    seen = [part for part in contents if part not in folded]
    widget = {**acts._repr_mimebundle_(), "text/plain": ""} if acts and contents else _NOTHING
    return [
        html.mimebundle(seen) if seen else _NOTHING,
        widget,
        html.mimebundle(folded) if folded else _NOTHING,
    ]


def request() -> dict[str, Any]:
    """The message that the kernel is working on; empty without a kernel."""
    shell: Any = get_ipython()
    return shell.get_parent() if hasattr(shell, "get_parent") else {}


def current_cell() -> str:
    """What names the run of a cell that is under way; empty without a kernel."""
    shell = get_ipython()
    known = request().get("header", {}).get("msg_id")
    return str(known or f"cell {shell.execution_count}") if shell else ""
