"""What every panel has: controls, Run and Stop, one bar with one line of words, one place for its results.

One kind of work serves button and cell. In a cell it blocks, raises what went wrong, and ends with the
kernel's stop button, which then also ends "Run All". From a button it runs in a thread, and the panel says
what goes wrong. A click may arrive in any thread: all pieces set widget traits only.
"""

import base64
import functools
import html
import threading
import time
import traceback
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import display

from perfkit.errors import InvalidValue, PerfkitError, Stopped
from perfkit.notebook.shown import Output, Sectioned, current_cell, in_colab
from perfkit.recipe import Recipe, Switch, Value, switches
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.rules import joined
from perfkit.show import units
from perfkit.studies.job import Job
from perfkit.studies.sources import Plan, Update

_STYLE = f"<style>{resources.files('perfkit.notebook').joinpath('panel.css').read_text('utf-8')}</style>"
_newest: "weakref.WeakValueDictionary[str, Panel]" = weakref.WeakValueDictionary()


# `navigator.clipboard` is missing on pages that come over plain http from another machine.
_COPY = (
    "const pre = this.parentElement.querySelector('pre'), range = document.createRange();"
    "range.selectNodeContents(pre); const all = getSelection(); all.removeAllRanges(); all.addRange(range);"
    "this.textContent = document.execCommand('copy') ? 'Copied' : 'Press Ctrl+C'"
)

VIEW = "application/vnd.jupyter.widget-view+json"  # ipywidgets 7 has no method that gives it
# Controls of ipywidgets 7, which Colab has, call their tooltip this.
TOOLTIP = "tooltip" if hasattr(widgets.Checkbox, "tooltip") else "description_tooltip"

# ---------------------------------------------------------------- pieces


def row(children: Sequence[widgets.Widget], *classes: str) -> widgets.HBox:
    """Widgets next to each other, wrapping where there is no room."""
    return widgets.HBox(children, _dom_classes=classes)


def text(style: str, value: str = "") -> widgets.HTML:
    """A piece of HTML; hidden while it is empty."""
    return widgets.HTML(value, _dom_classes=[style])


def heading(words: str) -> widgets.HTML:
    """What a panel is about, at its top."""
    return text("pk-question", f"<h3>{html.escape(words)}</h3>")


def download(content: str, name: str) -> str:
    """A link that saves a text as a file, with no server and no network."""
    data = base64.b64encode(content.encode()).decode()
    return f'<a class="pk-download" download="{name}" href="data:;base64,{data}">Save {name}</a>'


def preformatted(content: str) -> str:
    """A text as it is, with a button that copies it."""
    return f'<div><button onclick="{_COPY}">Copy</button><pre tabindex="0">{html.escape(content)}</pre></div>'


def _message(words: str) -> str:
    return f'<p role="alert">{html.escape(words)}</p>' if words else ""


