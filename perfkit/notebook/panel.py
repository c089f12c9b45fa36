"""What every panel has: Run and Stop, one bar with one line of words, one place for its results.

One kind of work serves button and cell. In a cell it blocks, raises what went wrong, and ends with the
kernel's stop button, which then also ends "Run All". From a button it runs in a thread, and the panel says
what goes wrong.
"""

import html
import threading
import time
import traceback
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import display

from perfkit.errors import Cancelled, InvalidValue, PerfkitError, RunFailed
from perfkit.notebook import widgets as pieces
from perfkit.notebook.shown import Output, Sectioned, current_cell, request
from perfkit.results.run import Run
from perfkit.studies.sources import Progress, Update

STOPPED = "stopped; what was finished is kept"
_INTERVAL_S = 0.4
"""Between two updates: each is work for kernel, server and browser, on the cores that are measured."""
_newest: "weakref.WeakValueDictionary[str, Panel]" = weakref.WeakValueDictionary()


class Bar:
    """How far the work is, in one line, and the one place for errors.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.line, self.error = pieces.text("pk-status"), pieces.text("pk-error")
        self._clock = clock
        self._started = self._shown = 0.0
        self._words = ""
        self.say("ready")

    def say(self, words: str, fraction: float = 0.0) -> None:
        """Shows the part that is done, and a line of words beside it."""
        bar = f'<progress value="{fraction:.3f}" aria-label="Progress"></progress>'
        # One value, as each that changes is a message, and a frame that the browser draws.
        self.line.value = f'{bar} <span role="status">{html.escape(words)}</span>'

    def tell(self, problem: BaseException | None) -> None:
        """What could not be done; the work under way goes on. None removes it."""
        self.error.value = _told(problem) if problem else ""

    def begin(self) -> None:
        """Starts a piece of work."""
        self._started, self._words = self._clock(), ""
        self.tell(None)
        self.say("starting …")

    def progress(self, words: str, fraction: float) -> None:
        """Shows what is done, the part that is done, and roughly how long the rest will take."""
        now = self._clock()
        if words == self._words and now - self._shown < _INTERVAL_S:
            return
        self._words, self._shown = words, now
        spent = now - self._started
        left_s = spent / fraction - spent if fraction > 0.08 and spent > 3 else 0.0
        left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
        self.say(f"{words}, {fraction:.0%}{f', about {left} left' * (left_s >= 0.5)}", fraction)


class Panel(Sectioned):
    """Controls, Run and Stop, and results. A subclass adds its controls and says what is measured.

    Args:
        key: what the panel is made of. A cell that is run again makes a new panel with the same key: the work
            of the older one ends.
        above: widgets above the buttons.
        before: widgets before the buttons.
        buttons: other work, which cannot begin either while something runs.
        below: widgets below the bar.
    """

    text = "perfkit panel: run this cell for the controls, or call .run() to measure"
    """In place of the widgets, where there are none."""
    acts: widgets.Widget | None = None
    """Widgets between the result and its folded details."""

    def __init__(
        self,
        key: object,
        above: Sequence[widgets.Widget],
        before: Sequence[widgets.Widget] = (),
        buttons: Sequence[widgets.Widget] = (),
        below: Sequence[widgets.Widget] = (),
    ) -> None:
        self.runs: list[Run] = []
        self.cancelled = threading.Event()
        """Set while the work under way is to end."""
        self.bar = Bar()
        self._turn = threading.Lock()
        self._output = self._beside = Output()
        """Where the newest result is: beside the controls, or below the cell that called `run`."""
        tooltip = "Measure; other cells can run meanwhile"
        run = pieces.button("Run", tooltip, lambda: self.start(self._measure), "primary")
        self._stop = pieces.button("Stop", "Stop; what is finished is kept", self.stop)
        self._stop.disabled = True
        self._idle_only = [run, *buttons]
        acts = pieces.row([*before, run, self._stop, *buttons, self.bar.line])
        style = widgets.HTML(pieces.STYLE)
        self.widget = pieces.box([style, *above, acts, self.bar.error, *below], "pk-panel")
        name = f"{type(self).__name__} {key} {request().get('metadata', {}).get('cellId', '')}"
        older, _newest[name] = _newest.get(name), self
        if older:
            older.stop()

    @abstractmethod
    def _measure(self) -> None:
        """Measures, and keeps the runs; `follow` gets the progress. Raises what went wrong."""

    # ------------------------------------------------------------ work

    def run(self) -> None:
        """Measures, and shows the result below the cell that called.

        Raises:
            PerfkitError: it failed or was stopped; what was finished is shown.
            KeyboardInterrupt: the kernel's stop button was pressed, after every process has ended.
        """
        self.wait(self._measure)

    def stop(self) -> None:
        """Stops the work under way; finished runs are kept."""
        self.cancelled.set()

    def wait(self, work: Callable[[], None]) -> None:
        """Does work in a cell, after that under way: blocks, shows its results, raises what went wrong."""
        output = self._place()
        with self._turn:
            self._do(work, output)

    def start(self, work: Callable[[], None]) -> None:
        """Does a piece of work in a thread, unless another is under way; the panel says what goes wrong."""

        def act() -> None:
            try:
                self._do(work, self._beside)
            except (Exception, KeyboardInterrupt) as problem:
                self.bar.tell(problem)
            finally:
                self._turn.release()

        if self._turn.acquire(blocking=False):
            threading.Thread(target=act, name="perfkit-run", daemon=True).start()

    def attempt(self, act: Callable[[], object]) -> None:
        """Does at once what a person asks for; the panel says why it cannot be done."""
        self.bar.tell(None)
        try:
            act()
        except PerfkitError as problem:
            self.bar.tell(problem)

    def act(self, label: str, tooltip: str, act: Callable[[], object]) -> widgets.Button:
        """A button for what takes no time."""
        return pieces.button(label, tooltip, lambda: self.attempt(act))

    def progress(self) -> Progress:
        """What a study reports to, and is stopped by."""
        return Progress(self.follow, self.cancelled)

    def follow(self, now: Update) -> None:
        """Shows how far a study is, and keeps runs as they end: a person may stop the others."""
        self.bar.progress(now.describe(), now.fraction)
        if self._output is not self._beside:
            self._output.line(now.describe(), now.fraction)
        if now.run:
            self.runs = [*self.runs, now.run]

    def require_rest(self) -> None:
        """Refuses a change while work is under way, with an InvalidValue."""
        if self._turn.locked():
            raise InvalidValue("this panel is at work", "Wait for its end, or press Stop")

    def results(self) -> list[Run]:
        """The runs that are shown.

        Raises:
            InvalidValue: nothing was measured yet.
        """
        if not self.runs:
            raise InvalidValue("nothing was measured yet", "Press Run, or call .run()")
        return self.runs

    def _do(self, work: Callable[[], None], output: Output) -> None:
        self.cancelled.clear()
        self._set_busy(True)
        self.bar.begin()
        if output is not self._output:
            before, self._output = self._output, output
            before.leave(keep=before is not self._beside)
        words, fraction = "failed", 0.0
        try:
            work()
            words, fraction = "done", 1.0
        except (Cancelled, KeyboardInterrupt):
            words = "stopped"
            raise
        finally:
            self.show()
            self.bar.say(words, fraction)
            self._set_busy(False)

    def _place(self) -> Output:
        """The output for a piece of work in a cell; a panel that no cell has displayed yet appears there."""
        if get_ipython() and not self._beside.cell:
            display(self)
        if self._beside.cell == current_cell():
            return self._beside
        output = Output()
        output.place()
        return output

    def _set_busy(self, busy: bool) -> None:
        for button in self._idle_only:
            button.disabled = busy
        self._stop.disabled = not busy

    # ------------------------------------------------------------ display

    def _ipython_display_(self) -> None:
        if self._beside.cell and self._beside.cell == current_cell():
            return  # `run` has displayed it in this cell already
        display({**self.widget._repr_mimebundle_(), "text/plain": self.text}, raw=True)
        self._output = self._beside
        self._beside.place(self.sections(), self.acts)

    def show(self) -> None:
        """Shows the results as they are now, in the place of the newest."""
        self._output.show(self.sections(), self.acts)

    def __repr__(self) -> str:
        return self.text


def check(runs: Sequence[Run]) -> None:
    """Raises RunFailed or Cancelled for runs that a study has returned though they have no result."""
    failed = {run.reason: run.title for run in reversed(runs) if run.status == "failed"}  # each reason once
    if failed:
        raise RunFailed("; ".join(f"{title} failed: {why}" for why, title in reversed(failed.items())))
    if any(run.status == "cancelled" for run in runs):
        raise Cancelled(STOPPED)


def _told(problem: BaseException) -> str:
    """What went wrong as HTML; an error that nobody expected keeps its traceback, folded."""
    if isinstance(problem, KeyboardInterrupt | Cancelled):
        return pieces.message(STOPPED)
    if isinstance(problem, PerfkitError):
        return pieces.message(str(problem))
    words = f"{type(problem).__name__}: {problem}. This is a fault of perfkit: please report it"
    lines = pieces.copyable("".join(traceback.format_exception(problem)))
    return f"{pieces.message(words)}<details><summary>Traceback</summary>{lines}</details>"
