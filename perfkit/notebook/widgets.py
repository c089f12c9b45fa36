"""Pieces of a panel. They set widget traits only: a click may arrive in any thread."""

import base64
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe, Switch, Value, switches
from perfkit.rules import joined

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


def message(words: str) -> str:
    """One error as HTML; empty for no words."""
    return f'<p role="alert">{html.escape(words)}</p>' if words else ""


def download(content: str, name: str, kind: str) -> str:
    """A link that saves a text as a file, with no server and no network."""
    data = base64.b64encode(content.encode()).decode()
    return f'<a class="pk-download" download="{name}" href="data:{kind};base64,{data}">Save {name}</a>'


def copyable(content: str) -> str:
    """Preformatted text with a button that copies it."""
    return f'<div><button onclick="{_COPY}">Copy</button><pre tabindex="0">{html.escape(content)}</pre></div>'


class Controls:
    """One control for each switch; changed ones are bold, and those that cannot act stand in one fold.

    Controls are made once and hidden, never made anew, so that the keyboard keeps its place.

    Args:
        names: the switches to show; the others keep the values of `base`.
        on_change: called after a change by hand or by `set`.
    """

    def __init__(self, names: Iterable[str], on_change: Callable[[], None] = lambda: None) -> None:
        self.recipe = self.base = Recipe()
        self.reasons: dict[str, str] = {}
        """Why a switch cannot act here, for each that is not offered."""
        self._why_not: Callable[[str, Recipe], str] = lambda name, recipe: ""
        self._on_change, self._quiet = on_change, False
        self.by_name = {name: _control(switches()[name]) for name in names}
        for name, control in self.by_name.items():
            control.observe(partial(self._changed, name), "value")
        self._fold = text("pk-n-a")
        self.widget = box([box(list(self.by_name.values()), "pk-grid"), self._fold], "pk-controls")
        self._refresh()

    def set(self, settings: Mapping[str, Value]) -> None:
        """Sets switches by name, as a hand does.

        Raises:
            InvalidValue: a switch that is not among these, or a value that is not allowed.
        """
        if unknown := set(settings) - set(self.by_name):
            raise InvalidValue(f"'{unknown.pop()}' cannot be set here", f"Allowed: {', '.join(self.by_name)}")
        self.show(self.recipe.replace(**settings))
        self._on_change()

    def show(self, recipe: Recipe) -> None:
        """Sets every control."""
        self.recipe, self._quiet = recipe, True
        for name, control in self.by_name.items():
            control.value = getattr(recipe, name)
        self._quiet = False
        self._refresh()

    def set_base(self, base: Recipe) -> None:
        """Another recipe to compare with; what was changed by hand stays changed."""
        changes, self.base = self.changes(), base
        self.show(base.replace(**changes))

    def set_rule(self, why_not: Callable[[str, Recipe], str]) -> None:
        """Why a switch cannot have a recipe's value where it is to run; empty where it can."""
        self._why_not = why_not
        self._refresh()

    def changes(self) -> dict[str, Value]:
        """The shown switches that differ from the base."""
        differ = self.recipe.diff(self.base)
        return {name: pair[0] for name, pair in differ.items() if name in self.by_name}

    def _changed(self, name: str, change: Mapping[str, Any]) -> None:
        if not self._quiet:
            self.recipe = self.recipe.replace(**{name: change["new"]})
            self._refresh()
            self._on_change()

    def _refresh(self) -> None:
        """Decides what is offered: a switch that is changed can always be put back."""
        changed = self.changes()
        reasons = {name: self._reason(switches()[name]) for name in self.by_name if name not in changed}
        self.reasons = {name: reason for name, reason in reasons.items() if reason}
        for name, control in self.by_name.items():
            for style, on in (("pk-changed", name in changed), ("pk-off", name in self.reasons)):
                (control.add_class if on else control.remove_class)(style)
        stuck = {name: reason for name in changed if (reason := self._why_not(name, self.recipe))}
        self._fold.value = message(joined(stuck)) + self._refused()

    def _refused(self) -> str:
        items = [
            f"<li><b>{html.escape(switches()[name].label)}</b>: {html.escape(reason)}</li>"
            for name, reason in self.reasons.items()
        ]
        title = f"{len(items)} switch{'es' * (len(items) > 1)} cannot act here"
        return f"<details><summary>{title}</summary><ul>{''.join(items)}</ul></details>" if items else ""

    def _reason(self, switch: Switch) -> str:
        """Why no value of a switch but its present one can act; empty where one can."""
        present = getattr(self.base, switch.name)
        others = [value for value in switch.levels or (switch.default, switch.high) if value != present]
        trials = [self.recipe.replace(**{switch.name: value}) for value in others]
        reasons = [self._why_not(switch.name, recipe) for recipe in trials]
        return reasons[-1] if reasons and all(reasons) else ""


def _control(switch: Switch) -> Any:
    traits: dict[str, Any] = {
        "value": switch.default,
        "description": switch.label,
        "tooltip": switch.help,
        "_dom_classes": ["pk-switch", f"pk-switch-{switch.name}"],
    }
    if switch.kind is bool:
        return widgets.Checkbox(indent=False, **traits)
    if switch.kind is int:
        return widgets.BoundedIntText(min=switch.low, max=switch.high, **traits)
    return widgets.Dropdown(options=list(switch.choices), **traits)