class Controls:
    """One control for each switch; changed ones are bold, and those that cannot act are in one fold.

    Controls are made once and hidden, never made again, so that the keyboard keeps its place.

    Args:
        names: the switches to show; the others keep the values of `base`.
        on_change: called after a change by hand or by `set`.
    """

    def __init__(self, names: Iterable[str], on_change: Callable[[], None] = lambda: None) -> None:
        self.recipe = self.base = Recipe()
        self.reasons: dict[str, str] = {}
        """Why a switch cannot act here, for each that is not offered."""
        self._why_not: Callable[[str, Recipe], str] = lambda name, recipe: ""
        self._on_change = on_change
        self.by_name = {name: _control(switches()[name]) for name in names}
        for name, control in self.by_name.items():
            control.observe(functools.partial(self._changed, name), "value")
        self._fold = text("pk-n-a")
        grid = widgets.VBox([*self.by_name.values()], _dom_classes=["pk-grid"])
        self.widget = widgets.VBox([grid, self._fold])
        self.show(self.recipe)

    def set(self, settings: Mapping[str, Value]) -> None:
        """Sets switches by name, as a hand does."""
        if unknown := set(settings) - set(self.by_name):
            raise InvalidValue(f"'{unknown.pop()}' cannot be set here", f"Allowed: {', '.join(self.by_name)}")
        self.show(self.recipe.replace(**settings))
        self._on_change()

    def show(self, recipe: Recipe) -> None:
        """Sets every control, and decides what is offered: what is changed can always be put back."""
        self.recipe = recipe
        changed = self.changes()
        reasons = {name: self._reason(switches()[name]) for name in self.by_name if name not in changed}
        self.reasons = {name: reason for name, reason in reasons.items() if reason}
        for name, control in self.by_name.items():
            style = ["pk-changed"] if name in changed else ["pk-off"] if name in self.reasons else []
            control.value = getattr(recipe, name)
            control._dom_classes = ["pk-switch", f"pk-switch-{name}", *style]
        stuck = {name: reason for name in changed if (reason := self._why_not(name, recipe))}
        self._fold.value = _message(joined(stuck)) + self._refused()

    def offer(self, base: Recipe, why_not: Callable[[str, Recipe], str]) -> None:
        """Another recipe to compare with, and another place; what was changed by hand stays changed.

        Args:
            base: where nothing is changed.
            why_not: why a switch cannot have a recipe's value there; empty where it can.
        """
        changes, self.base, self._why_not = self.changes(), base, why_not
        self.show(base.replace(**changes))

    def changes(self) -> dict[str, Value]:
        """The shown switches that differ from the base."""
        return {name: here for name, (here, _) in self.recipe.diff(self.base).items()}

    def _changed(self, name: str, change: Any) -> None:
        if change["new"] == getattr(self.recipe, name):
            return  # by `show`, not by hand
        control = self.by_name[name]
        if control.disabled:  # while a job runs, nothing changes
            control.value = getattr(self.recipe, name)
        else:
            self.set({name: change["new"]})

    def _reason(self, switch: Switch) -> str:
        """Why no value of a switch but its present one can act; empty where one can."""
        others = [level for level in switch.levels if level != getattr(self.base, switch.name)]
        reasons = [self._why_not(switch.name, self.recipe.replace(**{switch.name: one})) for one in others]
        return reasons[-1] if all(reasons) else ""

    def _refused(self) -> str:
        items = [
            f"<li><b>{html.escape(switches()[name].label)}</b>: {html.escape(reason)}</li>"
            for name, reason in self.reasons.items()
        ]
        title = f"{units.plural(len(items), 'switch', 'switches')} cannot act here"
        return f"<details><summary>{title}</summary><ul>{''.join(items)}</ul></details>" if items else ""


def _control(switch: Switch) -> Any:
    traits: dict[str, Any] = {"value": switch.default, "description": switch.label, TOOLTIP: switch.help}
    if switch.kind is bool:
        return widgets.Checkbox(indent=False, **traits)
    if switch.kind is int:
        return widgets.BoundedIntText(min=switch.low, max=switch.high, **traits)
    return widgets.Dropdown(options=list(switch.choices), **traits)


# ---------------------------------------------------------------- the panel


