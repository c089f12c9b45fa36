"""A ladder or some recipes: results of earlier sessions are found again, however many came after them."""

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from perfkit.notebook import ladder
from perfkit.recipe import Recipe
from perfkit.results.store import RunStore
from perfkit.show import document
from perfkit.studies import rungs
from tests.unit.notebook.fakes import CPU, FakeStudy, plain
from tests.unit.show.fake_runs import session


def recipes(things):
    return [getattr(thing.recipe, "to_dict", lambda kept=thing.recipe: kept)() for thing in things]


def keep(panel, number, **changes):
    """Stores a session that this panel would have measured."""
    stages = rungs.ladder_stages(panel.plan, CPU)
    for stage, run in zip(stages, session(), strict=False):
        RunStore().add(
            plain(
                run,
                id=f"{stage.name}-{number}",
                session=f"s{number}",
                created=f"2026-11-{number // 24 + 1:02}T{number % 24:02}:00:00+00:00",
                stage=stage.name,
                title=stage.title,
                workload=panel.plan.workload,
                preset=panel.plan.preset.name,
                device=panel.plan.device,
                options={},
                recipe={**stage.recipe.to_dict(), **changes},
            )
        )


def test_a_session_is_found_after_sixty_others_and_only_with_the_same_settings(monkeypatch):
    monkeypatch.setattr(
        ladder,
        "is_ladder_of",
        lambda plan, described, runs: recipes(runs) == recipes(rungs.ladder_stages(plan, CPU)),
    )
    panel = pk.LadderPanel(["data_loading"])
    keep(panel, 0)
    for number in range(1, 70):
        keep(panel, number, channels_last=True)
    panel._read()
    assert {run.session for run in panel.runs} == {"s0"}
    assert "measured earlier" in panel.bar.line.value
    other = pk.LadderPanel(["data_loading"], settings={"batch_size": 3})
    other._read()
    assert other.runs == []


def test_the_result_is_one_picture_one_table_and_folded_details(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"])
    assert panel.sections() == ()
    with pytest.raises(InvalidValue, match="nothing was measured yet"):
        panel.plot("losses")
    panel.run()
    sections = panel.sections()
    assert sum(isinstance(part, document.Figure) for part in document.walk(sections)) == 1
    assert sections[-1].folded and sections[-1].title == "Details"
    assert "samples/s" in panel.table().data
    assert panel.plot("losses").data[:4] == b"\x89PNG"
    with pytest.raises(InvalidValue, match="Allowed"):
        panel.plot("pie")


def test_recipes_are_measured_together_and_picked_by_title(monkeypatch):
    runs = [plain(run, title=title) for run, title in zip(session(), ("plain", "AMP"), strict=False)]
    study = FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.RecipePanel({"plain": {}, "AMP": {"amp": "bf16"}})
    panel.set(workers=1)
    panel.run()
    (_, first), (_, second) = study.plans[-1].recipes
    assert first.diff(Recipe(batch_size=first.batch_size)) == {"workers": (1, 0)}
    assert second.amp == "bf16"
    assert panel["AMP"].title == "AMP"
    with pytest.raises(InvalidValue, match="plain, AMP"):
        panel["fp8"]
