"""Where a panel's stages run: on this machine, on a simulated GPU, or nowhere: a recording is played."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import NamedTuple

import ipywidgets as widgets

from perfkit import machine
from perfkit.errors import PerfkitError
from perfkit.notebook import layout
from perfkit.results import recordings
from perfkit.studies.plan import Plan


class Place(NamedTuple):
    """A choice."""

    device: str | None = None
    """As for `perfkit.plan`; None: the best device of this machine."""
    host: str | None = None
    """Of a simulated GPU: `mine`, a virtual one, or None, which is `mine` too."""


HOSTS = {
    "mine": "this machine's loader",
    "article": "the article's machine",
    "ideal": "data on the device",
}
"""What feeds a simulated GPU: the first is real, the others are computed."""

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


class Chooser:
    """A menu of places. Those where the panel's plan cannot run are named below it, with the reason.

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
        self.place, self.plan, problem = self._first(start)
        offered, reasons = self._offers()
        menu = {"options": offered, "value": self.place.device}
        self.device = layout.field(widgets.Dropdown, "Where", 330, 60, **menu)
        self.device.add_class("pk-where")
        hosts = {**HOSTS, **({self.place.host: self.place.host} if self.place.host not in (None, *HOSTS) else {})}
        menu = {"options": [(label, name) for name, label in hosts.items()], "value": self.place.host or "mine"}
        self.host = layout.field(widgets.Dropdown, "Host", 260, 50, **menu)
        self.host.add_class("pk-host")
        self.note = layout.html_slot("pk-where-note")
        self.widget = layout.box([layout.row([self.device, self.host]), self.note])
        self._left_out = "; ".join([*([problem] if problem else []), *reasons])
        self._quiet = False
        for menu in (self.device, self.host):
            menu.observe(lambda _: self._choose(), "value")
        self._explain()

    def set_busy(self, busy: bool) -> None:
        """Nothing can be chosen while something runs."""
        self.device.disabled = self.host.disabled = busy

    def _first(self, start: Place) -> tuple[Place, Plan, str]:
        """Where the panel begins; a choice of this session that does not suit it is named, and left."""
        if start.device:
            return start, self._planned(start), ""
        try:
            plan, place, problem = self._planned(_remembered), _remembered, ""
        except PerfkitError as reason:
            plan, place, problem = self._planned(start), start, f"{_remembered.device}: {reason.what}"
        return place._replace(device=place.device or plan.device), plan, problem

    def _offers(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Labels and devices to choose from; why the others are not among them."""
        here = dict.fromkeys([machine.check_device(None), "cpu"])
        places = {device: f"this machine ({device})" for device in here}
        places |= {f"{SIMULATED}{gpu.key}": f"simulated: {gpu.name}" for gpu in gpus.GPUS.values()}
        places |= {f"{recordings.PREFIX}{name}": f"recorded: {name}" for name in recordings.available()}
        if self.place.device:
            places.setdefault(self.place.device, self.place.device)
        offered, reasons = [], []
        for device, label in places.items():
            try:
                self._planned(_at(device, self.place.host))
                offered.append((label, device))
            except PerfkitError as problem:
                reasons.append(problem.what)
        return offered, reasons

    def _choose(self) -> None:
        if self._quiet:
            return
        place = _at(self.device.value, self.host.value)
        if place == self.place:  # the host of what is not simulated
            return
        try:
            plan = self._planned(place)
        except PerfkitError as problem:  # such as a recording that was removed meanwhile
            self._put_back(str(problem))
            return
        self.place, self.plan = place, plan
        use(*place)
        self._explain()
        self._on_change(plan)

    def _put_back(self, reason: str) -> None:
        self._quiet = True
        self.device.value, self.host.value = self.place.device, self.place.host or "mine"
        self._quiet = False
        self.note.value = layout.message(reason)

    def _explain(self) -> None:
        about = ""
        self.host.layout.display = "" if _is_simulated(self.place.device) else "none"
        if self.plan.recorded:
            about = recordings.find(self.plan.recorded).provenance.describe()
            about = f"<p>{html.escape(about)} Run plays it.</p>"
        left = html.escape(self._left_out)
        folded = f"<details><summary>Not offered here</summary><p>{left}</p></details>" if left else ""
        self.note.value = about + folded


def _is_simulated(device: str | None) -> bool:
    return bool(device and device.startswith(SIMULATED))


def _at(device: str | None, host: str | None) -> Place:
    """A place; what is not simulated has no host to choose."""
    return Place(device, (host or "mine") if _is_simulated(device) else None)
