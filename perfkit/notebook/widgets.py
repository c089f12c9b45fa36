"""Pieces of a panel: boxes, buttons, pieces of HTML, links that save a file.

Everything here sets widget traits only: no print, no display, no Output widget. A click may arrive in any
thread, depending on the version of ipykernel.
"""

import base64
import html
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import ipywidgets as widgets
from markdown_it import MarkdownIt

STYLE = f"<style>{resources.files('perfkit.notebook').joinpath('panel.css').read_text('utf-8')}</style>"

# `navigator.clipboard` is missing on pages that come over plain http from another machine.
_COPY = (
    "const pre = this.parentElement.querySelector('pre'), range = document.createRange();"
    "range.selectNodeContents(pre); const all = getSelection(); all.removeAllRanges(); all.addRange(range);"
    "this.textContent = document.execCommand('copy') ? 'Copied' : 'Press Ctrl+C'"
)


def box(children: Sequence[widgets.Widget], *classes: str) -> widgets.VBox:
    """Widgets below each other."""
    return widgets.VBox(children, _dom_classes=classes)


def row(children: Sequence[widgets.Widget], *classes: str) -> widgets.HBox:
    """Widgets beside each other, wrapping where there is no room."""
    return widgets.HBox(children, _dom_classes=classes)


def text(*classes: str, value: str = "") -> widgets.HTML:
    """A piece of HTML; hidden while it is empty."""
    return widgets.HTML(value, _dom_classes=classes)


def button(label: str, name: str, tooltip: str, act: Callable[[], None], kind: str = "") -> widgets.Button:
    """A button; `name` is the CSS class that tests and styles know it by."""
    widget = widgets.Button(description=label, tooltip=tooltip, button_style=kind, _dom_classes=[name])
    widget.on_click(lambda _: act())
    return widget


def field(kind: Any, label: str, *classes: str, **traits: Any) -> Any:
    """A labelled field of one of the kinds of ipywidgets."""
    return kind(description=label, _dom_classes=classes, **traits)


def set_class(widget: widgets.DOMWidget, name: str, on: bool) -> None:
    """Adds a CSS class to a widget, or removes it."""
    (widget.add_class if on else widget.remove_class)(name)


def message(words: str) -> str:
    """One error or hint as HTML; empty for no words."""
    return f'<p role="alert">{html.escape(words)}</p>' if words else ""


def markdown(words: str) -> str:
    """Markdown as HTML, its headings small enough for a panel; HTML in it is shown as text."""
    renderer = MarkdownIt("commonmark", {"html": False})
    return str(renderer.render(words)).replace("<h2>", "<h4>").replace("</h2>", "</h4>")


def code_spans(words: str) -> str:
    """Text as HTML, with what stands in backticks as code; markup in it is shown as text."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(words))


def download(content: str, name: str, kind: str) -> str:
    """A link that saves a text as a file, with no server and no network."""
    data = base64.b64encode(content.encode()).decode()
    return f'<a class="pk-download" download="{name}" href="data:{kind};base64,{data}">Save {name}</a>'


def copyable(content: str) -> str:
    """Preformatted text with a button that copies it, also on a page over plain http."""
    return f'<div><button onclick="{_COPY}">Copy</button><pre tabindex="0">{html.escape(content)}</pre></div>'
