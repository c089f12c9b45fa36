"""Pieces of a panel: boxes, buttons, slots for HTML, and what goes into the slots.

Everything here sets widget traits only: no print, no display, no Output widget. A click may arrive in any
thread, depending on the version of ipykernel.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, NamedTuple

import ipywidgets as widgets
from markdown_it import MarkdownIt

STYLE = f"<style>{resources.files('perfkit.notebook').joinpath('panel.css').read_text('utf-8')}</style>"


class Action(NamedTuple):
    """What a person can do about a message: a button."""

    label: str
    act: Callable[[], None]


class Offer:
    """The one button beside a message; hidden while there is nothing to do."""

    def __init__(self) -> None:
        self._action: Action | None = None
        self.widget = button("", "pk-offer", "", self._press)
        self.show(None)

    def show(self, action: Action | None) -> None:
        """Offers an action, or nothing."""
        self._action = action
        set_class(self.widget, "pk-off", action is None)
        if action:
            self.widget.description = self.widget.tooltip = action.label

    def _press(self) -> None:
        if self._action:
            self._action.act()


class Boxed:
    """Something that a cell shows as a box of widgets; without a browser, as a sentence."""

    box: widgets.VBox
    large = False
    text = "perfkit panel: run this cell for the controls, or call .run() to measure"

    def _fill(self, children: Sequence[widgets.Widget]) -> None:
        self.box = box([widgets.HTML(STYLE), *children], "pk-panel")

    def enlarge(self, large: bool) -> None:
        """Large type in this box, or type of the usual size."""
        self.large = large
        set_class(self.box, "pk-large", large)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = self.box._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": self.text}


def box(children: Sequence[widgets.Widget], *classes: str) -> widgets.VBox:
    """Widgets below each other."""
    return widgets.VBox(children, _dom_classes=classes)


def row(children: Sequence[widgets.Widget], *classes: str) -> widgets.HBox:
    """Widgets beside each other, wrapping where there is no room."""
    return widgets.HBox(children, _dom_classes=classes)


def html_slot(*classes: str, text: str = "") -> widgets.HTML:
    """An empty slot for HTML."""
    return widgets.HTML(text, _dom_classes=classes)


def button(text: str, name: str, tooltip: str, act: Callable[[], None], kind: str = "") -> widgets.Button:
    """A button; `name` is the CSS class that tests and styles know it by."""
    widget = widgets.Button(description=text, tooltip=tooltip, button_style=kind, _dom_classes=[name])
    widget.on_click(lambda _: act())
    return widget


def field(kind: Any, label: str, *classes: str, **traits: Any) -> Any:
    """A labelled field of one of the kinds of ipywidgets."""
    return kind(description=label, _dom_classes=classes, **traits)


def set_class(widget: widgets.DOMWidget, name: str, on: bool) -> None:
    """Gives a widget a CSS class, or takes it away."""
    (widget.add_class if on else widget.remove_class)(name)


def message(text: str) -> str:
    """One error or hint."""
    return f'<p role="alert">{html.escape(text)}</p>' if text else ""


def markdown(text: str) -> str:
    """Markdown as HTML, its headings small enough for a panel; HTML in it is shown as text."""
    renderer = MarkdownIt("commonmark", {"html": False})
    return str(renderer.render(text)).replace("<h2>", "<h4>").replace("</h2>", "</h4>")


def code_spans(text: str) -> str:
    """Text as HTML, with what stands in backticks as code; markup in it is shown as text."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def download(text: str, name: str, kind: str) -> str:
    """A link that saves a text as a file, with no server and no network."""
    data = base64.b64encode(text.encode()).decode()
    return f'<a class="pk-download" download="{name}" href="data:{kind};base64,{data}">Save {name}</a>'


def report_link(page: str) -> str:
    """A link that saves a report."""
    return download(page, "perfkit-report.html", "text/html")
