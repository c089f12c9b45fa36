"""What every panel has: Run and Stop, one line of progress, and one output for its results.

One kind of work serves button and cell. In a cell it blocks, raises what went wrong, and ends with the
kernel's stop button, which then also ends "Run All". From a button it runs in a thread, and what goes wrong
stands in the panel.
"""

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import display

from perfkit.errors import Cancelled, InvalidValue, RunFailed
from perfkit.notebook import widgets as pieces
from perfkit.notebook.bar import STOPPED, Bar, Line, in_words
from perfkit.notebook.shown import Output, Sectioned, current_cell
from perfkit.results.run import Run
from perfkit.show.document import Content

_newest: "weakref.WeakValueDictionary[str, Panel]" = weakref.WeakValueDictionary()


class Panel(Sectioned):
    """Controls, Run and Stop, and results. A subclass adds its controls and says what is measured.

    Args:
        key: what the panel is made of. A cell that is run again makes a new panel with the same key: the work
            of the older one ends.
        above: widgets above the buttons.
        buttons: other work, which cannot begin either while something runs.
        below: widgets below the bar.
    """

    text = "perfkit panel: run this cell for the controls, or call .run() to measure"
    """In place of the widgets, where there are none."""

    def __init__(
        self,
        key: object,
        above: Sequence[widgets.Widget],
        buttons: Sequence[widgets.Widget] = (),
        below: Sequence[widgets.Widget] = (),
    ) -> None:
        self.runs: list[Run] = []
        self.error = ""
        """What went wrong in the work that ended last; empty if nothing did."""
        self.cancelled = threading.Event()
        """Set while the work under way is to end."""
        self.bar = Bar()
        self._turn = threading.Lock()
        self._beside = Output()
        self._reader: threading.Thread | None = None
        tooltip = "Measure; other cells can run meanwhile"
        self._run = pieces.button("Run", "pk-run", tooltip, lambda: self.start(self._measure), "primary")
        self._stop = pieces.button("Stop", "pk-stop", "Stop; what is finished is kept", self.stop)
        self._stop.disabled = True
        self._others = buttons
        style = widgets.HTML(pieces.STYLE)
        acts = pieces.row([*self._beside_run(), self._run, self._stop, *buttons])
        self.widget = pieces.box([style, *above, acts, self.bar.widget, *below], "pk-panel")
        own = f"{type(self).__name__} {key} {_cell_id()}"
        older, _newest[own] = _newest.get(own), self
        if older:
            older.stop()

    @abstractmethod
    def _measure(self) -> None:
        """Measures, and keeps the runs; `follow` gets the progress. Raises what went wrong."""

    @abstractmethod
    def sections(self) -> Sequence[Content]:
        """What the panel shows of its results."""

    def _beside_run(self) -> Sequence[widgets.Widget]:
        """Widgets before the Run button."""
        return ()

    def _read(self) -> None:
        """Looks, in a thread, what the controls can offer; called once the panel is displayed."""

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
        """Does a piece of work in a cell: blocks, shows its results there, and raises what went wrong."""
        output = self._place()
        if not self._turn.acquire(blocking=False):
            output.line("waiting for the work under way …")
            self._turn.acquire()
        try:
            self._do(work, output)
        finally:
            self._turn.release()
            self._set_busy(self._turn.locked())

    def start(self, work: Callable[[], None]) -> None:
        """Does a piece of work in a thread, unless another is under way; the panel says what goes wrong."""
        if not self._turn.acquire(blocking=False):
            return

        def act() -> None:
            try:
                self._do(work, self._beside)
            except (Exception, KeyboardInterrupt):
                pass  # the bar says it
            finally:
                self._turn.release()
                self._set_busy(self._turn.locked())

        threading.Thread(target=act, name="perfkit-run", daemon=True).start()

    def follow(self, progress: Any) -> None:
        """Takes what a study reports: its words, the part that is done, a run that has ended."""
        self.bar.progress(progress.describe(), progress.fraction)

    def require_rest(self) -> None:
        """Refuses a change while work is under way.

        Raises:
            InvalidValue: something runs.
        """
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
        in_cell = output is not self._beside
        self.bar.begin(Line(output if output.cell else None) if in_cell else None)
        self.error = ""
        try:
            work()
        except BaseException as problem:
            self.error = in_words(problem)
            self.bar.fail(problem)
            raise
        else:
            self.bar.end("done")
        finally:
            if in_cell:
                self._beside.show([])
            self._draw(output)

    def _draw(self, output: Output) -> None:
        try:
            output.show(self.sections())
        except Exception as problem:
            self.bar.fail(problem)
            raise

    def _place(self) -> Output:
        """The output for a piece of work in a cell; a panel that no cell has displayed yet appears there."""
        output = Output()
        if get_ipython() is None:
            return output
        if not self._beside.cell:
            display(self)
        if self._beside.cell == current_cell():
            return self._beside
        output.place()
        return output

    def _set_busy(self, busy: bool) -> None:
        for button in (self._run, *self._others):
            button.disabled = busy
        self._stop.disabled = not busy

    # ------------------------------------------------------------ display

    def _ipython_display_(self) -> None:
        if self._beside.cell and self._beside.cell == current_cell():
            return  # `run` has displayed it in this cell already
        display(self._repr_mimebundle_(), raw=True)
        self._beside.place(self.sections())
        if self._reader is None:
            self._start_reading()

    def _start_reading(self) -> None:
        self._reader = threading.Thread(target=self._read, name="perfkit-read", daemon=True)
        self._reader.start()

    def show(self) -> None:
        """Shows the results as they are now beside the controls."""
        self._draw(self._beside)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = self.widget._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": self.text}


def check(runs: Sequence[Run]) -> None:
    """Raises for runs that a study has returned without an error, though they have no result.

    Raises:
        RunFailed: a run failed.
        Cancelled: a run was stopped.
    """
    failed = [f"{run.title} failed: {run.reason}" for run in runs if run.status == "failed"]
    if failed:
        raise RunFailed("; ".join(failed))
    if any(run.status == "cancelled" for run in runs):
        raise Cancelled(STOPPED)


def refuse_object(workload: Any) -> None:
    """Refuses a class that was defined in a cell: it cannot reach the measuring process.

    Raises:
        InvalidValue: it is not a name.
    """
    if workload is not None and not isinstance(workload, str):
        name = getattr(workload, "__name__", type(workload).__name__)
        raise InvalidValue(
            f"the workload is an object, {name}, not a name",
            "Other processes build it, so it must be in a module: begin its cell with "
            f"`%%writefile my_training.py`, then give workload='my_training:{name}'",
        )


def _cell_id() -> str:
    """The cell that runs, as the notebook calls it; empty where it does not say."""
    shell: Any = get_ipython()
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return str(parent.get("metadata", {}).get("cellId", ""))
