"""Pieces of a panel: figures, tables, messages as HTML, and the one place a panel's work runs in.

Everything here sets widget traits only: no print, no display, no Output widget. A click may arrive in any
thread, depending on the version of ipykernel.
"""

from __future__ import annotations

import base64
import html
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
from IPython.display import HTML, Image

from perfkit.errors import PerfkitError
from perfkit.results.run import Run
from perfkit.show import figures as views
from perfkit.show import html as report
from perfkit.show import style
from perfkit.show import tables as table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """<style>
.pk-panel { border: 1px solid var(--jp-border-color2, #bbb); border-radius: 4px; padding: 8px 12px; }
.pk-panel, .pk-panel .widget-label, .pk-panel .widget-html-content { color: var(--jp-content-font-color1); }
.pk-panel table { border-collapse: collapse; font-size: 13px; line-height: 1.4; }
.pk-panel th, .pk-panel td { padding: 3px 9px; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--jp-border-color2, #ccc); white-space: normal; }
.pk-panel pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; line-height: 1.35; }
.pk-panel .pk-error p { border-left: 4px solid #d55e00; padding: 4px 10px; margin: 4px 0; }
.pk-panel ul { margin: 4px 0; padding-left: 20px; line-height: 1.45; }
.pk-panel svg { display: block; }
.pk-panel a { text-decoration: underline; }
.pk-large .widget-html-content, .pk-large .widget-label, .pk-large table { font-size: 19px !important; }
.pk-large button { font-size: 18px; height: auto; }
.pk-add { background: #0072b222; } .pk-cut { background: #d55e0022; }
</style>"""


def box(children: Sequence[widgets.Widget], *classes: str, **layout: str) -> widgets.VBox:
    """Things below each other."""
    return _styled(widgets.VBox(list(children)), classes, layout)


def row(children: Sequence[widgets.Widget], *classes: str, **layout: str) -> widgets.HBox:
    """Things beside each other, wrapping where there is no room."""
    return _styled(widgets.HBox(list(children)), classes, {"flex_flow": "row wrap", **layout})


def _styled(made: Any, classes: Sequence[str], layout: dict[str, str]) -> Any:
    for name in classes:
        made.add_class(name)
    for key, value in layout.items():
        setattr(made.layout, key, value)
    return made


def say(*classes: str, text: str = "") -> widgets.HTML:
    """An empty place for HTML."""
    return _styled(widgets.HTML(text), classes, {"margin": "2px 0"})


def button(text: str, name: str, tip: str, act: Callable[[], None], kind: str = "") -> widgets.Button:
    """A button; `name` is the CSS class that tests and styles know it by."""
    made = widgets.Button(description=text, tooltip=tip, button_style=kind)
    made.layout.width = "auto"
    made.add_class(name)
    made.on_click(lambda _: act())
    return made


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; every cell is text."""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_NARROW = (
    "stage",
    "samples/s",
    "× previous",
    "× baseline",
    "waits for data",
    "step time",
    "peak memory",
    "note",
)


def image(figure: Figure) -> Image:
    """A figure as a PNG, with its label as the text for those who do not see it."""
    return Image(data=style.to_png(figure), alt=figure.get_label())


def runs_table(runs: Sequence[Run]) -> str:
    """The results in the columns that fit beside a notebook's margin."""
    chosen = [table.COLUMNS.index(name) for name in _NARROW]
    return html_table(_NARROW, [[cells[at] for at in chosen] for cells in table.table(runs)])


def picture(view: str, runs: Sequence[Run], large: bool) -> str:
    """A view of runs as inline SVG, in the page's own ink."""
    return style.to_svg(views.figure(view, runs, large=large))


def notes(runs: Sequence[Run]) -> str:
    """Warnings and facts of the runs, folded; warnings are counted in the heading."""
    told = "".join(f"<li>{html.escape(text)}</li>" for text in report.notes(runs))
    count = len({warning for run in runs for warning in run.warnings})
    heading = f"{count} warning{'s' * (count != 1)}, and facts" if count else "Facts of these runs"
    return f"<details class='pk-notes'><summary>{heading}</summary><ul>{told}</ul></details>" if told else ""


