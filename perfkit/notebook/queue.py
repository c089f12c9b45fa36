"""What is to be measured after the work under way, in this order; entries can be moved and removed."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.notebook import layout
from perfkit.results.run import Run


@dataclass(eq=False)
class Measurement:
    """A recipe that Run was pressed for, as everything stood then.

    Args:
        name: what people call it.
        chips: the switches that it sets, in words.
        measure: measures it, for as long as that takes.
        since: the measurement, or the id of the run, whose switches it started from.
    """

    name: str
    chips: Sequence[str]
    measure: Callable[[], list[Run]]
    since: Measurement | str = ""
    run_id: str = ""
    """Of its run, once it is measured."""

    @property
    def parent(self) -> str:
        """The id of the run that it started from; of one further back where nothing was measured."""
        return self.since if isinstance(self.since, str) else self.since.run_id or self.since.parent


class Queue:
    """Measurements that wait, each with buttons; and what went wrong in the last series."""

    def __init__(self) -> None:
        self._waiting: list[Measurement] = []
        self._problems: list[str] = []
        self._lock = threading.RLock()
        self._lines: dict[Measurement, Any] = {}
        self._errors, self._heading = layout.html_slot("pk-error"), layout.html_slot()
        clear = layout.button("Remove all", "pk-queue-clear", "Empty the queue", self.clear)
        self._above = layout.row([self._heading, clear])
        self._list = layout.box([])
        self.widget = layout.box([self._errors, self._above, self._list], "pk-queue")
        self._draw()

    @property
    def names(self) -> Sequence[str]:
        """Of what waits, the next one first."""
        return [one.name for one in self._waiting]

    def add(self, measurement: Measurement) -> None:
        """At the end."""
        with self._lock:
            self._waiting.append(measurement)
            self._draw()

    def take(self) -> Measurement | None:
        """The next one, which is to be measured now; None where none waits."""
        with self._lock:
            taken = self._waiting.pop(0) if self._waiting else None
            self._draw()
        return taken

    def move(self, measurement: Measurement, by: int) -> None:
        """Earlier (-1) or later (1), as far as that goes."""
        with self._lock:
            if measurement in self._waiting:
                at = self._waiting.index(measurement)
                self._waiting.insert(max(0, at + by), self._waiting.pop(at))
                self._draw()

    def remove(self, measurement: Measurement) -> None:
        """Takes it out."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one is not measurement]
            self._draw()

    def clear(self) -> None:
        """Takes everything out, what went wrong included."""
        with self._lock:
            self._waiting, self._problems = [], []
            self._draw()

    def went_wrong(self, text: str) -> None:
        """Keeps an error in view, while the next entry replaces the panel's own message."""
        with self._lock:
            self._problems.append(text)
            self._draw()

    def forget_problems(self) -> None:
        """A new series begins: what went wrong in the last one is no longer news."""
        with self._lock:
            self._problems = []
            self._draw()

    def _draw(self) -> None:
        """Lines are moved by CSS and hidden: a new one in its place would lose the keyboard's focus."""
        waiting = self._waiting
        self._errors.value = "".join(map(layout.message, self._problems))
        self._heading.value = f"<b>Next</b> ({len(waiting)} in the queue)"
        layout.set_class(self._above, "pk-off", not waiting)
        layout.set_class(self._errors, "pk-off", not self._problems)
        new = [one for one in waiting if one not in self._lines]
        self._lines |= {one: self._line(one) for one in new}
        for one, line in self._lines.items():
            layout.set_class(line, "pk-off", one not in waiting)
        for at, one in enumerate(waiting):
            chips = " · ".join(map(html.escape, one.chips)) or "the baseline"
            line = self._lines[one]
            line.children[-1].value = f"{at + 1}. <b>{html.escape(one.name)}</b>: {chips}"
            line.layout.order = str(at)
        if new:
            self._list.children = list(self._lines.values())

    def _line(self, one: Measurement) -> Any:
        button = layout.button
        earlier = button("Earlier", "pk-earlier", f"Measure {one.name} earlier", lambda: self.move(one, -1))
        later = button("Later", "pk-later", f"Measure {one.name} later", lambda: self.move(one, 1))
        out = button("Remove", "pk-remove", f"Do not measure {one.name}", lambda: self.remove(one))
        return layout.row([earlier, later, out, layout.html_slot("pk-queued")])
