"""Attribution and tuning in a notebook: what each optimization is worth, and which recipe is the fastest."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from IPython.display import HTML, Image, Markdown

from perfkit.notebook import layout
from perfkit.notebook.job import Line
from perfkit.program.recipe import Value
from perfkit.results.attribution import Attribution
from perfkit.results.tuning import Tuned
from perfkit.show import attribution, pareto
from perfkit.studies import attribute as attributing
from perfkit.studies import engine
from perfkit.studies import tune as tuning


class Worth:
    """What was found; `table()`, `plot()` and `words()` show it."""

    def __init__(self, found: Attribution) -> None:
        self.found = found

    def table(self) -> HTML:
        """One row an optimization."""
        return HTML(layout.html_table(attribution.COLUMNS, attribution.table(self.found.effects)))

    def interactions(self) -> HTML:
        """Pairs that give more, or less, together than the product of each alone."""
        rows = [[pair.a, pair.b, f"{pair.factor:.2f}×"] for pair in self.found.interactions]
        return HTML(layout.html_table(("one", "other", "together / product of each alone"), rows))

    def plot(self, dark: bool = False) -> Image:
        """The picture."""
        return layout.image(attribution.figure(self.found.effects, dark))

    def words(self) -> Markdown:
        """In words, the largest first."""
        more = [] if self.found.complete else ["The budget was spent: run the cell again to go on from here"]
        return Markdown("\n".join(f"- {text}" for text in [*self.found.sentences(), *more]))


def attribute(names: Sequence[str] | None = None, minutes: float = 10.0, **where: Any) -> Worth:
    """Measures what each optimization is worth; the stop button ends it, and what was measured is kept.

    Args:
        names: optimizations; those of the default ladder that can act here if None.
        minutes: of measuring.
        where: `workload`, `preset`, `device`, `options` as for the panels.

    Raises:
        PerfkitError: a name that is not allowed, or nothing could be measured.
    """
    line, stop = Line(), threading.Event()
    plan = engine.plan(stages=["baseline"], **where)
    found = attributing.attribute(
        plan, names, 60 * minutes, cancelled=stop,
        on_progress=lambda p: line.progress(f"{p.stage}: {p.phase}", p.fraction),
    )  # fmt: skip
    line.end("")
    return Worth(found)


class Search:
    """What a search has found; `table()`, `plot()` and `words()` show it."""

    def __init__(self, found: Tuned) -> None:
        self.found = found

    def table(self) -> HTML:
        """One row a measured recipe, the fastest first."""
        rows = pareto.table(self.found.tried, self.found.pareto(), self.found.best)
        return HTML(layout.html_table(pareto.COLUMNS, rows))

    def plot(self, dark: bool = False) -> Image:
        """Speed against memory."""
        found = self.found
        return layout.image(pareto.figure(found.tried, found.pareto(), found.best, found.cap_bytes, dark))

    def words(self) -> Markdown:
        """What was picked, whether it trains the same, and how well the model predicted."""
        return Markdown("\n".join(f"- {text}" for text in self.found.sentences()))


def tune(
    space: Mapping[str, Sequence[Value]] | None = None, minutes: float = 10.0, memory_gb: float | None = None,
    **where: Any,
) -> Search:  # fmt: skip
    """Finds the fastest recipe of a space; the stop button ends it, and what was measured is kept.

    Args:
        space: values by switch; the usual ones if None.
        minutes: of measuring.
        memory_gb: a cap; recipes above it are not picked.
        where: `workload`, `preset`, `device`, `options` as for the panels.

    Raises:
        PerfkitError: a switch or value that is not allowed, or nothing could be measured.
    """
    line = Line()
    plan = engine.plan(stages=["baseline"], **where)
    cap = int(memory_gb * 1e9) if memory_gb else None
    found = tuning.tune(
        plan, space, cap, 60 * minutes, lambda p: line.progress(f"{p.stage}: {p.phase}", p.fraction)
    )
    line.end("")
    return Search(found)