class Panel(Sectioned):
    """Controls, Run and Stop, and results. A subclass sets its widgets, and says what is measured.

    Args:
        key: what the panel is made of. A cell that is run again makes a new panel with the same key: the work
            of the older one ends.
    """

    above: Sequence[widgets.Widget] = ()
    buttons: Sequence[widgets.Widget] = ()
    """Of other work."""
    below: Sequence[widgets.Widget] = ()
    plan: Plan
    """What a job is asked for when it begins; later changes of the panel do not concern it."""
    job: Job | None = None
    """The work that is under way, or was last."""

    @functools.cached_property
    def store(self) -> RunStore:
        """Where this panel reads and writes what it measures."""
        return RunStore()

    def __init__(self, key: object) -> None:
        self._runs: Sequence[Run] = ()
        self.line, self.error = text("pk-status"), text("pk-error")
        self.say("ready")
        self._turn = threading.Lock()
        """Held while a job begins: of two clicks, one begins it."""
        result = text("pk-result")
        self._output = self._beside = Output(result)
        """Where the newest result is: with the controls, or below the cell that called `run`."""
        run = self.button("Run", "Measure; other cells can run meanwhile", lambda: self.start(self._measure))
        run.button_style = "primary"
        self._stop = self.button("Stop", "Stop; what is finished is kept", self.stop)
        if in_colab():  # where no click arrives before the work has ended
            self._stop.layout.display = "none"
        more = "Measure further rounds, because these do not decide it"
        self._more = self.button("Continue", more, lambda: self.start(self._measure, self.job))
        acts = row([run, self._stop, self._more, *self.buttons, self.line])
        everything = [widgets.HTML(_STYLE), *self.above, acts, self.error, *self.below, result]
        self.widget = widgets.VBox(everything, _dom_classes=["pk-panel"])
        usable = [widget for widget in _tree(self.widget) if widget.has_trait("disabled")]
        self._inputs = [widget for widget in usable if widget is not self._stop]
        self._rest()
        _replace_older(self, key)

    @abstractmethod
    def _measure(self, job: Job) -> None:
        """Measures what the job's request says, and shows the runs. Raises what went wrong."""

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
        """Whether a job is under way."""
        return self.job is not None and not self.job.ended.is_set()

    def wait(self, work: Callable[[Job], object]) -> None:
        """Does work in a cell, after that under way: blocks, shows its results, raises what went wrong."""
        output = self._place()
        while not (job := self._begin(work, output)):
            if self.job:
                self.job.ended.wait()
        job.run()

    def start(self, work: Callable[[Job], object], before: Job | None = None) -> None:
        """Does work in a thread, unless some is under way; the panel says what goes wrong.

        In Colab the click itself does the work, and Runtime > Interrupt execution stops it.

        Args:
            work: what to do.
            before: the job that it continues.
        """
        job = self._begin(work, self._beside, before)
        if job and in_colab():
            self.attempt(job.run)
        elif job:
            threading.Thread(target=self.attempt, args=[job.run], name="perfkit-run", daemon=True).start()

    def say(self, words: str, fraction: float = 0.0) -> None:
        """Shows the part of the work that is done, and a line of words with it."""
        bar = f'<progress value="{fraction:.3f}" aria-label="Progress"></progress>'
        # One value, as each that changes is a message, and a frame that the browser draws.
        self.line.value = f'{bar} <span role="status">{html.escape(words)}</span>'

    def tell(self, problem: BaseException | None) -> None:
        """What went wrong; an error that nobody expected keeps its traceback, folded. None removes it."""
        words, details = str(problem or ""), ""
        if isinstance(problem, KeyboardInterrupt):
            words = str(Stopped())
        elif problem and not isinstance(problem, PerfkitError):
            words = f"{type(problem).__name__}: {problem}. This is a fault of perfkit: please report it"
            lines = preformatted("".join(traceback.format_exception(problem)))
            details = f"<details><summary>Traceback</summary>{lines}</details>"
        self.error.value = _message(words) + details

    def attempt(self, act: Callable[[], object]) -> None:
        """Does what a person asks for; the panel says what goes wrong."""
        self.tell(None)
        try:
            act()
        except (Exception, KeyboardInterrupt) as problem:
            self.tell(problem)

    def button(self, label: str, tooltip: str, act: Callable[[], object]) -> widgets.Button:
        """A button; tests and styles know it by the first word of its label: `pk-run`."""
        name = f"pk-{label.partition(' ')[0].lower()}"
        widget = widgets.Button(description=label, tooltip=tooltip, _dom_classes=[name])
        widget.on_click(lambda _: self.attempt(act))
        return widget

    def require_rest(self) -> None:
        """Refuses a change while work is under way, with an InvalidValue."""
        if self.is_busy:
            raise InvalidValue("this panel is at work", "Wait for its end, or press Stop")

    @property
    def runs(self) -> Sequence[Run]:
        """The runs that are shown."""
        return self._runs

    def results(self) -> Sequence[Run]:
        """The runs that are shown; an InvalidValue if there are none."""
        if not self.runs:
            raise InvalidValue("no run is shown", "Press Run, call .run(), or tick runs of a workbench")
        return self.runs

    def _show_runs(self, runs: Sequence[Run]) -> None:
        """From now on, these are the runs that are shown."""
        self._runs = runs

    def _begin(self, work: Callable[[Job], object], output: Output, before: Job | None = None) -> Job | None:
        """A job that may run now; None while another one is under way."""

        def act(job: Job) -> None:
            self._make_ready(output)
            work(job)

        with self._turn:
            if self.is_busy:
                return None
            self.job = Job(act, before.request if before else self.plan, self._observe, before)
            return self.job

    def _make_ready(self, output: Output) -> None:
        """Disables every input, and chooses the place of the result."""
        for widget in self._inputs:
            widget.disabled = True
        self._stop.disabled = False
        self._started = time.monotonic()
        self.tell(None)
        if in_colab():
            self.say("starting …; Runtime > Interrupt execution stops it")
        if output is not self._beside:
            self._beside.show(())
        self._output = output

    def _observe(self, job: Job, run: Run | None) -> None:
        """Shows what has changed of the job."""
        if run:
            self._show_runs([*self.runs, run])
        if job.state == "running":
            self._show_progress(job.now)
        elif job.state == "stopping":
            self.say("stopping …", job.now.fraction)
        else:
            self._show_end(job)

    def _show_progress(self, now: Update) -> None:
        """How far a study is, and roughly how long the rest takes."""
        left = ""
        if now.fraction > 0.08:
            left = _about_left(time.monotonic() - self._started, now.fraction)
        self.say(f"{now.describe()}, {now.fraction:.0%}{left}", now.fraction)
        if self._output is not self._beside:
            self._output.line(now)

    def _show_end(self, job: Job) -> None:
        """The result and how the job ended; the inputs work again, whatever goes wrong while it is drawn."""
        try:
            self.show()
        finally:
            self.say(job.state, 1.0 if job.state == "done" else 0.0)
            self._rest()
        if job.can_continue():
            self._more.remove_class("pk-off")

    def _rest(self) -> None:
        """Enables every input. *Continue* is there only where it can decide something."""
        for widget in self._inputs:
            widget.disabled = False
        self._stop.disabled = True
        self._more.add_class("pk-off")

    def _place(self) -> Output:
        """The output for a piece of work in a cell; a panel that no cell has displayed yet appears there."""
        if get_ipython() and not self._beside.cell:
            display(self)
        if self._beside.cell == current_cell():
            return self._beside
        output = Output()
        output.place()
        return output

    def _ipython_display_(self) -> None:
        if self._beside.cell and self._beside.cell == current_cell():
            return  # `run` has displayed it in this cell already
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        display({VIEW: view, "text/plain": repr(self)}, raw=True)
        self._output = self._beside
        self._output.place()
        self.show()

    def show(self) -> None:
        """Shows the results as they are now, in the place of the newest."""
        self._output.show(self.sections())

    def close(self) -> None:
        """Stops the work under way, and takes the panel's widgets out of the kernel's memory."""
        self.stop()
        for widget in [*_tree(self.widget)]:
            parts = [getattr(widget, name, None) for name in ("layout", "style")]
            for one in (widget, *parts):
                if one:
                    one.close()

    def __repr__(self) -> str:
        return "perfkit panel: run this cell for the controls, or call .run() to measure"


def _tree(widget: widgets.Widget) -> Iterator[widgets.Widget]:
    """A widget and all that are in it."""
    for child in getattr(widget, "children", ()):
        yield from _tree(child)
    yield widget


def _about_left(spent_s: float, fraction: float) -> str:
    """Roughly how long the rest takes, if that can be said."""
    left_s = spent_s / fraction - spent_s
    if spent_s <= 3 or left_s < 0.5:
        return ""
    if left_s >= 90:
        return f", about {left_s / 60:.0f} min left"
    return f", about {left_s:.0f} s left"


def _replace_older(panel: Panel, key: object) -> None:
    """Stops the panel that was made of the same by an earlier run of the same cell; it is closed as well.

    Without a cell's id, the older panel may be another cell's, and stays where it is.
    """
    shell: Any = get_ipython()
    message = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell = message.get("metadata", {}).get("cellId", "")
    name = f"{type(panel).__name__} {key} {cell}"
    older, _newest[name] = _newest.get(name), panel
    if older and cell:
        older.close()
    elif older:
        older.stop()
