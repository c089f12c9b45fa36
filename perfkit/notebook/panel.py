"""What every panel has: run, cancel, progress, results, and one way for work to begin and to end.

One `run()` serves button and cell. In a cell it blocks, with progress, and the kernel's stop button ends it,
so a notebook also runs from top to bottom without a click; the Run button's work goes on in a thread, and
other cells run meanwhile. Results stand in the panel; the same cell keeps them as ordinary outputs, which a
reader without a kernel sees in the panel's place.
"""

from __future__ import annotations

import re
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import Markdown, display

from perfkit import machine
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.notebook import layout
from perfkit.notebook.job import Job, Line, Status
from perfkit.notebook.layout import Action
from perfkit.notebook.shown import Sectioned, Still
from perfkit.notebook.where import Choice, Chooser, Option
from perfkit.results.run import Run
from perfkit.results.simulated import THIS_MACHINE
from perfkit.results.store import Entry
from perfkit.show import document, figures, html, sentences, tables
from perfkit.studies import plan as plans

STOPPED = "stopped; what was finished is kept"
NEEDS_GPU = re.compile(r"needs? (a|an|one) (CUDA|GPU)|formats? of CUDA|CUDA graphs|compute in bfloat16")
_NEEDS_COMPILER = re.compile(r"finds? no compiler|compiler is missing|no C(\+\+)? compiler")

_newest: weakref.WeakValueDictionary[str, Panel] = weakref.WeakValueDictionary()


