"""Where a panel's stages run: on this machine, on a simulated GPU, or nowhere: a recording is played."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import NamedTuple

import ipywidgets as widgets

from perfkit import machine
from perfkit.errors import PerfkitError
from perfkit.notebook import layout
from perfkit.notebook.layout import Action
from perfkit.results import recordings
from perfkit.simulate import gpus
from perfkit.studies.plan import Plan

SIMULATED = "sim:"
HOSTS = {"mine": "this machine's", "article": "the article's", "ideal": "ideal (data on the device)"}
"""What feeds a simulated GPU: the first is real, the others are computed."""


class Place(NamedTuple):
    """A choice."""

    device: str | None = None
    """As for `perfkit.plan`; None: the best device of this machine."""
    host: str | None = None
    """Of a simulated GPU: `mine`, a virtual one, or None, which is `mine` too."""

    @property
    def kind(self) -> str:
        """`mine`, `simulated` or `recorded`."""
        prefix = (self.device or "").partition(":")[0] + ":"
        return {SIMULATED: "simulated", recordings.PREFIX: "recorded"}.get(prefix, "mine")


_remembered = Place()
"""The choice of this session, for panels that name no device."""


def use(device: str | None = None, host: str | None = None) -> None:
    """Where the panels that are made from now on run, until the kernel ends: what their chooser does.

    Args:
        device: `sim:v100` …, `recorded:NAME`, `cuda`, `mps` or `cpu`; None: this machine's best device.
        host: of a simulated GPU: `mine`, `article`, `ideal`, or its numbers, such as `cores=8,fetch_ms=1.85`.
    """
    global _remembered  # noqa: PLW0603 - a choice for the session, made in one place
    _remembered = Place(device, host)


class Option(NamedTuple):
    """One button of a choice."""

    label: str
    reason: str = ""
    """Why it cannot be chosen."""


class Choice:
    """Buttons of which one is pressed. In JupyterLab the arrow keys of a menu would move to another cell.

    Args:
        label: what is chosen.
        name: the CSS class that tests and styles know it by.
        on_choose: called with the value of a button that was pressed by hand.
    """

    def __init__(self, label: str, name: str, on_choose: Callable[[str], None]) -> None:
        self._label = widgets.HTML(html.escape(label))
        self._on_choose = on_choose
        self._options: Mapping[str, Option] = {}
        self.value = ""
        self.buttons: dict[str, widgets.Button] = {}
        self.widget = layout.row([], name)

    def show(self, options: Mapping[str, Option], value: str) -> None:
        """The options by their values, and the one that is chosen."""
        self.value, self._options = value, options
        self.buttons = {one: self._button(one, option) for one, option in options.items()}
        self.widget.children = [self._label, *self.buttons.values()] if options else []

    def set_busy(self, busy: bool) -> None:
        """Nothing can be chosen while something runs."""
        for value, button in self.buttons.items():
            button.disabled = busy or bool(self._options[value].reason)

    def _button(self, value: str, option: Option) -> widgets.Button:
        text, tooltip = "✓ " * (value == self.value) + option.label, option.reason or option.label
        button = layout.button(text, "pk-choice", tooltip, lambda: self._press(value))
        layout.set_class(button, "mod-active", value == self.value)
        button.disabled = bool(option.reason)
        return button

    def _press(self, value: str) -> None:
        if value != self.value:
            self._on_choose(value)


class Chooser:
    """Three kinds of places, and what there is of each. What cannot be chosen says why.

    Args:
        planned: the panel's plan at a place; raises a PerfkitError where there can be none.
        start: where the panel was told to run; the choice of this session if it names no device.
        on_change: called with the new plan after every choice by hand.

    Raises:
        PerfkitError: the panel can run neither there nor on this machine.
    """

    def __init__(
        self, planned: Callable[[Place], Plan], start: Place, on_change: Callable[[Plan], None]
    ) -> None:
        self._planned, self._on_change = planned, on_change
        self.place, self.plan, self._problem = self._first(start)
        self._offers = self._offered()
        self.kind = Choice("Where", "pk-where", self._choose_kind)
        self.device = Choice("", "pk-device", lambda device: self.choose(_at(device, self.place.host)))
        self.host = Choice("Host", "pk-host", lambda host: self.choose(_at(self.place.device, host)))
        self.note = layout.html_slot("pk-where-note")
        choices = [choice.widget for choice in (self.kind, self.device, self.host)]
        self.widget = layout.box([layout.row(choices), self.note])
        self._show()

    def set_busy(self, busy: bool) -> None:
        """Nothing can be chosen while something runs."""
        for choice in (self.kind, self.device, self.host):
            choice.set_busy(busy)

    def choose(self, place: Place) -> None:
        """Another place; one where the panel cannot run is refused with the reason, and nothing changes."""
        try:
            self.plan = self._planned(place)
        except PerfkitError as problem:  # such as a recording that was removed meanwhile
            self._problem = str(problem)
            self._show()
            return
        self.place, self._problem = place, ""
        use(*place)
        self._show()
        self._on_change(self.plan)

    def simulation(self) -> Action | None:
        """Moves the panel to the first simulated GPU that it can run on, unless it is on one."""
        if self.place.kind == "simulated":
            return None
        offers = self._offers["simulated"].items()
        device, option = next(((d, o) for d, o in offers if not o.reason), ("", Option("")))
        move = lambda: self.choose(_at(device, "mine"))  # noqa: E731
        return Action(f"Simulate a {option.label}", move) if device else None

    def _choose_kind(self, kind: str) -> None:
        device = next(device for device, option in self._offers[kind].items() if not option.reason)
        self.choose(_at(device, self.place.host))

    def _first(self, start: Place) -> tuple[Place, Plan, str]:
        """Where the panel begins; a choice of this session that does not suit it is named, and left."""
        if start.device:
            return start, self._planned(start), ""
        try:
            plan, place, problem = self._planned(_remembered), _remembered, ""
        except PerfkitError as reason:
            plan, place, problem = self._planned(start), start, str(reason)
        return place._replace(device=place.device or plan.device), plan, problem

    def _offered(self) -> dict[str, dict[str, Option]]:
        """Labels and reasons by device, for each kind of place."""
        here = dict.fromkeys([machine.check_device(None), "cpu"])
        offers: dict[str, dict[str, str]] = {
            "mine": {device: device for device in here},
            "simulated": {f"{SIMULATED}{gpu.key}": gpu.key.upper() for gpu in gpus.GPUS.values()},
            "recorded": {f"{recordings.PREFIX}{name}": name for name in recordings.available()},
        }
        offers[self.place.kind].setdefault(str(self.place.device), str(self.place.device))
        return {
            kind: {device: Option(label, self._reason(device)) for device, label in devices.items()}
            for kind, devices in offers.items()
        }

    def _reason(self, device: str) -> str:
        try:
            self._planned(_at(device, self.place.host))
        except PerfkitError as problem:
            return problem.what
        return ""

    def _show(self) -> None:
        kinds = {"mine": "this machine", "simulated": "simulated GPU", "recorded": "recorded"}
        options = {}
        for kind, label in kinds.items():
            reasons = [option.reason for option in self._offers[kind].values()]
            none = "there is none" if not reasons else reasons[0] if all(reasons) else ""
            options[kind] = Option(label, none)
        self.kind.show(options, self.place.kind)
        devices = self._offers[self.place.kind]
        self.device.show(
            devices if self.place.kind != "mine" or len(devices) > 1 else {}, str(self.place.device)
        )
        host = self.place.host or "mine"
        hosts = {name: Option(label) for name, label in {**HOSTS, host: HOSTS.get(host, host)}.items()}
        self.host.show(hosts if self.place.kind == "simulated" else {}, host)
        self.note.value = self._note([option.reason for option in devices.values() if option.reason])

    def _note(self, reasons: list[str]) -> str:
        about = ""
        if self.plan.recorded:
            about = recordings.find(self.plan.recorded).provenance.describe()
            about = f"<p>{html.escape(about)} Run plays it.</p>"
        items = "".join(f"<li>{html.escape(reason)}</li>" for reason in reasons)
        folded = f"<details><summary>Not offered here</summary><ul>{items}</ul></details>" if items else ""
        return layout.message(self._problem) + about + folded


def _at(device: str | None, host: str | None) -> Place:
    """A place; what is not simulated has no host to choose."""
    place = Place(device)
    return place._replace(host=host or "mine") if place.kind == "simulated" else place
