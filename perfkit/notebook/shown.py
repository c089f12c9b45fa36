"""Results in a notebook: one class for all of them, whatever was studied.

A cell that ends with a result shows all of it. `table()` and `plot()` give one piece of it as an ordinary
HTML or PNG output, which a reader without a kernel sees too.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from IPython.display import HTML, Image, Markdown

from perfkit.show import document, html, style, terminal

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

    def plot(self, name: str = "", dark: bool = False, large: bool = False) -> Image:
        """One figure by its name (the first one if empty), as a PNG with a text for those who do not see it.

        Raises:
            InvalidValue: no such figure.
        """
        figure = document.figure(self.sections(), name)
        return Image(data=style.to_png(figure.draw(dark, large)), alt=figure.alt)


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
