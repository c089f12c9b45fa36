"""Pieces of a panel: boxes, buttons, slots for HTML, and what goes into the slots.

Everything here sets widget traits only: no print, no display, no Output widget. A click may arrive in any
thread, depending on the version of ipykernel.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
from markdown_it import MarkdownIt

STYLE = """<style>
.pk-panel { border: 1px solid var(--jp-border-color2, #bbb); border-radius: 4px; padding: 8px 12px; }
.pk-panel, .pk-panel .widget-label, .pk-panel .widget-html-content { color: var(--jp-content-font-color1); }
.pk-panel table { border-collapse: collapse; font-size: 13px; line-height: 1.4; }
.pk-panel th, .pk-panel td { padding: 3px 9px; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--jp-border-color2, #ccc); white-space: normal; }
.pk-panel pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; line-height: 1.35; }
.pk-panel .pk-error p { border-left: 4px solid #d55e00; padding: 4px 10px; margin: 4px 0; }
.pk-panel p, .pk-panel ul { margin: 4px 0; line-height: 1.45; }
.pk-panel ul { padding-left: 20px; }
.pk-panel .pk-card { max-width: 75ch; }
.pk-panel svg { display: block; }
.pk-panel a { text-decoration: underline; }
.pk-large .widget-html-content, .pk-large .widget-label, .pk-large table { font-size: 19px !important; }
.pk-large button { font-size: 18px; height: auto; }
</style>"""


class Boxed:
    """Something that a cell shows as a box of widgets; without a browser, as a sentence."""

    box: widgets.VBox
    text = "perfkit panel: run this cell for the controls, or call .run() to measure"

    def _fill(self, children: Sequence[widgets.Widget]) -> None:
        self.box = box([widgets.HTML(STYLE), *children], "pk-panel")

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = self.box._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": self.text}


def box(children: Sequence[widgets.Widget], *classes: str, **layout: str) -> widgets.VBox:
    """Widgets below each other."""
    return widgets.VBox(children, layout=layout, _dom_classes=classes)


def row(children: Sequence[widgets.Widget], *classes: str, **layout: str) -> widgets.HBox:
    """Widgets beside each other, wrapping where there is no room."""
    return widgets.HBox(children, layout={"flex_flow": "row wrap", **layout}, _dom_classes=classes)


def html_slot(*classes: str, text: str = "") -> widgets.HTML:
    """An empty slot for HTML."""
    return widgets.HTML(text, layout={"margin": "2px 0"}, _dom_classes=classes)


def button(text: str, name: str, tooltip: str, act: Callable[[], None], kind: str = "") -> widgets.Button:
    """A button; `name` is the CSS class that tests and styles know it by."""
    look = {"layout": {"width": "auto"}, "_dom_classes": [name], "button_style": kind}
    widget = widgets.Button(description=text, tooltip=tooltip, **look)
    widget.on_click(lambda _: act())
    return widget


def field(kind: Any, label: str, width: int, label_width: int, **traits: Any) -> Any:
    """A labelled field of one of the kinds of ipywidgets; widths in pixels."""
    return kind(
        description=label, layout={"width": f"{width}px"}, style={"description_width": f"{label_width}px"},
        **traits,
    )  # fmt: skip


def message(text: str) -> str:
    """One error or hint."""
    return f'<p role="alert">{html.escape(text)}</p>' if text else ""


def markdown(text: str) -> str:
    """Markdown as HTML, its headings small enough for a panel; HTML in it is shown as text."""
    renderer = MarkdownIt("commonmark", {"html": False})
    return str(renderer.render(text)).replace("<h2>", "<h4>").replace("</h2>", "</h4>")


def download(text: str, name: str, kind: str) -> str:
    """A link that saves a text as a file, with no server and no network."""
    data = base64.b64encode(text.encode()).decode()
    return f'<a class="pk-download" download="{name}" href="data:{kind};base64,{data}">Save {name}</a>'


def report_link(page: str) -> str:
    """A link that saves a report."""
    return download(page, "perfkit-report.html", "text/html")
