"""What a notebook calls by name; a ladder or some recipes: results of earlier sessions are found again."""

import dataclasses

import pytest
from msgspec.structs import replace

from perfkit import notebook as pk
from perfkit.errors import InvalidValue, RunFailed, WorkloadError
from perfkit.notebook import ladder
from perfkit.recipe import Recipe
from perfkit.results import recordings
from perfkit.results.store import RunStore
from perfkit.show import figures, html
from perfkit.show.style import Figure
from perfkit.studies import staging
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.show.fake_runs import session


def test_what_was_measured_for_a_question_is_shown_again_and_for_no_other(monkeypatch):
    def measured(number, **settings):
        runs = [replace(run, id=f"{run.id}-{number}", session=f"s{number}") for run in session()[:2]]
        later = [replace(runs[0], id=f"{number}-{at}", session="of another cell") for at in range(60)]
        for run in runs + later:
            RunStore().add(run)
        FakeStudy(monkeypatch, lambda progress: runs)
        pk.LadderPanel(["data_loading"], settings=settings).run()
        return runs

    runs = measured(0)
    measured(1, channels_last=True)
    same, other = pk.LadderPanel(["data_loading"]), pk.LadderPanel(["data_loading"], settings={"workers": 3})
    for panel in (same, other):
        panel._ipython_display_()
    assert (same.runs, other.runs) == (runs, [])
    assert "measured earlier" in same.status.line.value
    other.set(workers=0, channels_last=True)
    assert [run.session for run in other.runs] == []
    assert [run.session for run in measured(2)] == ["s2", "s2"]


