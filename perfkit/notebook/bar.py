"""The one line of a panel: how far its work is, what it does, and what went wrong."""

import html
import sys
import threading
import time
import traceback
from collections.abc import Callable

from perfkit.errors import Cancelled, PerfkitError
from perfkit.notebook import widgets as pieces
from perfkit.notebook.shown import Output

STOPPED = "stopped; what was finished is kept"
_INTERVAL_S = 0.4
"""Between two updates: each is work for kernel, server and browser, on the cores that are measured."""
_LINE_INTERVAL_S = 1.0
"""The same for a line in a cell, which the browser lays out with the whole notebook."""


class Bar:
    """A progress bar with a line of words, and a place for errors.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._words, self._error = pieces.text("pk-status"), pieces.text("pk-error")
        self.widget = pieces.box([self._words, self._error])
        self._clock, self._lock = clock, threading.RLock()
        self._line: Line | None = None
        self._started = self._shown = self._fraction = 0.0
        self._phase = ""
        self._undecided = True
        self.say("ready")

    def say(self, words: str) -> None:
        """Shows a line of words beside the bar."""
        bar = f'<progress value="{self._fraction:.3f}" aria-label="Progress"></progress>'
        # One value, as each that changes is a message, and a frame that the browser draws.
        self._words.value = f'{bar} <span role="status">{html.escape(words)}</span>'

    def begin_reading(self) -> None:
        """The controls are being filled in, which takes seconds; a click on Run does not wait for it."""
        self._undecided = True

    def say_read(self, words: str, error: str = "") -> None:
        """Shows what the reading says, unless work has begun since: its words are newer."""
        with self._lock:
            if self._undecided:
                self._error.value = pieces.message(error)
                self.say(words)

    def begin(self, line: "Line | None" = None) -> None:
        """Starts a piece of work; `line` shows the same as the bar."""
        with self._lock:
            self._undecided, self._line = False, line
            self._started, self._fraction, self._phase, self._error.value = self._clock(), 0.0, "", ""
            self.say("starting …")

    def progress(self, words: str, fraction: float) -> None:
        """Shows what is done, the part that is done, and roughly how long the rest will take."""
        with self._lock:
            now, self._fraction = self._clock(), fraction
            if words != self._phase or now - self._shown >= _INTERVAL_S:
                self._phase, self._shown = words, now
                spent = now - self._started
                left = spent / fraction - spent if fraction > 0.08 and spent > 3 else 0.0
                rest = f", about {_seconds(left)} left" if left >= 0.5 else ""
                self.say(f"{words}, {fraction:.0%} done{rest}")
        if self._line:
            self._line.progress(words, fraction)

    def end(self, words: str = "done") -> None:
        """The work is done."""
        with self._lock:
            self._fraction = 1.0
            self.say(words)

    def tell(self, problem: PerfkitError) -> None:
        """What a click could not do; the work under way goes on."""
        self._error.value = pieces.message(str(problem))

    def fail(self, problem: BaseException) -> None:
        """The work has ended early; an error that nobody expected keeps its traceback, folded."""
        with self._lock:
            self._fraction = 0.0
            self.say("stopped")
            self._error.value = pieces.message(in_words(problem)) + _traceback(problem)


class Line:
    """The bar once more, as a line of text in a cell that waits, or in a terminal.

    Args:
        output: the cell's; None: the terminal.
    """

    def __init__(self, output: Output | None) -> None:
        self._output = output
        self._stage, self._shown = "", 0.0

    def progress(self, words: str, fraction: float) -> None:
        """Shows a new stage at once, its phases once a second."""
        stage, now = words.partition(":")[0], time.monotonic()
        if stage == self._stage and now - self._shown < _LINE_INTERVAL_S:
            return
        self._stage, self._shown = stage, now
        done = round(20 * fraction)
        line = f"{'█' * done}{'░' * (20 - done)} {words}"
        if self._output:
            self._output.line(line)
        else:
            sys.stderr.write(f"\r{line:<78}")


def in_words(problem: BaseException) -> str:
    """What went wrong, in one sentence."""
    if isinstance(problem, KeyboardInterrupt | Cancelled):
        return STOPPED
    if isinstance(problem, PerfkitError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}. This is a fault of perfkit: please report it"


def _traceback(problem: BaseException) -> str:
    if isinstance(problem, KeyboardInterrupt | PerfkitError):
        return ""
    lines = "".join(traceback.format_exception(problem))
    return f"<details><summary>Traceback</summary>{pieces.copyable(lines)}</details>"


def _seconds(value: float) -> str:
    return f"{value / 60:.0f} min" if value >= 90 else f"{value:.0f} s"
