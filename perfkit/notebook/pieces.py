"""Pieces that panels are made of. A click may arrive in any thread: all of them set widget traits only."""

import html
import traceback
from collections.abc import Callable, Sequence

import ipywidgets as widgets

from perfkit.errors import PerfkitError, in_words
from perfkit.studies.job import Stopped
from perfkit.studies.sources import Update

# `navigator.clipboard` is missing on pages that come over plain http from another machine.
_COPY = (
    "const pre = this.parentElement.querySelector('pre'), range = document.createRange();"
    "range.selectNodeContents(pre); const all = getSelection(); all.removeAllRanges(); all.addRange(range);"
    "this.textContent = document.execCommand('copy') ? 'Copied' : 'Press Ctrl+C'"
)


def row(children: Sequence[widgets.Widget], *classes: str) -> widgets.HBox:
    """Widgets next to each other, wrapping where there is no room."""
    return widgets.HBox(children, _dom_classes=classes)


def text(style: str, value: str = "") -> widgets.HTML:
    """A piece of HTML; hidden while it is empty."""
    return widgets.HTML(value, _dom_classes=[style])


def heading(words: str) -> widgets.HTML:
    """What a panel is about, at its top."""
    return text("pk-question", f"<h3>{html.escape(words)}</h3>")


def preformatted(content: str) -> str:
    """A text as it is, with a button that copies it."""
    return f'<div><button onclick="{_COPY}">Copy</button><pre tabindex="0">{html.escape(content)}</pre></div>'


def alert(words: str) -> str:
    """What a screen reader says at once; empty without words."""
    return f'<p role="alert">{html.escape(words)}</p>' if words else ""


class Status:
    """One bar with one line of words, and below it what went wrong."""

    def __init__(self) -> None:
        self.line = text("pk-status")
        self.error = text("pk-error")
        self.say("ready")

    def say(self, words: str, fraction: float = 0.0) -> None:
        bar = f'<progress value="{fraction:.3f}" aria-label="Progress"></progress>'
        # One value: each further one would be another message, and another frame for the browser to draw.
        self.line.value = f'{bar} <span role="status">{html.escape(words)}</span>'

    def show_problem(self, problem: BaseException | None) -> None:
        """Shows what went wrong; an unexpected error keeps its traceback, folded. None removes it."""
        if isinstance(problem, OSError):
            problem = in_words(problem) or problem
        words = str(problem or "")
        details = ""
        if isinstance(problem, KeyboardInterrupt):
            words = str(Stopped())
        elif problem and not isinstance(problem, PerfkitError):
            words = f"{type(problem).__name__}: {problem}. This is a bug in perfkit: please report it"
            lines = preformatted("".join(traceback.format_exception(problem)))
            details = f"<details><summary>Traceback</summary>{lines}</details>"
        self.error.value = alert(words) + details

    def follow(self, now: Update) -> None:
        self.say(f"{now.describe()}, {now.fraction:.0%}", now.fraction)

    def attempt(self, act: Callable[[], object]) -> None:
        self.show_problem(None)
        try:
            act()
        except (Exception, KeyboardInterrupt) as problem:
            self.show_problem(problem)
