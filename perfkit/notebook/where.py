"""A panel that measures a plan: on this machine, on a simulated GPU, or nowhere, as a recording is played."""

import html
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from perfkit import additions, machine
from perfkit.errors import PerfkitError
from perfkit.notebook import widgets as pieces
from perfkit.notebook.panel import Panel, check, refuse_object
from perfkit.results import recordings
from perfkit.results.store import RunStore
from perfkit.studies.progress import Progress
from perfkit.studies.rungs import climb
from perfkit.studies.sources import Plan

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
    """The words of the menu by device."""
    devices = dict.fromkeys([machine.check_device(None), "cpu"])
    menu = {device: f"this machine ({device})" for device in devices}
    for place in additions.sources().values():
        menu |= getattr(additions.load(place), "menu", dict)()
    return menu | {f"{recordings.PREFIX}{name}": f"recorded: {name}" for name in recordings.available()}


class PlanPanel(Panel):
    """A panel with a plan, and a menu of the places where it can run; a choice holds for this panel only.

    Args:
        key: what else the panel is made of, as for `Panel`.
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        preset: `smoke`, `quick` or `paper`; what `PERFKIT_PRESET` says, or what suits the machine, if None.
        device: `cuda`, `mps`, `cpu`, `sim:v100` …, or `recorded:NAME`; the session's choice if None.
        options: the workload's constructor arguments.
        host: the host of a simulated GPU: `article`, `ideal`, or its numbers.
        above: widgets between the question and the buttons.
        more: as for `Panel`.

    Raises:
        PerfkitError: a name or value that is not allowed, or the panel cannot run there.
    """

    question: str

    def __init__(
        self,
        key: object,
        workload: str | None = None,
        preset: str | None = None,
        device: str | None = None,
        options: Mapping[str, Any] | None = None,
        host: str | None = None,
        above: Sequence[widgets.Widget] = (),
        **more: Any,
    ) -> None:
        refuse_object(workload)
        self._asked: dict[str, Any] = {"workload": workload, "preset": preset, "options": options}
        key, problem = (key, self._asked, device, host), None
        self._host = host
        if device is None and any(_session):
            try:
                self._planned(*_session)
                device, self._host = _session
            except PerfkitError as reason:
                problem = reason
        self.plan = self._planned(device, self._host)
        self.device = device or self.plan.device
        """What the plan was made for, such as `recorded:NAME`."""
        here = {name: words for name, words in places().items() if self._can(name)}
        self._menu = widgets.Dropdown(
            description="Where",
            options=[(words, name) for name, words in ({self.device: self.device} | here).items()],
            value=self.device,
            _dom_classes=["pk-where"],
        )
        self._menu.observe(lambda change: self.choose(change["new"]), "value")
        heading = pieces.text("pk-question", value=f"<h3>{html.escape(self.question)}</h3>")
        super().__init__(key, [pieces.row([heading, self._menu], "pk-head"), *above], **more)
        self.bar.tell(problem)

    @abstractmethod
    def _planned(self, device: str | None, host: str | None) -> Plan:
        """The plan of this panel on a device. Raises a PerfkitError where there can be none."""

    @abstractmethod
    def _moved(self) -> None:
        """There is another plan: what was shown belongs to the one before."""

    def _can(self, device: str) -> bool:
        try:
            self._planned(device, None)
        except PerfkitError:
            return False
        return True

    def choose(self, device: str) -> None:
        """Moves the panel; where it cannot run, and while it runs, it says why, and nothing changes."""
        if device != self.device:
            self.attempt(lambda: self.move(device))
            self._menu.value = self.device

    def move(self, device: str) -> None:
        """Makes the plan again, as the panel was asked for something else.

        Raises:
            PerfkitError: the panel cannot do that there, or it is at work.
        """
        self.require_rest()
        self.plan = self._planned(device, self._host if device == self.device else None)
        self.device = device
        self._moved()

    def follow(self, progress: Any) -> None:
        """Keeps runs as they end: a person may stop the others."""
        super().follow(progress)
        if progress.run:
            self.runs = [*self.runs, progress.run]

    def _climb(self, plan: Plan) -> None:
        """Measures a plan. Raises what went wrong, also in a run."""
        self.runs = []
        self.runs = climb(plan, RunStore(), Progress(self.follow, self.cancelled))
        check(self.runs)
