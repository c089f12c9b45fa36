"""What every panel has: controls, Run and Stop, one bar with one line of words, one place for its results.

One kind of work serves button and cell. In a cell it blocks, raises what went wrong, and ends with the
kernel's stop button, which then also ends "Run All". From a button it runs in a thread, and the panel says
what goes wrong. A click may arrive in any thread: all pieces set widget traits only.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import resources
from typing import Any

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import display

from perfkit.errors import InvalidValue, StoreError
from perfkit.notebook.pieces import Status, row, text
from perfkit.notebook.shown import CellOutput, Sectioned, current_cell, in_colab
from perfkit.results import Run, RunStore
from perfkit.studies.job import Job, PlanAnswer
from perfkit.studies.sources import Plan

STYLE = f"<style>{resources.files('perfkit.notebook').joinpath('panel.css').read_text('utf-8')}</style>"
_panels: "dict[str, weakref.WeakSet[Panel]]" = {}  # by the cells that have made them
Work = Callable[[Job], object]
Widgets = Sequence[widgets.Widget]
VIEW = "application/vnd.jupyter.widget-view+json"  # ipywidgets 7 has no method that gives it


class Panel(Sectioned):
    """Controls, Run and Stop, and results. A subclass says what is measured, and gives its own widgets."""

    plan: Plan  # what a job is asked for when it begins; later changes of the panel do not concern it
    job: Job | None = None  # the work that is under way, or was last
    answer: PlanAnswer  # what is shown, and what *Continue* adds to; while a job measures, what it has so far
    execution: str | None  # the run of a cell that has made it, if that is known

    @cached_property
    def store(self) -> RunStore:
        return RunStore()

    def __init__(
        self, plan: Plan, key: object, above: Widgets = (), buttons: Widgets = (), below: Widgets = ()
    ) -> None:
        self.plan = plan
        self.status = Status()
        self._begin_lock = threading.RLock()  # held while a job begins: of two clicks, one begins it
        result = text("pk-result")
        self._panel_output = CellOutput(result)
        self._output = self._panel_output  # that of the job that began last, perhaps below a cell
        run = self.button("Run", "Measure; other cells can run meanwhile", lambda: self.start(self._measure))
        run.button_style = "primary"
        self._stop = self.button("Stop", "Stop; what is finished is kept", self.stop)
        if in_colab():  # where no click arrives before the work has ended
            self._stop.layout.display = "none"
        tooltip = "Measure more rounds, because these leave it undecided"
        self._continue = self.button("Continue", tooltip, lambda: self.start(self._measure, self.answer))
        acts = row([run, self._stop, self._continue, *buttons, self.status.line])
        parts = [widgets.HTML(STYLE), *above, acts, self.status.error, *below, result]
        self.widget = widgets.VBox(parts, _dom_classes=["pk-panel"])
        inputs = [widget for widget in _tree(self.widget) if widget.has_trait("disabled")]
        self._inputs = [widget for widget in inputs if widget is not self._stop]
        self._set_answer(PlanAnswer(plan))
        self._set_busy(False)
        _replace_older(self, key)

    def _measure(self, job: Job) -> None:
        """Measures what the job's plan says, and shows the runs. Raises what went wrong."""
        raise NotImplementedError

    def run(self) -> None:
        """Measures, and shows the result below the cell that called.

        Raises:
            Stopped: it was stopped; what was finished is shown.
            PerfkitError: it failed; what was finished is shown.
            KeyboardInterrupt: the kernel's stop button was pressed, after every process has ended.
        """
        self.wait(self._measure)

    def stop(self) -> None:
        """Stops the work under way; finished runs are kept."""
        if self.job:
            self.job.stop()

    @property
    def is_busy(self) -> bool:
        return self.job is not None and not self.job.ended.is_set()

    def wait(self, work: Work) -> None:
        """Does work in a cell, after that under way: blocks, shows its results, raises what went wrong."""
        output = self._output_here()
        while not (job := self._begin(work, output)):
            if self.job:
                self.job.ended.wait()
        job.run()

    def start(self, work: Work, before: PlanAnswer | None = None) -> None:
        """Does work in a thread (in Colab, in the click), unless some is under way; `before`: see `Job`."""
        job = self._begin(work, self._panel_output, before)
        if job and in_colab():
            self.status.attempt(job.run)
        elif job:
            thread = threading.Thread(target=self.status.attempt, args=[job.run], daemon=True)
            try:
                thread.start()
            except BaseException:  # there are too many threads: the panel must not stay busy
                job.stop()
                raise

    def button(self, label: str, tooltip: str, act: Callable[[], object]) -> widgets.Button:
        """A button; tests and styles know it by the first word of its label: `pk-run`."""
        name = f"pk-{label.partition(' ')[0].lower()}"
        widget = widgets.Button(description=label, tooltip=tooltip, _dom_classes=[name])
        widget.on_click(lambda _: self.status.attempt(act))
        return widget

    def require_rest(self) -> None:
        """Refuses a change while work is under way, with an InvalidValue."""
        if self.is_busy:
            raise InvalidValue("this panel is busy", "Wait until it has finished, or press Stop")

    @property
    def runs(self) -> Sequence[Run]:
        return self.answer.runs

    def results(self) -> Sequence[Run]:
        """The runs that are shown; an InvalidValue if there are none."""
        if not self.runs:
            raise InvalidValue("no run is shown", "Press Run, call .run(), or tick runs of a workbench")
        return self.runs

    def _require_stored(self) -> None:
        """Raises a StoreError if something that was measured, and is shown, could not be stored."""
        lost = "; ".join(self.store.lost)
        self.store.lost.clear()
        if lost:
            raise StoreError(lost, "What was measured is shown above; it is not kept")

    def _set_answer(self, answer: PlanAnswer) -> None:
        """Makes this the current answer. *Continue* is shown only where more rounds can decide something."""
        self.answer = answer
        if answer.can_continue:
            self._continue.remove_class("pk-off")
        else:
            self._continue.add_class("pk-off")

    def _begin(self, work: Work, output: CellOutput, before: PlanAnswer | None = None) -> Job | None:
        """A job that may run now; None while another one is under way."""

        def act(job: Job) -> None:
            self._make_ready(output)
            work(job)

        with self._begin_lock:
            if self.is_busy:
                return None
            plan = self._plan_of_job(before)
            self.job = Job(act, plan, partial(self._observe, output), before)
            return self.job

    def _plan_of_job(self, before: PlanAnswer | None) -> Plan:
        """The plan of a new job, with its code as it is now; a job that continues another has the same."""
        if before is None:
            self._refresh()
        plan = self._planned_now()
        if before and plan.subject.code != before.plan.subject.code:
            what = f"the code of {plan.subject.workload} has changed since these rounds were measured"
            raise InvalidValue(what, "Press Run: it measures the code as it is now")
        return before.plan if before else plan

    def _refresh(self) -> None:
        """Brings the plan up to date before it is measured. It shows no result: the job will."""

    def _planned_now(self) -> Plan:
        return self.plan.fixed()

    def _make_ready(self, output: CellOutput) -> None:
        """Disables every input, and takes away the result next to the controls if there is another place.

        From now on results are shown in this output; one that is below another cell stays there.
        """
        self._output = output
        self._set_busy(True)
        self.status.show_problem(None)
        if in_colab():
            self.status.say("starting …; Runtime > Interrupt execution stops it")
        if output is not self._panel_output:
            self._panel_output.show(())

    def _observe(self, output: CellOutput, job: Job, run: Run | None) -> None:
        if run:  # it has just ended
            self._set_answer(replace(self.answer, runs=[*self.answer.runs, run]))
        if job.state == "running":
            self.status.follow(job.now)
            if output is not self._panel_output:
                output.line(job.now)
        elif job.state == "stopping":
            self.status.say("stopping …", job.now.fraction)
        else:
            try:
                self.show()
            finally:  # whatever goes wrong, the inputs are usable before it says the end
                with self._begin_lock:  # a click that comes meanwhile waits, and then begins a job
                    self._set_busy(False)
                    self.status.say(job.state, 1.0 if job.state == "done" else 0.0)
                    job.ended.set()

    def _set_busy(self, is_busy: bool) -> None:
        for widget in self._inputs:
            widget.disabled = is_busy
        self._stop.disabled = not is_busy

    def _output_here(self) -> CellOutput:
        """The output for a piece of work in a cell; a panel that no cell has displayed yet appears there."""
        if get_ipython() and not self._panel_output.cell:
            display(self)
        if self._panel_output.cell == current_cell():
            return self._panel_output
        output = CellOutput()
        output.move_here()
        return output

    def _ipython_display_(self) -> None:
        if self._panel_output.cell and self._panel_output.cell == current_cell():
            return  # `run` has displayed it in this cell already
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        display({VIEW: view, "text/plain": repr(self)}, raw=True)
        self._output = self._panel_output
        self._output.move_here()
        self.show()

    def show(self) -> None:
        self._output.show(self.sections())

    def close(self) -> None:
        """Stops the work under way, and takes the panel's widgets out of the kernel's memory."""
        self.stop()
        for widget in list(_tree(self.widget)):
            parts = [getattr(widget, name, None) for name in ("layout", "style")]
            for part in (widget, *parts):
                if part:
                    part.close()

    def __repr__(self) -> str:
        return "perfkit panel: run this cell for the controls, or call .run() to measure"


def _tree(widget: widgets.Widget) -> Iterator[widgets.Widget]:
    for child in getattr(widget, "children", ()):
        yield from _tree(child)
    yield widget


def _replace_older(panel: Panel, key: object) -> None:
    """Closes the panels that an earlier run of the same cell has made. Those of the same run stay.

    A cell without an id is known by its text and the key, of which the panel is made. Without a text, an
    older panel with the same key may be another cell's: it stays where it is, and only its work ends.
    """
    shell: Any = get_ipython()
    message = shell.get_parent() if hasattr(shell, "get_parent") else {}
    code = message.get("content", {}).get("code", "")
    cell = message.get("metadata", {}).get("cellId")
    name = cell or f"{type(panel).__name__} {key} {code}"
    panel.execution = message.get("header", {}).get("msg_id")
    panels = _panels.setdefault(name, weakref.WeakSet())
    older = [other for other in panels if other.execution != panel.execution or not panel.execution]
    panels.add(panel)
    for other in older:
        if cell or code:
            other.close()
        else:
            other.stop()
