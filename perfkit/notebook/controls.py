"""Controls for the switches of a recipe, made from the switches' own declarations."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue
from perfkit.notebook import layout
from perfkit.program.recipe import Recipe, Switch, Value, switches
from perfkit.show.document import Bullets, Section
from perfkit.show.html import fragment


class Controls:
    """One control per switch; a control whose switch cannot act is disabled, its tooltip says why.

    Args:
        names: the switches to show; the others keep the values of `start`.
        start: the recipe to begin with.
        on_change: called with the recipe after every change by hand.
    """

    def __init__(
        self, names: Iterable[str], start: Recipe | None = None,
        on_change: Callable[[Recipe], None] = lambda recipe: None,
    ) -> None:  # fmt: skip
        self._recipe = start or Recipe()
        self._base = Recipe()
        self._why_not: Callable[[str, Recipe], str] = lambda name, recipe: ""
        self._on_change = on_change
        self._quiet = False
        self.reasons: dict[str, str] = {}
        self.by_name: dict[str, Any] = {name: _control(switches()[name], self._recipe) for name in names}
        # A checkbox shows its own label in the place of a tooltip, so the reason has a mark of its own.
        self.marks = {name: layout.html_slot("pk-reason") for name in self.by_name}
        self.boxes = {}
        for name, control in self.by_name.items():
            control.observe(self._changed, "value")
            pair, place = [control, self.marks[name]], {"flex_flow": "row nowrap", "width": "250px"}
            self.boxes[name] = layout.row(pair, f"pk-switch-{name}", **place)
        self.why = layout.html_slot("pk-why")
        self.widget = layout.box([layout.row(list(self.boxes.values()), "pk-switches"), self.why])
        self._refresh()

    @property
    def recipe(self) -> Recipe:
        """As the controls stand."""
        return self._recipe

    def show(self, recipe: Recipe) -> None:
        """Sets every control, without a call of `on_change`."""
        self._quiet = True
        try:
            self._recipe = recipe
            for name, control in self.by_name.items():
                control.value = getattr(recipe, name)
        finally:
            self._quiet = False
        self._refresh()

    def set_base(self, base: Recipe) -> None:
        """The switches as they are without being set: those of a script in the place of the defaults."""
        self._base = base
        self.show(base)

    def set_rule(self, why_not: Callable[[str, Recipe], str]) -> None:
        """Why a switch cannot have a recipe's value where it is to run; empty where it can."""
        self._why_not = why_not
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
        """Decides which controls can act; a switch that is on can always be put back."""
        stuck: dict[str, None] = {}
        idle: dict[str, None] = {}
        for name, control in self.by_name.items():
            switch = switches()[name]
            reason = self.reasons[name] = self._reason(switch)
            is_on = getattr(self._recipe, name) != getattr(self._base, name)
            control.tooltip = reason or switch.help
            control.disabled = bool(reason) and not is_on
            title = html.escape(reason, quote=True)
            self.marks[name].value = f'<abbr title="{title}" tabindex="0">n/a</abbr>' if reason else ""
            if reason:
                (stuck if is_on else idle)[reason] = None
        heading = f"Why {len(idle)} of the switches cannot act here"
        folded = fragment([Section(heading, [Bullets(list(idle))], folded=True)]) if idle else ""
        self.why.value = layout.message("; ".join(stuck)) + folded

    def _reason(self, switch: Switch) -> str:
        """Why no value of a switch but its default can act; empty where one can, or nothing is known yet."""
        base = getattr(self._base, switch.name)
        others = [v for v in switch.levels or (switch.default, switch.high) if v != base]
        changed = [self._recipe.replace(**{switch.name: value}) for value in others]
        reasons = [self._why_not(switch.name, recipe) for recipe in changed]
        return reasons[-1] if reasons and all(reasons) else ""


def _control(switch: Switch, recipe: Recipe) -> Any:
    value = getattr(recipe, switch.name)
    if switch.kind is bool:
        return layout.field(widgets.Checkbox, switch.label, 215, 0, value=value)
    if switch.kind is int:
        limits = {"min": switch.low, "max": switch.high}
        return layout.field(widgets.BoundedIntText, switch.label, 215, 115, value=value, **limits)
    choices = list(switch.choices)
    return layout.field(widgets.Dropdown, switch.label, 215, 115, value=value, options=choices)
