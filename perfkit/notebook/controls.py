"""Controls for the switches of a recipe, made from the switches' own declarations."""

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue
from perfkit.notebook import widgets as pieces
from perfkit.recipe import GROUPS, Recipe, Switch, Value, spoken, switches
from perfkit.rules import joined


class Controls:
    """One control for each switch; changed ones are bold, and those that cannot act stand in one fold.

    Controls are made once and hidden, never made anew, so that the keyboard keeps its place.

    Args:
        names: the switches to show; the others keep the values of `base`.
        base: the recipe to begin with, and to compare with.
        on_change: called with the recipe after a change by hand.
    """

    def __init__(
        self,
        names: Iterable[str],
        base: Recipe | None = None,
        on_change: Callable[[Recipe], None] = lambda recipe: None,
    ) -> None:
        self.recipe = self.base = base or Recipe()
        self.reasons: dict[str, str] = {}
        """Why a switch cannot act here, for each that is not offered."""
        self._why_not: Callable[[str, Recipe], str] = lambda name, recipe: ""
        self._on_change = on_change
        self._quiet = False
        self.by_name: dict[str, Any] = {name: _control(switches()[name], self.recipe) for name in names}
        for control in self.by_name.values():
            control.observe(self._changed, "value")
        self._groups = [
            (inside, _group(title, list(inside.values())))
            for title in GROUPS
            if (inside := {n: c for n, c in self.by_name.items() if switches()[n].group == title})
        ]
        self._problem, self._refused = pieces.text("pk-error"), pieces.text("pk-n-a")
        if len(self._groups) == 1:
            pieces.set_class(self._groups[0][1].children[0], "pk-off", True)  # one group needs no heading
        groups = [widget for _, widget in self._groups]
        self.widget = pieces.box([*groups, self._problem, self._refused], "pk-controls")
        self._refresh()

    def set(self, settings: Mapping[str, Value]) -> None:
        """Sets switches by name, as a hand does.

        Raises:
            InvalidValue: a switch that is not among these, or a value that is not allowed.
        """
        if unknown := set(settings) - set(self.by_name):
            raise InvalidValue(f"'{unknown.pop()}' cannot be set here", f"Allowed: {', '.join(self.by_name)}")
        self.show(self.recipe.replace(**settings))
        self._on_change(self.recipe)

    def show(self, recipe: Recipe) -> None:
        """Sets every control."""
        self._quiet = True
        try:
            self.recipe = recipe
            for name, control in self.by_name.items():
                control.value = getattr(recipe, name)
        finally:
            self._quiet = False
        self._refresh()

    def set_base(self, base: Recipe) -> None:
        """Another recipe to compare with; what was changed by hand stays changed."""
        changes = self.changes()
        self.base = base
        self.show(base.replace(**changes))

    def set_rule(self, why_not: Callable[[str, Recipe], str]) -> None:
        """Why a switch cannot have a recipe's value where it is to run; empty where it can."""
        self._why_not = why_not
        self._refresh()

    def changes(self) -> dict[str, Value]:
        """The shown switches that differ from the base."""
        differ = self.recipe.diff(self.base)
        return {name: pair[0] for name, pair in differ.items() if name in self.by_name}

    def _changed(self, change: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        name = next(name for name, control in self.by_name.items() if control is change["owner"])
        try:
            self.recipe = self.recipe.replace(**{name: change["new"]})
        except InvalidValue as problem:
            self._problem.value = pieces.message(str(problem))
            return
        self._refresh()
        self._on_change(self.recipe)

    def _refresh(self) -> None:
        """Decides what is offered: a switch that is changed can always be put back."""
        changed = self.changes()
        reasons = {name: self._reason(switches()[name]) for name in self.by_name if name not in changed}
        self.reasons = {name: reason for name, reason in reasons.items() if reason}
        for name, control in self.by_name.items():
            pieces.set_class(control, "pk-changed", name in changed)
            pieces.set_class(control, "pk-off", name in self.reasons)
        for inside, group in self._groups:
            pieces.set_class(group, "pk-off", set(inside) <= set(self.reasons))
        stuck = {name: reason for name in changed if (reason := self._why_not(name, self.recipe))}
        self._problem.value = pieces.message(joined(stuck))
        self._refused.value = self._fold()

    def _fold(self) -> str:
        items = [
            f"<li><b>{html.escape(switches()[name].label)}</b>: {html.escape(reason)}</li>"
            for name, reason in self.reasons.items()
        ]
        if not items:
            return ""
        title = f"{len(items)} switch{'es' * (len(items) > 1)} cannot act here"
        return f"<details><summary>{title}</summary><ul>{''.join(items)}</ul></details>"

    def _reason(self, switch: Switch) -> str:
        """Why no value of a switch but its present one can act; empty where one can."""
        base = getattr(self.base, switch.name)
        others = [value for value in switch.levels or (switch.default, switch.high) if value != base]
        reasons = [
            self._why_not(switch.name, self.recipe.replace(**{switch.name: value})) for value in others
        ]
        return reasons[-1] if reasons and all(reasons) else ""


def changed_in_words(settings: Mapping[str, Value]) -> str:
    """`Loader workers 2, AMP bf16`; empty for none."""
    return ", ".join(f"{switches()[name].label} {spoken(value)}" for name, value in settings.items())


def _group(title: str, controls: list[Any]) -> widgets.VBox:
    heading = pieces.text("pk-group", value=html.escape(title))
    return pieces.box([heading, pieces.box(controls, "pk-grid")])


def _control(switch: Switch, recipe: Recipe) -> Any:
    traits: dict[str, Any] = {"value": getattr(recipe, switch.name), "tooltip": switch.help}
    kind: Any = widgets.Dropdown
    if switch.kind is bool:
        kind, traits = widgets.Checkbox, {**traits, "indent": False}
    elif switch.kind is int:
        kind, traits = widgets.BoundedIntText, {**traits, "min": switch.low, "max": switch.high}
    else:
        traits["options"] = list(switch.choices)
    return pieces.field(kind, switch.label, "pk-switch", f"pk-switch-{switch.name}", **traits)