def message(text: str) -> str:
    """One error or hint."""
    return f'<p role="alert">{html.escape(text)}</p>' if text else ""


def code_diff(text: str) -> str:
    """A unified diff, its lines marked by more than colour."""
    kinds = {"+": "pk-add", "-": "pk-cut"}
    lines = [
        f'<span class="{kinds.get(line[:1], "")}">{html.escape(line)}</span>' for line in text.splitlines()
    ]
    return f"<pre>{chr(10).join(lines)}</pre>"


def download(text: str, name: str, kind: str) -> str:
    """A link that saves a text as a file, with no server and no network."""
    data = base64.b64encode(text.encode()).decode()
    return f'<a class="pk-download" download="{name}" href="data:{kind};base64,{data}">Save {name}</a>'


class Outputs:
    """Results as ordinary outputs, which a reader without a kernel sees too."""

    def _measured(self) -> list[Run]:
        raise NotImplementedError

    def table(self) -> HTML:
        """The results, one row a stage."""
        return HTML(html_table(table.COLUMNS, table.table(self._measured())))

    def plot(self, view: str = "throughput", dark: bool = False, large: bool = False) -> Image:
        """One picture of the results, as a PNG with a text for those who do not see it.

        Raises:
            InvalidValue: no such view, or nothing was measured yet.
        """
        figure = views.figure(view, self._measured(), dark, large)
        return Image(data=style.to_png(figure), alt=views.describe(view, self._measured()))


class Job:
    """One piece of work at a time, in a thread of its own or in the caller's.

    Args:
        on_change: told whether it is busy, each time that changes.
    """

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self.cancelled = threading.Event()
        self._on_change = on_change
        self._lock = threading.Lock()
        self.thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether work is under way."""
        return self._lock.locked()

    def start(self, work: Callable[[], None], block: bool) -> bool:
        """Does the work; False where other work is under way (a second click)."""
        if not self._lock.acquire(blocking=False):
            return False
        self.cancelled.clear()

        def whole() -> None:
            try:
                self._on_change(True)
                work()
            finally:
                self._lock.release()
                self._on_change(False)

        if block:
            whole()
        else:
            self.thread = threading.Thread(target=whole, name="perfkit-run", daemon=True)
            self.thread.start()
        return True

    def cancel(self) -> None:
        """Ends the work soon; what is finished is kept."""
        self.cancelled.set()


_newest: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def replace_older(key: str, panel: Any) -> None:
    """A cell that is run again makes its panel anew: the older one's work ends."""
    older = _newest.get(key)
    if older is not None and older is not panel:
        older.cancel()
    _newest[key] = panel


class Status:
    """Progress and messages of a panel."""

    def __init__(self) -> None:
        self.bar = widgets.FloatProgress(min=0, max=1, layout={"width": "220px"})
        self.bar.add_class("pk-progress")
        self.text = say("pk-status")
        self.error = say("pk-error")
        self._started = 0.0
        self.said("ready")

    def said(self, text: str) -> None:
        """One line beside the bar."""
        self.text.value = f'<span role="status">{html.escape(text)}</span>'

    def begin(self) -> None:
        """A new piece of work."""
        self._started = time.monotonic()
        self.bar.value, self.error.value = 0.0, ""
        self.said("starting …")

    def progress(self, what: str, fraction: float) -> None:
        """Phase, share done, and about how long it will take yet."""
        spent = time.monotonic() - self._started
        left = f", about {_seconds(spent / fraction - spent)} left" if fraction > 0.08 and spent > 3 else ""
        self.bar.value = fraction
        self.said(f"{what}, {fraction:.0%} done{left}")

    def end(self, text: str, error: str = "") -> None:
        """Done, or why not."""
        self.bar.value = 0.0 if error else 1.0
        self.error.value = message(error)
        self.said(text)

    def widget(self) -> widgets.VBox:
        """The three, together."""
        return box([row([self.bar, self.text], align_items="center"), self.error])


def _seconds(value: float) -> str:
    return f"{value / 60:.0f} min" if value >= 90 else f"{value:.0f} s"


def in_words(problem: BaseException) -> str:
    """What a person can do about a problem; ours have it in them."""
    if isinstance(problem, PerfkitError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}. This is a fault of perfkit: please report it"
