"""One piece of work at a time, in a thread of its own or in the caller's, and how far along it is."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable

from IPython.core.getipython import get_ipython
from IPython.display import Pretty, display

from perfkit.notebook.layout import Action, Offer, box, html_slot, message, row
from perfkit.notebook.live import Live
from perfkit.studies.plan import Progress

_INTERVAL_S = 0.4
"""Between two updates: each is work for kernel, server and browser, on the cores that are measured."""
_SILENCE_S = 1.0
"""After it the panel says how long nothing was heard."""
_TICK_S = 0.5
"""Between two looks whether that is so."""
_LINE_INTERVAL_S = 1.0
"""The same for the line, which the browser lays out with the whole notebook."""


class Job:
    """Runs one piece of work at a time.

    Args:
        on_change: called with whether the job is busy, each time that changes.
    """

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self.cancelled = threading.Event()
        self._on_change = on_change
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether work is under way."""
        return self._lock.locked()

    def start(self, work: Callable[[], None], block: bool) -> bool:
        """Does the work.

        Args:
            work: what to do.
            block: in the caller's thread, after the work under way; else in a thread of its own, at once.

        Returns:
            False where other work is under way (a second click).
        """
        if not self._lock.acquire(blocking=block):
            return False
        self.cancelled.clear()

        def locked() -> None:
            try:
                self._on_change(True)
                work()
            finally:
                self._lock.release()
                self._on_change(self.busy)  # other work may have begun in between

        if block:
            locked()
        else:
            threading.Thread(target=locked, name="perfkit-run", daemon=True).start()
        return True

    def cancel(self) -> None:
        """Ends the work soon; what is finished is kept."""
        self.cancelled.set()


class Line:
    """One line of progress that is replaced in place, in a cell or in a terminal."""

    def __init__(self) -> None:
        self._text, self._stage, self._shown = "", "", 0.0
        self._handle = display(Pretty("starting …"), display_id=True) if get_ipython() else None

    def progress(self, what: str, fraction: float) -> None:
        """Shows a step of progress: a stage at once, its phases once a second."""
        stage, now = what.partition(":")[0], time.monotonic()
        if stage == self._stage and now - self._shown < _LINE_INTERVAL_S:
            return
        self._stage, self._shown = stage, now
        done = round(20 * fraction)
        self._show(f"{'█' * done}{'░' * (20 - done)} {what}")

    def wait(self) -> None:
        """Other work goes first."""
        self._show("waiting for the work under way …")

    def end(self, error: str = "") -> None:
        """Leaves the error, or `done`."""
        self._show(error or "done", "\n")

    def _show(self, text: str, end: str = "") -> None:
        if text == self._text:
            return
        self._text = text
        if self._handle:
            self._handle.update(Pretty(text))
        else:
            sys.stderr.write(f"\r{text:<78}{end}")


class Status:
    """Progress and messages of a panel; a cell that waits for the work has a line of its own.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.text, self.error = html_slot("pk-status"), html_slot("pk-error")
        self.offer, self._live = Offer(), Live()
        self.widget = box([row([self.text, self.offer.widget]), self.error])
        self._clock, self._lock = clock, threading.RLock()
        self._started = self._heard = self._shown = self._fraction = 0.0
        self._what = ""
        self._ended = threading.Event()
        self._ended.set()
        self._line: Line | None = None
        self._reading = True
        self.show("ready")

    def show(self, text: str, action: Action | None = None) -> None:
        """One line beside the bar, and what can be done about it."""
        self.offer.show(action)
        bar = f'<progress value="{self._fraction:.3f}" aria-label="Progress"></progress>'
        # One value, as each that changes is a message, and a frame that the browser draws.
        self.text.value = f'{bar} <span role="status">{html.escape(text)}</span>{self._live.html()}'

    def begin_reading(self) -> None:
        """The workload is being read, which takes seconds; a click on Run does not wait for it."""
        with self._lock:
            self._reading = self._ended.is_set()

    def show_read(self, text: str, action: Action | None = None, error: str = "") -> None:
        """What the reading says, unless work has begun since: what that says is newer."""
        with self._lock:
            if self._reading:
                self.error.value = message(error)
                self.show(text, action)

    def clear(self, text: str) -> None:
        """Nothing runs, nothing is done yet, and what went wrong before is forgotten."""
        with self._lock:
            self._ended.set()
            self._live.clear()
            self._fraction, self.error.value = 0.0, ""
            self.show(text)

    def begin(self, line: Line | None = None) -> None:
        """Starts a new piece of work; `line` shows the same as the panel."""
        with self._lock:
            self.clear("starting …")
            self._reading = False
            self._line, self._ended, self._what = line, threading.Event(), ""
            self._started = self._heard = self._clock()
        threading.Thread(target=self._tick, args=(self._ended,), name="perfkit-tick", daemon=True).start()

    def progress(self, what: str, fraction: float) -> None:
        """The phase, the share done, and roughly how long the rest will take, a few times a second."""
        with self._lock:
            self._heard, self._fraction = self._clock(), fraction
            if what != self._what or self._heard - self._shown >= _INTERVAL_S:
                self._what = what
                self._draw()
        if self._line:
            self._line.progress(what, fraction)

    def _tick(self, ended: threading.Event) -> None:
        """A step or a phase may be long: the time goes on while nothing is heard of it."""
        while not ended.wait(_TICK_S):
            with self._lock:
                if not ended.is_set() and self._clock() - self._heard >= _SILENCE_S:
                    self._draw()

    def _draw(self) -> None:
        self._shown = self._clock()
        spent, silent = self._heard - self._started, self._shown - self._heard
        said = f"{self._what}, {self._fraction:.0%} done" if self._what else "starting …"
        left = spent / self._fraction - spent - silent if self._fraction > 0.08 and spent > 3 else 0.0
        if left >= 0.5:
            said += f", about {_seconds(left)} left"
        self.show(f"{said} (last news {_seconds(silent)} ago)" if silent >= _SILENCE_S else said)

    def follow(self, progress: Progress) -> None:
        """The same, and how fast it is."""
        with self._lock:
            self._live.follow(progress)
        self.progress(progress.describe(), progress.fraction)

    def end(self, text: str, error: str = "", action: Action | None = None) -> None:
        """Done, or why not."""
        with self._lock:
            self._ended.set()
            self._live.clear()
            self._fraction = 0.0 if error else 1.0
            self.error.value = message(error)
            self.show(text, action)
            line, self._line = self._line, None
        if line:
            line.end(error)


def _seconds(value: float) -> str:
    return f"{value / 60:.0f} min" if value >= 90 else f"{value:.0f} s"
