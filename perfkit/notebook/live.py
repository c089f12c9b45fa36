"""What a run is doing just now: its phase, the newest steps of each trial, and what else the machine does."""

from __future__ import annotations

import collections
import html
from collections.abc import Sequence

from perfkit.results.pairing import DISTURBED
from perfkit.show import style, units
from perfkit.studies.plan import Pace, Progress

_PHASES = {
    "start": ("importing torch", "building", "first step", "first steps"),
    "warm-up": ("warm-up",),
    "rounds": ("settling", "measuring", "ceiling"),
}
_OTHER_STEPS = ("ceiling", "settling")
"""Phases whose steps are not those of a training."""
_KEPT = 120
"""Values of a sparkline."""
_WIDTH, _HEIGHT = 240, 28
"""Pixels of a sparkline."""


class Live:
    """What came in so far, as HTML; empty while nothing runs."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing runs."""
        self._phase = ""
        self._newest: Pace | None = None
        self._steps: dict[str, collections.deque[float]] = {}
        self._numbers: dict[str, str] = {}

    def follow(self, progress: Progress) -> None:
        """Takes what the study reports."""
        self._phase = progress.phase
        if (pace := progress.pace) and progress.phase not in _OTHER_STEPS:
            self._newest = pace
            self._steps.setdefault(pace.title, collections.deque(maxlen=_KEPT)).append(pace.step_s)
            rate = units.number(pace.samples_per_step / pace.step_s)
            self._numbers[pace.title] = f"<td>{units.duration(pace.step_s)}</td><td>{rate}</td>"

    def html(self) -> str:
        """The phase, a line for each trial, the machine."""
        shown = _phases(self._phase) + self._table() + _machine(self._newest)
        return f'<div class="pk-live">{shown}</div>' if self._phase else ""

    def _table(self) -> str:
        if not self._steps or not self._newest:
            return ""
        kept, _ = style.split_outliers(value for steps in self._steps.values() for value in steps)
        rows = "".join(
            f"<tr><th scope='row'>{'▸ ' * (title == self._newest.title)}{html.escape(title)}</th>"
            f"<td>{sparkline(steps, max(kept))}</td>{self._numbers[title]}</tr>"
            for title, steps in self._steps.items()
        )
        heads = "".join(f"<th scope='col'>{head}</th>" for head in ("run", "step times", "now", "samples/s"))
        return f"<table><tr>{heads}</tr>{rows}</table>"


def _phases(now: str) -> str:
    """Where the trial under way is."""
    names = [f"<b>▸ {name}</b>" if now in phases else name for name, phases in _PHASES.items()]
    return f"<p>{' · '.join(names)}</p>"


def _machine(pace: Pace | None) -> str:
    """What else the machine does, by the last block."""
    if pace is None or (pace.others is None and pace.gpu is None):
        return ""
    clauses = [] if pace.gpu is None else [f"GPU busy {units.percent(pace.gpu)} of the time"]
    if pace.others is not None:
        judged = "! disturbed" if pace.others > DISTURBED else "undisturbed"
        clauses.append(f"other programs took {units.percent(pace.others)} of the cores: {judged}")
    return f"<p>Last block: {'; '.join(clauses)}.</p>"


def sparkline(values: Sequence[float], top: float) -> str:
    """A line of values from 0 up to `top`, as inline SVG; a value above is a mark at the upper edge."""
    across = [_WIDTH * at / max(1, _KEPT - 1) for at in range(len(values))]
    up = [_HEIGHT - 2 - (_HEIGHT - 6) * min(1.0, value / top) for value in values]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))
    marks = "".join(
        f'<path d="M{x:.1f} 0l3 5h-6z" fill="{style.VERMILLION}"/>'
        for x, value in zip(across, values, strict=True)
        if value > top
    )
    alt = f"the last {len(values)}: {units.duration(min(values))} to {units.duration(max(values))}"
    return (
        f'<svg role="img" aria-label="{alt}" width="{_WIDTH}" height="{_HEIGHT}">'
        f'<polyline points="{points}" fill="none" stroke="{style.SKY}" stroke-width="2"/>{marks}</svg>'
    )
