"""Controls for the switches of a recipe, made from the switches' own declarations."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue
from perfkit.notebook import layout
from perfkit.notebook.layout import Action
from perfkit.recipe import GROUPS, Recipe, Switch, Value, spoken, switches
from perfkit.rules import joined

Preset = Callable[[], Recipe | str]
"""The recipe of a button, or why there is none."""


class Controls:
    """The recipe as chips and as one control per switch, grouped by where the switches act.

    A switch that cannot act is not offered: its group says why in one line. One that only acts with another
    switch appears when that one is on.

    Args:
        names: the switches to show; the others keep the values of `start`.
        start: the recipe to begin with, and to come back to.
        on_change: called with the recipe after every change by hand.
        presets: recipes that a button each sets, by the buttons' texts; or the reason why there is none.
        base: the text of the first of these buttons, which sets the recipe to come back to.
        remedy: what can be done about a reason; the first group that has such a reason offers it.
    """

    def __init__(
        self, names: Iterable[str], start: Recipe | None = None,
        on_change: Callable[[Recipe], None] = lambda recipe: None,
        presets: Mapping[str, Preset] | None = None, base: str = "The baseline",
        remedy: Callable[[str], Action | None] = lambda reason: None,
    ) -> None:  # fmt: skip
        self._recipe = self._base = start or Recipe()
        self._why_not: Callable[[str, Recipe], str] = lambda name, recipe: ""
        self._on_change, self._remedy = on_change, remedy
        self._quiet = False
        self.reasons: dict[str, str] = {}
        self.by_name: dict[str, Any] = {name: _control(switches()[name], self._recipe) for name in names}
        for control in self.by_name.values():
            control.observe(self._changed, "value")
        self.groups = {
            title: Group(title, inside)
            for title in GROUPS
            if (inside := {n: c for n, c in self.by_name.items() if switches()[n].group == title})
        }
        self.chips = Chips(self._put_back, f"as {base.lower()}")
        recipes: dict[str, Preset] = {base: lambda: self._base, **(presets or {})}
        self.presets = {
            text: layout.button(text, "pk-preset", text, functools.partial(self._start_from, recipe))
            for text, recipe in recipes.items()
        }
        self.why = layout.html_slot("pk-why")
        start_from = layout.row([layout.html_slot(text="Start from"), *self.presets.values()], "pk-line")
        groups = [group.widget for group in self.groups.values()]
        self.widget = layout.box([start_from, self.chips.widget, *groups, self.why], "pk-controls")
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
        """The switches as they are without being set: those of a script or a preset, say.

        Those that were set by hand stay as they are.
        """
        by_hand = self._recipe.diff(self._base)
        self._base = base
        self.show(base.replace(**{name: here for name, (here, _) in by_hand.items()}))

    def set_rule(self, why_not: Callable[[str, Recipe], str]) -> None:
        """Why a switch cannot have a recipe's value where it is to run; empty where it can."""
        self._why_not = why_not
        self._refresh()

    def can_act(self, recipe: Recipe) -> bool:
        """Whether every switch that this recipe sets can act where it is to run."""
        return not any(self._why_not(name, recipe) for name in recipe.diff(self._base))

    def changes(self, against: Recipe | None = None) -> Mapping[str, Value]:
        """The shown switches that differ from a recipe; from the one to come back to if None."""
        differ = self._recipe.diff(against or self._base)
        return {name: pair[0] for name, pair in differ.items() if name in self.by_name}

    def offer(self, text: str, settings: Mapping[str, Value], why: str) -> widgets.Button:
        """A button that sets some switches, as a hand does."""
        act = lambda: self._set(self._recipe.replace(**settings))  # noqa: E731
        return layout.button(text, f"pk-try-{next(iter(settings))}", why, act)

    def _set(self, recipe: Recipe) -> None:
        """By hand, all at once."""
        self.show(self._recipe.replace(**{name: getattr(recipe, name) for name in self.by_name}))
        self._on_change(self._recipe)

    def _start_from(self, preset: Preset) -> None:
        recipe = preset()
        if isinstance(recipe, str):
            self.why.value = layout.message(recipe)
        else:
            self._set(recipe)

    def _put_back(self, name: str) -> None:
        self._set(self._recipe.replace(**{name: getattr(self._base, name)}))
        next(iter(self.presets.values())).focus()

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
        """Decides what is offered; a switch that is on can always be put back."""
        on = self.changes()
        self.reasons = {name: self._reason(switches()[name]) for name in self.by_name}
        waiting = {name for name in self.by_name if name not in on and self._waits(switches()[name])}
        refused = {n: why for n, why in self.reasons.items() if why and n not in {*on, *waiting}}
        offer: Action | None = None
        for group in self.groups.values():
            here = {name: refused[name] for name in group.controls if name in refused}
            found = None if offer else next(filter(None, map(self._remedy, here.values())), None)
            group.show(here, waiting, found)
            offer = offer or found
        self.chips.show({name: on[name] for name in self.by_name if name in on})
        stuck = dict.fromkeys(self._why_not(name, self._recipe) for name in on)
        self.why.value = layout.message("; ".join(filter(None, stuck)))

    def _waits(self, switch: Switch) -> bool:
        """Whether it only acts with another switch, which is shown here and off."""
        partner, idle = switch.idle_when or ("", None)
        return partner in self.by_name and getattr(self._recipe, partner) == idle

    def _reason(self, switch: Switch) -> str:
        """Why no value of a switch but its default can act; empty where one can, or nothing is known yet."""
        base = getattr(self._base, switch.name)
        others = [v for v in switch.levels or (switch.default, switch.high) if v != base]
        changed = [self._recipe.replace(**{switch.name: value}) for value in others]
        reasons = [self._why_not(switch.name, recipe) for recipe in changed]
        return reasons[-1] if reasons and all(reasons) else ""