def test_the_result_is_one_picture_one_table_and_folded_details(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"])
    assert panel.sections() == ()
    with pytest.raises(InvalidValue, match="no run is shown"):
        panel.plot("throughput")
    panel.run()
    sections = panel.sections()
    assert html.fragment(sections).count("<svg") == 1
    assert sections[-1].folded and sections[-1].title == "Details"
    assert "samples/s" in panel.table().data and "first" in panel.table("training l").data
    shown = panel.plot("throughput").data
    assert shown.startswith('<img alt="') and 'src="data:image/png;base64,iVBOR' in shown
    with pytest.raises(InvalidValue, match="Allowed"):
        panel.plot("pie")


def test_recipes_are_measured_together_and_picked_by_title(monkeypatch):
    runs = [replace(run, title=title) for run, title in zip(session(), ("plain", "AMP"), strict=False)]
    study = FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.RecipePanel({"plain": {}, "AMP": {"amp": "bf16"}})
    panel.set(workers=1)
    panel.run()
    (_, first), (_, second) = study.plans[-1].ladder.recipes
    assert first.diff(Recipe(batch_size=first.batch_size)) == {"workers": (1, 0)}
    assert second.amp == "bf16"
    assert panel["AMP"].title == "AMP"
    with pytest.raises(InvalidValue, match="plain, AMP"):
        panel["fp8"]


def test_a_panel_of_recipes_has_at_least_one():
    with pytest.raises(InvalidValue, match="no recipe was given. Give each a title"):
        pk.RecipePanel({})


def test_every_name_is_there_and_an_unknown_one_says_which_there_are():
    assert len(dir(pk)) <= 27
    assert all(getattr(pk, name) for name in dir(pk))
    with pytest.raises(AttributeError, match="StagePanel"):
        pk.StagePane


def test_a_script_belongs_to_its_run_and_shows_no_place_of_this_machine(data_dir, monkeypatch):
    runs = [run for run in recordings.find("cpu-quick") if run.workload.endswith(":Photos")][:1]
    other = replace(runs[0], id="other", recipe={**runs[0].recipe, "batch_size": 7})
    elsewhere = replace(runs[0], id="elsewhere", workload="of_a_colleague:Theirs")
    script = staging.export.script

    def written(recipe, workload, *about, **more):
        if workload == elsewhere.workload:
            raise WorkloadError("it is not here")
        return script(recipe, workload, *about, **more)

    monkeypatch.setattr(staging.export, "script", written)
    wrong = replace(runs[0], id="wrong", workload="tiny_gpt", options={"context": "x"})
    texts = staging.scripts([elsewhere, wrong, *runs, other])
    assert "There is no script: 'x' + 1 cannot be computed" in texts["wrong"], "a file may hold anything"
    assert texts["elsewhere"] == "# There is no script: it is not here\n", "which hides no other one"
    assert texts["other"] != texts[runs[0].id]
    assert str(data_dir) not in texts["other"] and not (data_dir / "cache").exists()
    with pytest.raises(InvalidValue, match="none of these runs"):
        pk.training_loop([replace(other, status="failed")])


def test_a_panel_shows_the_picture_of_an_addition_and_says_why_there_is_none(monkeypatch):
    """The picture is measured once, with the runs; what goes wrong with it leaves the bars."""
    panel = ladder.LadderPanel(["data_loading"], workload="tests.support.toy:Toy", device="cpu")
    panel._set_answer(dataclasses.replace(panel.answer, runs=session()[:2]))
    asked = []

    def picture(runs, plan, progress):
        asked.append(progress)
        return Figure("steps", "", (), "ms", "two steps")

    monkeypatch.setattr(ladder.registry, "table", lambda name: {"x": "x"} if name == "PICTURES" else {})
    monkeypatch.setattr(ladder.lookup, "load", lambda place: picture)
    (made,) = panel._pictures()
    assert (made.name, made.title) == ("steps", figures.headline(panel.runs).title) and asked == [None]

    def broken(runs, plan, progress):
        raise RunFailed("it ended")

    monkeypatch.setattr(ladder.lookup, "load", lambda place: broken)
    assert panel._pictures()[-1].name == "step_time"
    words = "There is no picture of the steps: it ended"
    for _ in range(2):
        assert html.fragment(panel.sections()).count(words) == 1
    FakeStudy(monkeypatch)
    panel.run()
    assert words not in html.fragment(panel.sections()), "the next result has one"


def test_the_first_addition_that_can_tell_proves_whether_a_recipe_trains_the_same(monkeypatch):
    proofs = {"cannot tell": None, "can": "a proof", "is not asked": "a different one"}
    monkeypatch.setattr(ladder.registry, "table", lambda name: {each: each for each in proofs})
    monkeypatch.setattr(ladder.lookup, "load", lambda place: lambda *_, progress: proofs[place])
    assert ladder.proof(None, "it", Recipe()) == "a proof"
    monkeypatch.setattr(ladder.registry, "table", lambda name: {})
    assert ladder.proof(None, "it", Recipe()) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: pk.LadderPanel(["data_loading"]),
        lambda: pk.StagePanel("data_loading"),
        lambda: pk.RecipePanel({"plain": {}, "AMP": {"amp": "bf16"}}),
    ],
)
def test_setting_the_value_that_is_set_already_keeps_the_result(monkeypatch, make):
    FakeStudy(monkeypatch)
    panel = make()
    panel.run()
    panel.set(channels_last=False)
    assert len(panel.runs) == 2
    panel.set(channels_last=True)
    assert not panel.runs
    panel.set(channels_last=True)
    with pytest.raises(InvalidValue):
        panel.set(channels_last="perhaps")


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_ladder_with_a_stage_that_failed_is_shown_again_with_the_reason(monkeypatch, is_stopped):
    base, loading, *_ = session()
    amp = replace(loading, id="amp", stage="amp", title="AMP", status="failed", reason="out of memory")
    runs = [base, loading, amp]
    for run in runs:
        RunStore().add(run)

    def climbed(progress):
        if is_stopped:
            panel.stop()
        return runs

    FakeStudy(monkeypatch, climbed)
    panel = pk.LadderPanel(["data_loading", "amp"])
    with pytest.raises(RunFailed, match="AMP failed: out of memory"):
        panel.run()
    later = pk.LadderPanel(["data_loading", "amp"])
    assert later.runs == ([] if is_stopped else runs)
    assert ("AMP failed: out of memory" in later.status.error.value) is not is_stopped
    with pytest.raises(RunFailed):
        later.run()
