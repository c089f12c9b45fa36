"""What becomes of ticked runs: a script, a report, a recording, a spreadsheet; each a link that saves it."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perfkit.notebook.history import RunHistory
from perfkit.notebook.layout import download, report_link
from perfkit.results.recordings import recording_text
from perfkit.results.run import Run
from perfkit.show.html import session
from perfkit.studies import plan as plans

_COPY = (
    '<button class="pk-copy jupyter-button" onclick="navigator.clipboard.writeText('
    "this.closest('.pk-script').querySelector('pre').innerText); this.innerText = 'Copied'\">Copy</button>"
)
Ticked = Callable[[], Sequence[Run]]
"""The ticked runs, oldest first. Raises an InvalidValue where none is."""


class Export(NamedTuple):
    """A button."""

    text: str
    name: str
    """The CSS class that tests and styles know it by."""
    tooltip: str
    make: Callable[[Ticked, RunHistory], str]
    """Returns HTML. Raises a PerfkitError where there can be none."""


def _script(ticked: Ticked, history: RunHistory) -> str:
    (text,) = plans.scripts(ticked()[-1:]).values()
    save = download(text, "train.py", "text/x-python")
    return f"<p>{save} {_COPY}</p><pre tabindex='0'>{html.escape(text)}</pre>"


def _report(ticked: Ticked, history: RunHistory) -> str:
    runs = ticked()
    return f"<p>{report_link(session(runs, plans.scripts(runs)))}</p>"


def _recording(ticked: Ticked, history: RunHistory) -> str:
    save = download(recording_text(ticked()).decode(), "perfkit-runs.json", "application/json")
    return f"<p>{save} To open it: <code>perfkit show perfkit-runs.json</code></p>"


EXPORTS = (
    Export("Script", "pk-export", "The standalone script of the newest ticked run", _script),
    Export("Report", "pk-make-report", "One HTML file of the ticked runs", _report),
    Export("Share", "pk-share", "The ticked runs as a recording, which perfkit opens elsewhere", _recording),
)