class Panel(layout.Boxed, Sectioned):
    """Runs measurements and shows their results. Subclasses say what is measured, and add their controls.

    Args:
        key: what the panel is about. A cell that is run again makes a new panel with the same key: the work
            of the older one ends.
    """

    nothing = ""
    """What stands in the place of results while there are none."""
    missing = ("nothing was measured yet", "Run the cell with .run() first")
    """The error of an output that needs results, and its remedy."""
    _where: Chooser | None = None
    """Where it runs, if that can be chosen."""
    _buttons: Sequence[widgets.Button] = ()
    """Other work, which cannot begin either while something runs."""
    _above: Sequence[widgets.Widget] = ()
    _between: Sequence[widgets.Widget] = ()
    _beside: Sequence[widgets.Widget] = ()
    _below: Sequence[widgets.Widget] = ()
    """Widgets above the buttons, below the progress, below the picture, at the end: all are set first."""

    def __init__(self, key: str) -> None:
        self.runs: list[Run] = []
        self.error = ""
        self._job = Job(self._set_busy)
        self._status = Status()
        self._reader: threading.Thread | None = None
        self._still = Still()
        self._shown_by: int | None = None
        tooltip = "Measure; other cells can run meanwhile"
        self._run = layout.button("Run", "pk-run", tooltip, lambda: self.run(block=False), "primary")
        self._cancel = layout.button("Cancel", "pk-cancel", "Stop; what is finished is kept", self.cancel)
        self._cancel.disabled = True
        self._results = layout.html_slot("pk-results")
        self._headline, self._plot = layout.html_slot("pk-plot"), layout.html_slot("pk-plot")
        self._pictures: dict[str, document.Figure] = {}
        self._more = Choice("More:", "pk-tabs", self._show_plot)
        self._fill([
            *self._above, layout.row([self._run, self._cancel, *self._buttons]),
            self._status.widget, *self._between, self._headline, *self._beside, self._results,
            self._more.widget, self._plot, *self._below,
        ])  # fmt: skip
        older, _newest[key] = _newest.get(key), self
        if older:
            older.retire()

    @abstractmethod
    def _read(self) -> None:
        """Asks a fresh process what the workload offers; runs in a thread when the panel is displayed."""

    @abstractmethod
    def _measure(self) -> list[Run]:
        """Measures; `_follow` gets the progress."""

    @abstractmethod
    def _keep(self, run: Run) -> None:
        """Takes a run that has just ended, whatever its end."""

    def _chosen(self) -> list[Run]:
        """The runs to show."""
        return self.runs

    def _notices(self, runs: Sequence[Run]) -> list[document.Content]:
        """What a reader must know before the table."""
        return [document.Notice(text) for text in sentences.notices(runs)]

    def _remarks(self, runs: Sequence[Run]) -> list[document.Content]:
        """What else to say of the runs."""
        return []

    # ------------------------------------------------------------ work

    def run(self, block: bool = True) -> None:
        """Measures. What goes wrong is shown as one message; the notebook stays usable.

        A panel that no cell has displayed yet appears below this one. A cell waits for a click's work to end.

        Args:
            block: wait for the end, with progress in this cell; the kernel's stop button ends it.
        """
        if block and not self._still.is_shown and get_ipython():
            display(self)
        self._start(self._measure, block)

    def cancel(self) -> None:
        """Stops the work under way; finished runs are kept."""
        self._job.cancel()

    def retire(self) -> None:
        """A newer panel takes its place: its work ends."""
        self.cancel()

    def _start(self, work: Callable[[], list[Run] | None], block: bool) -> None:
        line = Line() if block and not self._is_here() else None
        try:
            if line and self._job.busy:
                line.wait()
            self._job.start(lambda: self._guard(work, line), block)
        except KeyboardInterrupt:  # while it waited: the work under way goes on
            if line:
                line.end("stopped before its turn; the panel's own work goes on")

    def _guard(self, work: Callable[[], list[Run] | None], line: Line | None) -> None:
        """Does a piece of work, which may return runs; however it and they end, the panel says so."""
        self._status.begin(line)
        try:
            runs = work() or []
            failed = [f"{run.title} failed: {run.reason}" for run in runs if run.status == "failed"]
            stopped = self._job.cancelled.is_set() or any(run.status == "cancelled" for run in runs)
            self.error = "; ".join(failed) or STOPPED * stopped
        except (KeyboardInterrupt, Cancelled):
            self.error = STOPPED
        except PerfkitError as problem:
            self.error = str(problem)
        except Exception as problem:  # a thread has nobody to raise it to: it is shown in the panel
            self.error = f"{type(problem).__name__}: {problem}. This is a bug in perfkit: please report it"
        self._status.end("stopped" if self.error else "done", self.error, self._remedy(self.error))
        self._draw_still()

    def enlarge(self, large: bool) -> None:
        """Large type in this panel, also in its figures."""
        super().enlarge(large)
        self._draw()

    def _remedy(self, reason: str) -> Action | None:
        """What can be done about a reason in this panel."""
        if _NEEDS_COMPILER.search(reason):
            return Action("Install a compiler", self._tell_compiler)
        return self._where.simulation() if self._where and NEEDS_GPU.search(reason) else None

    def _tell_compiler(self) -> None:
        problem = machine.compiler_problem(self._where.plan.device if self._where else "cpu")
        how = f"in a terminal: {problem.partition(': ')[2] or problem}" if problem else "there is one now"
        self._status.show(f"{how}; then restart the kernel")

    def _follow(self, progress: plans.Progress) -> None:
        self._status.follow(progress)
        if progress.run:
            self._keep(progress.run)

    def _set_busy(self, busy: bool) -> None:
        for button in (self._run, *self._buttons):
            button.disabled = busy
        self._cancel.disabled = not busy
        if self._where:
            self._where.set_busy(busy)

    def _ipython_display_(self) -> None:
        if self._is_here():
            return
        self._shown_by = _cell()
        display(self._repr_mimebundle_(), raw=True)
        self._still.show()
        if self._reader is None:
            self._start_reading()
            if self.runs:
                self._draw()
        self._draw_still()

    def _is_here(self) -> bool:
        """Whether the cell that runs has displayed the panel: it would be there twice."""
        return self._shown_by is not None and self._shown_by == _cell()

    def _start_reading(self) -> None:
        self._status.begin_reading()
        self._reader = threading.Thread(target=self._read, name="perfkit-read", daemon=True)
        self._reader.start()

    # ------------------------------------------------------------ results

    def _draw(self) -> None:
        """Shows the chosen runs; from any thread."""
        runs = self._chosen()
        self._results.value = html.fragment(self._contents(runs)) if runs else self.nothing
        measured = self._has_pictures() and any(run.status == "ok" for run in runs)
        self._headline.value = figures.headline(runs).svg() if measured else ""
        self._pictures = figures.others(runs) if measured else {}
        self._show_plot(self._more.value if self._more.value in self._pictures else "")

    def _show_plot(self, tab: str) -> None:
        """Draws one of the other pictures, if any: each takes longer than everything else together."""
        self._more.show({name: Option(name) for name in self._pictures}, tab)
        figure = self._pictures.get(tab)
        self._plot.value = figure.svg() if figure else ""

    def _draw_still(self) -> None:
        """The same for a reader without a kernel; at the end of a run, as it is work for the processor."""
        if not self._still.is_shown:
            return
        if not (runs := self._chosen()):
            return self._still.update(None, [])
        where = document.Section("Where and when", tables.summary(runs)[:2], folded=True)
        self._still.update(figures.headline(runs), [*self._contents(runs), where])

    def _has_pictures(self) -> bool:
        """Whether figures are drawn, which takes most of the time."""
        return True

    def _contents(self, runs: Sequence[Run]) -> list[document.Content]:
        """What the panel says of the runs, apart from its pictures."""
        ladder = replace(tables.short_ladder(runs), title="")
        count = len({warning for run in runs for warning in run.warnings})
        heading = f"{count} warning{'s' * (count != 1)}, and facts" if count else "Facts about these runs"
        notes = tables.notes(runs)
        folded = [document.Section(heading, [document.Bullets(notes)], folded=True)] if notes else []
        said = document.Bullets(self._sentences(runs))
        return [*self._notices(runs), ladder, said, *self._remarks(runs), *folded]

    def _sentences(self, runs: Sequence[Run]) -> list[str]:
        return sentences.verdicts(runs)

    def sections(self) -> Sequence[document.Content]:
        """Everything there is to say of the runs.

        Raises:
            InvalidValue: nothing was measured yet.
        """
        return tables.sections(self._results_or_error())

    def verdict(self) -> Markdown:
        """Did it help here, and why: computed from the results."""
        return Markdown("\n".join(f"- {text}" for text in self._sentences(self._results_or_error())))

    def _results_or_error(self) -> list[Run]:
        if not self._chosen():
            raise InvalidValue(*self.missing)
        return self._chosen()


def _cell() -> int | None:
    """The number of the cell that runs; None without a kernel."""
    shell = get_ipython()
    return shell.execution_count if shell else None


def is_of(plan: plans.Plan, run: Run | Entry) -> bool:
    """Whether a stored run may be shown beside those of a plan: a simulated one only on its GPU and host."""
    known = run.simulated
    if known is None or plan.gpu is None:
        return known is None and plan.gpu is None
    return run.device == plan.device and known.host == (plan.host.name if plan.host else THIS_MACHINE)


def refuse_object(workload: Any) -> None:
    """A class defined in a cell cannot reach the measuring process, nor its loader workers.

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