class Group:
    """Switches that act in the same place, and one line on those of them that cannot act here."""

    def __init__(self, title: str, controls: Mapping[str, Any]) -> None:
        self.controls = controls
        self.note = layout.html_slot("pk-n-a")
        self.offer = layout.Offer()
        self._grid = layout.box(list(controls.values()), "pk-grid")
        below = layout.row([self.note, self.offer.widget])
        heading = layout.html_slot(text=html.escape(title))
        self.widget = layout.row([heading, layout.box([self._grid, below])], "pk-group")

    def show(self, refused: Mapping[str, str], waiting: Iterable[str], offer: Action | None) -> None:
        """Hides what is refused, with the reasons, and what waits for another switch."""
        hidden = {*refused, *waiting}
        for name, control in self.controls.items():
            control.disabled = name in hidden
            layout.set_class(control, "pk-off", name in hidden)
        folded = hidden >= set(self.controls)
        layout.set_class(self._grid, "pk-off", folded)
        layout.set_class(self.widget, "pk-folded", folded)
        layout.set_class(self.widget, "pk-off", folded and not refused)
        by_reason: dict[str, list[str]] = {}
        for name, reason in refused.items():
            by_reason.setdefault(_short(switches()[name], reason), []).append(switches()[name].label)
        lines = [f"{reason}: {', '.join(labels)}" for reason, labels in by_reason.items()]
        full = html.escape(joined(refused), quote=True)
        text = html.escape(" · ".join(lines))
        self.note.value = f'<span title="{full}">n/a here: {text}</span>' if lines else ""
        self.offer.show(offer)


class Chips:
    """What differs from the baseline: one button each, which puts it back."""

    def __init__(self, put_back: Callable[[str], None], nothing: str) -> None:
        self._put_back = put_back
        self._nothing = layout.html_slot(text=html.escape(nothing))
        self.buttons: dict[str, widgets.Button] = {}
        self.widget = layout.row([layout.html_slot(text="Recipe"), self._nothing], "pk-line", "pk-recipe")

    def show(self, values: Mapping[str, Value]) -> None:
        """A chip for each of these. They are kept and hidden: a new one would lose the keyboard's focus."""
        for name in values:
            if name not in self.buttons:
                self.buttons[name] = self._chip(name)
                self.widget.children = [*self.widget.children, self.buttons[name]]
        for name, chip in self.buttons.items():
            layout.set_class(chip, "pk-off", name not in values)
            if name in values:
                chip.description = f"{switches()[name].label}: {spoken(values[name])}"
        layout.set_class(self._nothing, "pk-off", bool(values))

    def _chip(self, name: str) -> widgets.Button:
        label = switches()[name].label
        chip = layout.button("", "pk-chip", f"Remove {label} from the recipe", lambda: self._put_back(name))
        chip.icon = "times"
        return chip


def _short(switch: Switch, reason: str) -> str:
    """A reason that several switches of a group can share."""
    first = reason.partition(";")[0].removeprefix(f"{switch.label} ")
    return first.replace(f"offer {switch.name}", "offer it")


def _control(switch: Switch, recipe: Recipe) -> Any:
    traits: dict[str, Any] = {"value": getattr(recipe, switch.name), "tooltip": switch.help}
    kind: Any = widgets.Dropdown
    if switch.kind is bool:
        kind, traits = widgets.Checkbox, {**traits, "indent": False}
    elif switch.kind is int:
        kind, traits = widgets.BoundedIntText, {**traits, "min": switch.low, "max": switch.high}
    else:
        traits["options"] = list(switch.choices)
    return layout.field(kind, switch.label, "pk-switch", f"pk-switch-{switch.name}", **traits)
