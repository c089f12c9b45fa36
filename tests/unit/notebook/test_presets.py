"""Recipes that a button sets: the fastest, and what the measured parts predict."""

from __future__ import annotations

from perfkit.notebook import presets
from perfkit.recipe import Recipe, switches
from perfkit.results import recordings
from tests.unit.notebook.fakes import on_cpu


def test_the_fastest_run_gives_the_recipe_and_none_gives_the_reason() -> None:
    runs = recordings.played(recordings.find("cpu-quick"))
    found = presets.best(runs)
    fastest = max((run for run in runs if run.samples_per_s), key=lambda run: run.samples_per_s.value)  # type: ignore[union-attr]
    assert found == Recipe.from_dict(fastest.recipe)
    assert "press Run" in str(presets.best([]))
    assert "press Run" in str(presets.suggested([], switches(), lambda recipe: True))


def test_a_suggestion_is_predicted_from_the_baseline_and_can_act() -> None:
    runs = recordings.played(recordings.find("cpu-quick"))[:1]
    acts = lambda recipe: not any(on_cpu(name, recipe) for name in switches())  # noqa: E731
    found = presets.suggested(runs, switches(), acts)
    assert isinstance(found, Recipe)
    assert found.workers > 0, "the baseline waits for data, and that is all that was measured"
    assert found.batch_size == runs[0].recipe["batch_size"]
    nothing = presets.suggested(runs, switches(), lambda recipe: False)
    assert "No other switch" in str(nothing)
