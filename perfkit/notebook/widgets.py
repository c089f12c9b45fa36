"""Pieces of a panel. They set widget traits only: a click may arrive in any thread."""

import base64
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def button(label: str, tooltip: str, act: Callable[[], None], kind: str = "") -> widgets.Button:
    """A button; tests and styles know it by the first word of its label: `pk-run`."""
    name = f"pk-{label.partition(' ')[0].lower()}"
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
        for control in self.by_name.values():
            control.observe(self._changed, "value")
        self._fold = text("pk-n-a")
        self.widget = box([box([*self.by_name.values()], "pk-grid"), self._fold], "pk-controls")

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
        """Sets every control, and decides what is offered: what is changed can always be put back."""
        self.recipe, self._quiet = recipe, True
        changed = self.changes()
        reasons = {name: self._reason(switches()[name]) for name in self.by_name if name not in changed}
        self.reasons = {name: reason for name, reason in reasons.items() if reason}
        for name, control in self.by_name.items():
            style = ["pk-changed"] if name in changed else ["pk-off"] if name in self.reasons else []
            control.value, control._dom_classes = getattr(recipe, name), [*_classes(name), *style]
        stuck = {name: reason for name in changed if (reason := self._why_not(name, recipe))}
        self._fold.value = message(joined(stuck)) + self._refused()
        self._quiet = False

    def offer(self, base: Recipe, why_not: Callable[[str, Recipe], str]) -> None:
        """Another recipe to compare with, and another place; what was changed by hand stays changed.

        Args:
            base: where nothing is changed.
            why_not: why a switch cannot have a recipe's value there; empty where it can.
        """
        changes, self.base, self._why_not = self.changes(), base, why_not
        self.show(base.replace(**changes))

    def changes(self) -> dict[str, Value]:
        """The shown switches that differ from the base."""
        differ = self.recipe.diff(self.base)
        return {name: pair[0] for name, pair in differ.items() if name in self.by_name}

    def _changed(self, _: object) -> None:
        if not self._quiet:
            self.set({name: control.value for name, control in self.by_name.items()})

    def _reason(self, switch: Switch) -> str:
        """Why no value of a switch but its present one can act; empty where one can."""
        others = [level for level in switch.levels if level != getattr(self.base, switch.name)]
        reasons = [self._why_not(switch.name, self.recipe.replace(**{switch.name: one})) for one in others]
        return reasons[-1] if all(reasons) else ""

    def _refused(self) -> str:
        items = [
            f"<li><b>{html.escape(switches()[name].label)}</b>: {html.escape(reason)}</li>"
            for name, reason in self.reasons.items()
        ]
        title = f"{len(items)} switch{'es' * (len(items) > 1)} cannot act here"
        return f"<details><summary>{title}</summary><ul>{''.join(items)}</ul></details>" if items else ""


def _classes(name: str) -> list[str]:
    return ["pk-switch", f"pk-switch-{name}"]


def _control(switch: Switch) -> Any:
    traits: dict[str, Any] = {
        "value": switch.default,
        "description": switch.label,
        "tooltip": switch.help,
        "_dom_classes": _classes(switch.name),
    }
    if switch.kind is bool:
        return widgets.Checkbox(indent=False, **traits)
    if switch.kind is int:
        return widgets.BoundedIntText(min=switch.low, max=switch.high, **traits)
    return widgets.Dropdown(options=list(switch.choices), **traits)
