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
    """Of a simulated GPU: None for this machine's own loader, or the name of a virtual host."""


_remembered = Place()
"""The choice of this session, for panels that name no device."""


def use(device: str | None = None, host: str | None = None) -> None:
    """Where the panels that are made from now on run, until the kernel ends: what their chooser does.

    Args:
        device: `recorded:NAME`, `cuda`, `mps` or `cpu`; None: this machine's best device.
        host: of a simulated GPU.
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
        self.note = layout.html_slot("pk-where-note")
        self.widget = layout.box([layout.row([self.device]), self.note])
        self._left_out = "; ".join([*([problem] if problem else []), *reasons])
        self._quiet = False
        self.device.observe(lambda _: self._choose(), "value")
        self._explain()

    def set_busy(self, busy: bool) -> None:
        """Nothing can be chosen while something runs."""
        self.device.disabled = busy

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
        places |= {f"{recordings.PREFIX}{name}": f"recorded: {name}" for name in recordings.available()}
        if self.place.device:
            places.setdefault(self.place.device, self.place.device)
        offered, reasons = [], []
        for device, label in places.items():
            try:
                self._planned(Place(device, self.place.host))
                offered.append((label, device))
            except PerfkitError as problem:
                reasons.append(problem.what)
        return offered, reasons

    def _choose(self) -> None:
        if self._quiet:
            return
        place = Place(self.device.value)
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
        self.device.value = self.place.device
        self._quiet = False
        self.note.value = layout.message(reason)

    def _explain(self) -> None:
        about = ""
        if self.plan.recorded:
            about = recordings.find(self.plan.recorded).provenance.describe()
            about = f"<p>{html.escape(about)} Run plays it.</p>"
        left = html.escape(self._left_out)
        folded = f"<details><summary>Not offered here</summary><p>{left}</p></details>" if left else ""
        self.note.value = about + folded
