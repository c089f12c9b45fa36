"""Results in a notebook: one class for all of them, whatever was studied; and what is left of a panel's.

A cell that ends with a result shows all of it. `table()` and `plot()` give one piece of it as an ordinary
HTML or PNG output, which a reader without a kernel sees too.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from IPython.display import HTML, Image, Markdown, display, update_display

from perfkit.show import document, html, terminal

Result = TypeVar("Result")

_SAYS_WHAT_TO_DO = """<style>
.jp-OutputArea:has(.pk-still) > .jp-OutputArea-child > .lm-Panel:not(:has(*)) { font-size: 0 }
.jp-OutputArea:has(.pk-still) > .jp-OutputArea-child > .lm-Panel:not(:has(*))::after {
  content: "Run this cell for the controls."; font-size: 13px }
</style>"""
"""In place of "model not found", where a trusted notebook is opened without the kernel that made it."""
_EMPTY = {"text/html": "<div class='pk-still'></div>", "text/plain": ""}


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


class Still:
    """A panel's results as ordinary outputs below its widgets, for readers without a kernel.

    They are outputs of their own. A page shows one part of a bundle: in a trusted notebook always the
    widgets, though these end with the kernel. And where HTML is cleaned (GitHub, a notebook that is not
    trusted) it has no pictures: the picture is one output, words and tables are the other.
    """

    def __init__(self) -> None:
        self._ids: tuple[str, str] | None = None

    @property
    def is_shown(self) -> bool:
        """Whether a cell has displayed the panel."""
        return self._ids is not None

    def show(self) -> None:
        """Two empty outputs, which `update` fills."""
        self._ids = self._ids or (uuid.uuid4().hex, uuid.uuid4().hex)
        for one in self._ids:
            display(_EMPTY, raw=True, display_id=one)

    def update(self, figure: document.Figure | None, contents: Sequence[document.Content]) -> None:
        """Replaces both, from any thread: a page finds an output by its id, whatever runs meanwhile."""
        if self._ids is None:
            return
        picture, words = self._ids
        bundle, about = _EMPTY, {}
        if figure and not figure.nothing:
            png = base64.b64encode(figure.png()).decode()
            bundle, about = {"image/png": png, "text/plain": figure.alt}, {"image/png": {"alt": figure.alt}}
        update_display(bundle, raw=True, metadata=about, display_id=picture)
        text = f"<div class='pk-still'>{_SAYS_WHAT_TO_DO}{html.fragment(contents)}</div>"
        bundle = {"text/html": text, "text/plain": terminal.text(contents)}
        update_display(bundle, raw=True, display_id=words)


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
        lists = (one for one in document.walk(self.sections()) if isinstance(one, document.Bullets))
        return Markdown("\n".join(f"- {item}" for one in lists for item in one.items))

    def __repr__(self) -> str:
        return terminal.text(self.sections())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        contents = self.sections()
        bundle = {"text/html": html.fragment(contents), "text/plain": repr(self)}
        if any(isinstance(one, document.Figure) for one in document.walk(contents)):
            bundle["image/png"] = base64.b64encode(self.plot().data).decode()
        return bundle
