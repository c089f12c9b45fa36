"""The switches of a recipe as controls."""

import functools
import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue
from perfkit.notebook.pieces import alert, text
from perfkit.recipe import Recipe, Switch, Value, shown, switches
from perfkit.rules import joined
from perfkit.show import units

# Controls of ipywidgets 7, which Colab has, call their tooltip this.
TOOLTIP = "tooltip" if hasattr(widgets.Checkbox, "tooltip") else "description_tooltip"


class Controls:
    """One control for each switch; changed ones are bold, and those that cannot act are in one fold.

    Controls are made once and hidden, never made again, so that the keyboard keeps its place. Switches
    without one keep the values of `base`. `on_change` is called after a change by hand or by `set`.
    """

    def __init__(self, names: Iterable[str], on_change: Callable[[], None] = lambda: None) -> None:
        self.base = Recipe()
        self.recipe = self.base
        self.reasons: dict[str, str] = {}  # why a switch cannot act here, for each that is not offered
        self._why_not: Callable[[str, Recipe], str] = lambda name, recipe: ""
        self._on_change = on_change
        self.by_name = {name: _control(switches()[name]) for name in names}
        for name, control in self.by_name.items():
            control.observe(functools.partial(self._changed, name), "value")
        self._fold = text("pk-n-a")
        grid = widgets.VBox(list(self.by_name.values()), _dom_classes=["pk-grid"])
        self.widget = widgets.VBox([grid, self._fold])
        self.show(self.recipe)

    def set(self, settings: Mapping[str, Value]) -> None:
        if unknown := set(settings) - set(self.by_name):
            raise InvalidValue(f"'{unknown.pop()}' cannot be set here", f"Allowed: {', '.join(self.by_name)}")
        self.show(self.recipe.replace(**settings))
        self._on_change()

    def show(self, recipe: Recipe) -> None:
        """Sets every control, and decides what is offered: what is changed can always be put back."""
        self.recipe = recipe
        changed = self.changes()
        reasons = {name: self._reason(switches()[name]) for name in self.by_name if name not in changed}
        self.reasons = {name: reason for name, reason in reasons.items() if reason}
        for name, control in self.by_name.items():
            classes = ["pk-switch", f"pk-switch-{name}"]
            if name in changed:
                classes.append("pk-changed")
            elif name in self.reasons:
                classes.append("pk-off")
            control.value = getattr(recipe, name)
            control._dom_classes = classes
        why_not = {name: self._why_not(name, recipe) for name in changed}
        stuck = {name: reason for name, reason in why_not.items() if reason}
        self._fold.value = alert(joined(stuck)) + self._refused()

    def offer(self, base: Recipe, why_not: Callable[[str, Recipe], str]) -> None:
        """Another recipe to compare with, and why switches cannot act there; what was changed stays so."""
        changes = self.changes()
        self.base = base
        self._why_not = why_not
        self.show(base.replace(**changes))

    def changes(self) -> dict[str, Value]:
        return {name: value for name, (value, _) in self.recipe.diff(self.base).items()}

    def _changed(self, name: str, change: Any) -> None:
        if change["new"] == getattr(self.recipe, name):
            return  # `show` has set it, not a person
        control = self.by_name[name]
        if control.disabled:  # a job runs: the page has held the change back, but not the click on Run
            control.value = getattr(self.recipe, name)
            message = f"{control.description}: {shown(change['new'])} came after this run had begun"
            self._fold.value = alert(f"{message}. Set it again when the run has ended") + self._refused()
        else:
            self.set({name: change["new"]})

    def _reason(self, switch: Switch) -> str:
        """Why no value of a switch but its present one can act; empty where one can."""
        rest = [level for level in switch.levels if level != getattr(self.base, switch.name)]
        reasons = [self._why_not(switch.name, self.recipe.replace(**{switch.name: level})) for level in rest]
        return reasons[-1] if all(reasons) else ""

    def _refused(self) -> str:
        items = [
            f"<li><b>{html.escape(switches()[name].label)}</b>: {html.escape(reason)}</li>"
            for name, reason in self.reasons.items()
        ]
        title = f"{units.plural(len(items), 'switch', 'switches')} cannot act here"
        return f"<details><summary>{title}</summary><ul>{''.join(items)}</ul></details>" if items else ""


def _control(switch: Switch) -> Any:
    traits: dict[str, Any] = {"value": switch.default, "description": switch.label, TOOLTIP: switch.help}
    if switch.kind is bool:
        return widgets.Checkbox(indent=False, **traits)
    if switch.kind is int:
        return widgets.BoundedIntText(min=switch.low, max=switch.high, **traits)
    return widgets.Dropdown(options=list(switch.choices), **traits)
