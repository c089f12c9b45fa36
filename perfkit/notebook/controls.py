"""Controls for the switches of a recipe, made from the switches' own declarations."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue
from perfkit.notebook import layout
from perfkit.program.recipe import Recipe, Switch, Value, switches
from perfkit.program.rules import Target, why_not


class Controls:
    """One control a switch; a control whose switch cannot act is disabled, its tooltip says why.

    Args:
        names: the switches to show; the others keep the values of `start`.
        start: the recipe to begin with.
        on_change: told the recipe after every change by hand.
    """

    def __init__(
        self,
        names: Iterable[str],
        start: Recipe | None = None,
        on_change: Callable[[Recipe], None] = lambda recipe: None,
    ) -> None:
        self._recipe = start or Recipe()
        self._target: Target | None = None
        self._on_change = on_change
        self._quiet = False
        self.reasons: dict[str, str] = {}
        self.by_name: dict[str, Any] = {name: _control(switches()[name], self._recipe) for name in names}
        # A checkbox shows its own label in the place of a tooltip, so the reason has a mark of its own.
        self.marks = {name: layout.html_slot("pk-reason") for name in self.by_name}
        self.boxes = {
            name: layout.row(
                [made, self.marks[name]], f"pk-switch-{name}", flex_flow="row nowrap", width="250px"
            )
            for name, made in self.by_name.items()
        }
        for control in self.by_name.values():
            control.observe(self._changed, "value")
        self.why = layout.html_slot("pk-why")
        self.widget = layout.box([layout.row(list(self.boxes.values()), "pk-switches"), self.why])
        self._refresh()

    @property
    def recipe(self) -> Recipe:
        """As the controls stand."""
        return self._recipe

    def show(self, recipe: Recipe) -> None:
        """Sets every control; `on_change` is not told."""
        self._quiet = True
        try:
            self._recipe = recipe
            for name, control in self.by_name.items():
                control.value = getattr(recipe, name)
        finally:
            self._quiet = False
        self._refresh()

    def set_target(self, target: Target) -> None:
        """Where the recipe is to run: decides which switches can act."""
        self._target = target
        self._refresh()

    def changes(self, against: Recipe) -> Mapping[str, Value]:
        """The shown switches that differ from a recipe."""
        return {name: pair[0] for name, pair in self._recipe.diff(against).items() if name in self.by_name}

    def _changed(self, change: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        name = next(name for name, control in self.by_name.items() if control is change["owner"])
        try:
            self._recipe = self._recipe.replace(**{name: change["new"]})
        except InvalidValue as problem:
            self.why.value = layout.message(str(problem))
            return
        self._refresh()
        self._on_change(self._recipe)

    def _refresh(self) -> None:
        """Which controls can act; a switch that is on can always be put back."""
        self.reasons = {name: self._reason(switches()[name]) for name in self.by_name}
        for name, control in self.by_name.items():
            reason, switch = self.reasons[name], switches()[name]
            control.tooltip = reason or switch.help
            said = html.escape(reason, quote=True)
            self.marks[name].value = f'<abbr title="{said}" tabindex="0">n/a</abbr>' if reason else ""
            control.disabled = bool(reason) and getattr(self._recipe, name) == switch.default
        on = {name: getattr(self._recipe, name) != switches()[name].default for name in self.by_name}
        stuck = dict.fromkeys(reason for name, reason in self.reasons.items() if reason and on[name])
        off = dict.fromkeys(reason for name, reason in self.reasons.items() if reason and not on[name])
        listed = "".join(f"<li>{html.escape(reason)}</li>" for reason in off)
        heading = f"<summary>Why {len(off)} of the switches cannot act here</summary>"
        folded = f"<details>{heading}<ul>{listed}</ul></details>"
        self.why.value = layout.message("; ".join(stuck)) + (folded if off else "")

    def _reason(self, switch: Switch) -> str:
        """Why no value of a switch but its default can act; empty where one can, or nothing is known yet."""
        if self._target is None:
            return ""
        found = ""
        for value in switch.levels or (switch.default, switch.high):
            if value == switch.default:
                continue
            found = why_not(switch.name, self._recipe.replace(**{switch.name: value}), self._target)
            if not found:
                return ""
        return found


def _control(switch: Switch, recipe: Recipe) -> Any:
    value = getattr(recipe, switch.name)
    shared: dict[str, Any] = {
        "description": switch.label, "style": {"description_width": "115px"},
        "layout": {"width": "215px"},
    }  # fmt: skip
    if switch.kind is bool:
        return widgets.Checkbox(value=value, **shared | {"style": {"description_width": "0px"}})
    if switch.kind is int:
        return widgets.BoundedIntText(value=value, min=switch.low, max=switch.high, **shared)
    return widgets.Dropdown(options=list(switch.choices), value=value, **shared)
