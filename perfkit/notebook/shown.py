"""Results in a notebook: ordinary outputs of static HTML, which a reader without a kernel sees as well."""

import uuid
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from IPython.core.getipython import get_ipython
from IPython.display import HTML, Image, Markdown, display, update_display

from perfkit.show import document, html, terminal

Result = TypeVar("Result")


class Sectioned:
    """Something with sections: tables and figures are picked from them by name."""

    def sections(self) -> Sequence[document.Content]:
        """All there is to show, in the order of reading."""
        raise NotImplementedError

    def table(self, title: str = "") -> HTML:
        """One table by the beginning of its title; the first one if empty.

        Raises:
            InvalidValue: no such table.
        """
        return HTML(html.fragment([document.table(self.sections(), title)]))

    def plot(self, name: str = "", dark: bool = False) -> Image:
        """One figure by its name (the first one if empty), as a PNG with a text for those who do not see it.

        Raises:
            InvalidValue: no such figure.
        """
        figure = document.figure(self.sections(), name)
        return Image(data=figure.png(dark), alt=figure.alt)


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
        """All there is to show, in the order of reading."""
        return self._contents

    def words(self) -> Markdown:
        """What follows from the result, as a list."""
        lists = [part for part in document.walk(self.sections()) if isinstance(part, document.Bullets)]
        return Markdown("\n".join(f"- {item}" for part in lists for item in part.items))

    def __repr__(self) -> str:
        return terminal.text(self.sections())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return mimebundle(self.sections())


class Output:
    """An output of the cell that runs, which is replaced in place from any thread.

    A page finds an output by its id, whatever runs meanwhile.
    """

    def __init__(self) -> None:
        self._id = ""
        self.cell = ""
        """The cell that has it; empty while there is none."""

    def place(self, contents: Sequence[document.Content] = ()) -> None:
        """Makes an output in the cell that runs, and empties the place that it had before."""
        self.show([])
        self._id, self.cell = uuid.uuid4().hex, current_cell()
        display(mimebundle(contents), raw=True, display_id=self._id)

    def show(self, contents: Sequence[document.Content]) -> None:
        """Replaces what it shows."""
        self._update(mimebundle(contents))

    def line(self, words: str) -> None:
        """Replaces what it shows with one line of text."""
        self._update({"text/plain": words})

    def _update(self, bundle: dict[str, str]) -> None:
        if self._id:
            update_display(bundle, raw=True, display_id=self._id)


def mimebundle(contents: Sequence[document.Content]) -> dict[str, str]:
    """Sections as one output."""
    if not contents:
        return {"text/html": "", "text/plain": ""}
    return html.mimebundle(contents)


def current_cell() -> str:
    """The request that the kernel is working on; empty without a kernel."""
    shell: Any = get_ipython()
    if shell is None:
        return ""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return str(parent.get("header", {}).get("msg_id") or f"cell {shell.execution_count}")
