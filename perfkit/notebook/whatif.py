"""What if: other workers, cores, device speed or link, predicted from the parts that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.notebook import layout
from perfkit.notebook.where import Choice, Option
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.search import predict as whatif
from perfkit.show import results, sentences, units
from perfkit.show.document import Notice, Table
from perfkit.show.html import fragment


class WhatIf(layout.Boxed):
    """Turn the knobs; the step's time follows, and which part is the bottleneck. Nothing runs.

    Args:
        runs: measured ones of one workload and machine, a run without workers among them.

    Raises:
        InvalidValue: they do not hold the parts that a prediction needs.
    """

    text = "perfkit what-if: run this cell for the controls"

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._knobs = layout.box([], "pk-grid", "pk-knobs")
        self._prediction = layout.html_slot("pk-whatif")
        self._source = Choice("Parts measured in", "pk-parts", self._choose)
        self._take(runs)
        self._show_source("")
        self._fill([self._source.widget, self._knobs, self._prediction])

    def _show_source(self, name: str) -> None:
        sources = {"": Option("these runs"), **{one: Option(one) for one in recordings.available()}}
        self._source.show(sources, name)

    def _choose(self, name: str) -> None:
        """The parts of a recording in the place of the runs; those that cannot be used say why."""
        try:
            self._take(recordings.played(recordings.find(name)) if name else self._runs)
        except PerfkitError as problem:
            self._prediction.value = layout.message(str(problem))
            self._show_source(self._source.value)
            return
        self._show_source(name)

    def _take(self, runs: Sequence[Run]) -> None:
        """Knobs for the parts of some runs."""
        model = whatif.fit(runs)
        measured = [
            run for run in results.stages(runs) if run.status == "ok" and whatif.predict(model, run.recipe)
        ]
        if not measured:
            raise InvalidValue(
                "these runs do not hold the parts of a prediction",
                "Measure the baseline (no workers) among them",
            )
        self.model = model
        self._notices = [Notice(text) for text in sentences.notices(runs)]
        self.score = whatif.score(self.model, measured, whatif.drift_corrected_rates(runs))
        self._by_title = {f"{run.title} (batch {run.recipe['batch_size']})": run for run in measured}
        titles, start = list(self._by_title), measured[-1].recipe
        self.recipe = layout.field(widgets.Dropdown, "Recipe of", options=titles, value=titles[-1])
        self.workers = _number(widgets.BoundedIntText, "Workers", int(start["workers"]), 0, 256)
        self.cores = _number(widgets.BoundedIntText, "Cores", self.model.cores, 1, 1024)
        self.batch = _number(widgets.BoundedIntText, "Batch size", int(start["batch_size"]), 1, 65536)
        self.speed = _number(widgets.BoundedFloatText, "Device speed, ×", 1.0, 0.01, 1000)
        self.link = _number(widgets.BoundedFloatText, "Link, GB/s (0: none)", 0.0, 0, 1000)
        knobs = [self.recipe, self.workers, self.cores, self.batch, self.speed, self.link]
        for knob in knobs:
            knob.observe(lambda _: self._draw(), "value")
        self._knobs.children = knobs
        self._draw()

    def predict(self, **changes: Any) -> whatif.Prediction | None:
        """The prediction as the knobs stand, with some switches of the recipe changed."""
        run = self._by_title[self.recipe.value]
        recipe = {**run.recipe, "workers": self.workers.value, "batch_size": self.batch.value, **changes}
        link = self.link.value * 1e9 or None
        return whatif.predict(self.model, recipe, self.cores.value, self.speed.value, link)

    def _draw(self) -> None:
        prediction, score = self.predict(), self.score
        if prediction is None:
            self._prediction.value = layout.message("a part of this recipe was never measured")
            return
        rows = [
            ["fetching a batch, one core", units.duration(prediction.fetch_s)],
            ["the copy", units.duration(prediction.copy_s) if prediction.copy_s else "nothing is copied"],
            ["computing", units.duration(prediction.compute_s)],
            ["the step", units.duration(prediction.step_s)],
            ["samples/s", f"{prediction.samples_per_s(self.batch.value):,.0f}"],
            ["the bottleneck", prediction.bottleneck],
        ]
        note = "" if score is None else (
            f"Scored against {score.count} measured runs: median error {score.median:.0%}, "
            f"90th percentile {score.p90:.0%}."
        )  # fmt: skip
        self._prediction.value = fragment(
            [*self._notices, Table(("of a step", "predicted"), rows, note=note)]
        )


def _number(kind: Any, label: str, value: float, low: float, high: float) -> Any:
    return layout.field(kind, label, value=value, min=low, max=high)
