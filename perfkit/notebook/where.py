"""Where a panel's work runs: on this machine, on a simulated GPU, or nowhere, as a recording is played."""

from collections.abc import Callable
from typing import Any, TypeVar

import ipywidgets as widgets

from perfkit import additions, machine
from perfkit.errors import PerfkitError
from perfkit.notebook import widgets as pieces
from perfkit.results import recordings

Plan = TypeVar("Plan")

_session: tuple[str | None, str | None] = (None, None)
"""What `use` was given last."""


def use(device: str | None = None, host: str | None = None) -> None:
    """Where the panels that are made from now on run, if they name no device, until the kernel ends.

    Args:
        device: `sim:v100` …, `recorded:NAME`, `cuda`, `mps` or `cpu`; None: this machine's best device.
        host: the host of a simulated GPU: `article`, `ideal`, or numbers such as `cores=8,fetch_ms=1.85`.
    """
    global _session  # noqa: PLW0603 - it belongs to the kernel
    _session = (device, host)


def places() -> dict[str, str]:
    """Devices by the words of the menu."""
    menu = {
        f"this machine ({device})": device for device in dict.fromkeys([machine.check_device(None), "cpu"])
    }
    for place in additions.sources().values():
        menu |= getattr(additions.load(place), "menu", dict)()
    return menu | {f"recorded: {name}": f"{recordings.PREFIX}{name}" for name in recordings.available()}


class Where:
    """A menu of the places where a panel can run; a choice holds for this panel only.

    Args:
        planned: the panel's plan on a device with a host; raises a PerfkitError where there can be none.
        device: where to begin; the session's choice if None.
        host: the host of a simulated GPU.
        on_change: called with the new plan after a choice by hand.

    Raises:
        PerfkitError: the panel cannot run there.
    """

    def __init__(
        self,
        planned: Callable[[str | None, str | None], Any],
        device: str | None,
        host: str | None,
        on_change: Callable[[Any], None],
    ) -> None:
        self._planned, self._on_change, self._quiet = planned, on_change, False
        self._host, problem = host, ""
        if device is None and _session != (None, None):
            try:
                self.plan = planned(*_session)
                device, self._host = _session
            except PerfkitError as reason:
                self.plan, problem = planned(None, host), str(reason)
        else:
            self.plan = planned(device, host)
        self.device = device or self.plan.device
        self._problem = pieces.text("pk-error", value=pieces.message(problem))
        self._menu = pieces.field(
            widgets.Dropdown, "Where", "pk-where", options=[(self.device, self.device)], value=self.device
        )
        self._menu.observe(lambda change: self._chosen(change["new"]), "value")
        self.widget = pieces.box([self._menu, self._problem], "pk-place")

    def fill(self) -> None:
        """Offers what there is; not before the panel is displayed, as recordings are read for it."""
        menu = {label: device for label, device in places().items() if self._can(device)}
        if self.device not in menu.values():
            menu[self.device] = self.device
        self._quiet = True
        self._menu.options = list(menu.items())
        self._menu.value = self.device
        self._quiet = False

    def _chosen(self, device: str) -> None:
        if not self._quiet:
            self.choose(device)

    def choose(self, device: str) -> None:
        """Moves the panel; a place where it cannot run is refused with the reason, and nothing changes."""
        try:
            plan = self._planned(device, self._host if device == self.device else None)
        except PerfkitError as problem:  # such as a recording that was removed meanwhile
            self._problem.value = pieces.message(str(problem))
            self._quiet = True
            self._menu.value = self.device
            self._quiet = False
            return
        self._problem.value = ""
        self.device, self.plan = device, plan
        self._on_change(plan)

    def plan_again(self) -> None:
        """The panel was asked for something else.

        Raises:
            PerfkitError: the panel cannot do that here.
        """
        self.plan = self._planned(self.device, self._host)
        self._on_change(self.plan)

    def set_busy(self, busy: bool) -> None:
        """Nothing can be chosen while something runs."""
        self._menu.disabled = busy

    def _can(self, device: str) -> bool:
        try:
            self._planned(device, None)
        except PerfkitError:
            return False
        return True
