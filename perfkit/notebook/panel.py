"""A stage, or a whole ladder, in a notebook: ask, predict, run, look.

One `run()` serves button and cell. In a cell it blocks, with progress, and the kernel's stop button ends it,
so a notebook also runs from top to bottom without a click; the Run button's work goes on in a thread, and
other cells run meanwhile. `table()`, `plot()` and the like give ordinary HTML and PNG outputs, which a reader
without a kernel sees too.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import HTML, Markdown, display

from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.machine import checkup, describe, facts
from perfkit.notebook import parts
from perfkit.results.parity import Check
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.show import figures, sentences
from perfkit.show import html as report
from perfkit.studies import engine

_VIEWS = ("throughput", "step_time", "memory", "losses", "utilization")


class LadderPanel(parts.Outputs):
    """A ladder of stages on a workload.

    Args:
        stages: optimizations in their order; the whole default ladder if None.
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        preset: `smoke`, `quick` or `paper`; what `PERFKIT_PRESET` says, or what suits the machine, if None.
        device: `cuda`, `mps` or `cpu`; the best there is if None.
        settings: switches set from the first stage on.
        options: the workload's constructor arguments.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    below = False

    def __init__(
        self,
        stages: Sequence[str] | None = None,
        workload: str | None = None,
        preset: str | None = None,
        device: str | None = None,
        settings: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        refuse_object(workload)
        self.plan = engine.plan(workload, preset, stages, settings, device, options, below=self.below)
        self.runs: list[Run] = []
        self.error = ""
        self._job = parts.Job(self._busy)
        self._status = parts.Status()
        self._run = parts.button(
            "Run", "pk-run", "Measure; other cells can run meanwhile", self._click, "primary"
        )
        self._cancel = parts.button("Cancel", "pk-cancel", "Stop; what is finished is kept", self.cancel)
        self._cancel.disabled = True
        self._large = widgets.Checkbox(description="Large type", indent=False, layout={"width": "auto"})
        self._large.observe(lambda _: self._draw(), "value")
        self._results = parts.say("pk-results")
        self._plots = [parts.say("pk-plot") for _ in _VIEWS]
        self._report = parts.say("pk-report")
        self.box = parts.box(
            [widgets.HTML(parts.STYLE), *self._top(), parts.row(self._buttons()), self._status.widget(),
             self._results, *self._plots, self._report], "pk-panel",
        )  # fmt: skip
        parts.replace_older(self._key(), self)
        self._recall()

    def _key(self) -> str:
        return f"{type(self).__name__} {self.plan.workload} {self.plan.stages}"

    def _top(self) -> list[widgets.Widget]:
        """What stands above the buttons."""
        return []

    def _buttons(self) -> list[widgets.Widget]:
        return [self._run, self._cancel, self._large]

    def _names(self) -> list[str]:
        """Of the stages, as stored runs have them."""
        return list(dict.fromkeys(["baseline", *self.plan.stages]))

    def __repr__(self) -> str:
        return "perfkit panel: run this cell for the controls, or call .run() to measure"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        self._shown()
        bundle: dict[str, Any] = self.box._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": repr(self)}

    def _shown(self) -> None:
        """Called when the panel comes into view."""

    def _recall(self) -> None:
        """Shows the newest stored results of the same stages, if there are any."""
        try:
            newest = RunStore().list(limit=60, workload=self.plan.workload)
        except PerfkitError:
            return
        names = self._names()
        for session in dict.fromkeys(run.session for run in newest):
            found = [run for run in reversed(list(newest)) if run.session == session]
            first, same = found[0], self.plan
            if [run.stage for run in found] == names and (first.preset, first.device) == (
                same.preset.name, same.device,
            ):  # fmt: skip
                self.runs = found
                self._draw()
                self._status.said(f"results of {first.created[:16].replace('T', ' ')} UTC; Run measures anew")
                return

    # ------------------------------------------------------------ measuring

    def run(self, block: bool = True) -> None:
        """Measures. What goes wrong is shown as one message; the notebook stays usable.

        Args:
            block: wait for the end, with progress in this cell; the kernel's stop button ends it.
        """
        line = Line() if block else None
        if not self._job.start(lambda: self._measure(line), block) and line:
            line.end("this panel is measuring already; wait for it, or cancel it")

    def cancel(self) -> None:
        """Ends what is under way; finished stages are kept."""
        self._job.cancel()

    def _click(self) -> None:
        self.run(block=False)

    def _busy(self, busy: bool) -> None:
        self._run.disabled, self._cancel.disabled = busy, not busy

    def _measure(self, line: Line | None) -> None:
        self.runs, self.error, finished = [], "", []
        self._status.begin()

        def show(progress: engine.Progress) -> None:
            if progress.run:
                finished.append(progress.run)
                self.runs = list(finished)
                self._draw()
            what = f"{progress.stage}: {progress.phase}".removeprefix(": ")
            self._status.progress(what, progress.fraction)
            if line:
                line.progress(what, progress.fraction)

        try:
            self.runs = engine.climb(self.plan, RunStore(), show, self._job.cancelled)
            self._prove()
        except (KeyboardInterrupt, Cancelled):
            self.error = "stopped; what was finished is kept"
        except PerfkitError as problem:
            self.error = str(problem)
        except Exception as problem:  # a thread has nobody to raise it to: it is shown in the panel
            self.error = parts.in_words(problem)
        told = [f"{run.title} {run.status}: {run.reason}" for run in self.runs if run.status == "failed"]
        stopped = any(run.status == "cancelled" for run in self.runs)
        self.error = (
            self.error or "; ".join(told) or ("stopped; what was finished is kept" if stopped else "")
        )
        self._draw()
        self._status.end("stopped" if self.error else "done", self.error)
        if line:
            line.end(self.error)

    def _prove(self) -> None:
        """After measuring: whether what was measured still trains the same."""

    def _draw(self) -> None:
        """Shows `runs`; quick, and from any thread."""
        large = self._large.value
        (self.box.add_class if large else self.box.remove_class)("pk-large")
        measured = [run for run in self.runs if run.status == "ok"]
        self._results.value = self._said() if self.runs else ""
        for place, view in zip(self._plots, _VIEWS, strict=True):
            drawn = measured and not figures.VIEWS[view].nothing(measured)
            place.value = parts.picture(view, self.runs, large) if drawn else ""
        self._report.value = (
            parts.download(report.html(self.runs), "perfkit-report.html", "text/html") if measured else ""
        )

    def _said(self) -> str:
        said = "".join(f"<li>{html.escape(text)}</li>" for text in self._sentences())
        return f"{parts.runs_table(self.runs)}<ul class='pk-verdict'>{said}</ul>{parts.notes(self.runs)}"

    def _sentences(self) -> list[str]:
        told = report.sentences(self.runs)
        return told[1:] or told

    # ------------------------------------------------------------ ordinary outputs

    def verdict(self) -> Markdown:
        """Did it help here, and why: computed from the results."""
        self._measured()
        return Markdown("\n".join(f"- {text}" for text in self._sentences()))

    def proof(self) -> HTML:
        """What proves that each switch of the last stage acts, and that it still trains the same."""
        run = self._measured()[-1]
        if run.status != "ok":
            return HTML(f"<p>Nothing to prove: {html.escape(sentences.outcome(run))}</p>")
        rows = [[m.switch, "yes" if m.ok else "NO", m.evidence] for m in run.mechanism]
        rows += [[check.name, "yes" if check.ok else "NO", check.evidence] for check in self._checks()]
        return HTML(parts.html_table(("switch", "as set", "proven by"), rows))

    def _checks(self) -> list[Check]:
        return []

    def _measured(self) -> list[Run]:
        if not self.runs:
            raise InvalidValue("nothing was measured yet", "Run the cell with .run() first")
        return self.runs


def refuse_object(workload: Any) -> None:
    """A class defined in a cell cannot reach the measuring process, nor its loader workers."""
    if workload is not None and not isinstance(workload, str):
        name = getattr(workload, "__name__", type(workload).__name__)
        raise InvalidValue(
            f"the workload is an object, {name}, not a name",
            "Other processes build it, so it must stand in a module: begin its cell with "
            f"`%%writefile my_training.py`, then give workload='my_training:{name}'",
        )


def machine() -> Markdown:
    """This machine in one line, and what of the workbook will be real on it."""
    return Markdown(html.escape(describe(facts())))


def doctor() -> HTML:
    """The machine check, as a table."""
    rows = [[check.status, check.name, check.detail, check.remedy] for check in checkup()]
    return HTML(parts.html_table(("", "what", "found", "what to do"), rows))


class Line:
    """One line of progress that is replaced in place, in a cell or in a terminal."""

    def __init__(self) -> None:
        self._shown = ""
        self._handle = display(Markdown("starting …"), display_id=True) if get_ipython() else None

    def progress(self, what: str, fraction: float) -> None:
        """Shows a step of progress."""
        done = round(20 * fraction)
        self._show(f"`{'█' * done}{'░' * (20 - done)}` {what}")

    def end(self, error: str) -> None:
        """Leaves the error, or a word that it is done."""
        self._show(f"**{html.escape(error)}**" if error else "done", "\n")

    def _show(self, text: str, end: str = "") -> None:
        if text == self._shown:
            return
        self._shown = text
        if self._handle:
            self._handle.update(Markdown(text))
        else:
            sys.stderr.write(f"\r{text:<78}{end}")
