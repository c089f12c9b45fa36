"""From a diagnosis to a switch: one button sets what a bottleneck suggests, the prediction beside it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import ipywidgets as widgets

from perfkit.notebook import layout
from perfkit.notebook.controls import Controls
from perfkit.recipe import Recipe, spoken, switches
from perfkit.results.run import Run
from perfkit.search import predict
from perfkit.show import units
from perfkit.studies.edits import following
from perfkit.trace.diagnosis import Bottleneck


def rows(findings: Iterable[Bottleneck], controls: Controls, runs: Sequence[Run]) -> list[widgets.Widget]:
    """A row for each bottleneck: what it is, then a button for each switch that can act here.

    Args:
        findings: of a profile of the recipe that the controls show.
        controls: which the buttons set.
        runs: measured ones of the same workload and place, for the predictions.
    """
    model, recipe = predict.fit(runs), controls.recipe
    lines: list[widgets.Widget] = []
    for finding in findings:
        about = f"<b>{html.escape(finding.bottleneck)}</b>: {html.escape(finding.message)}"
        offers = []
        for name in finding.try_next:
            other, switch = following(recipe, name), switches()[name]
            if other != recipe and controls.can_act(other):
                value, gain = getattr(other, name), _gain(model, recipe, other, finding)
                text = f"Set {switch.label}: {spoken(value)} ({gain})"
                offers.append(controls.offer(text, {name: value}, switch.help))
        lines.append(layout.row([layout.html_slot(text=about), *offers], "pk-finding"))
    return lines


def _gain(model: predict.Model, recipe: Recipe, other: Recipe, finding: Bottleneck) -> str:
    """By the parts that were measured; where they tell nothing, the bound of the trace (Amdahl)."""
    before, after = (predict.predict(model, one.to_dict()) for one in (recipe, other))
    if before and after:
        samples = [one.batch_size * one.accumulation for one in (recipe, other)]
        return f"predicted {units.times(samples[1] / after.step_s / (samples[0] / before.step_s))}"
    return f"at most {units.times(finding.gain_at_most)}" if finding.gain_at_most else "no prediction"
