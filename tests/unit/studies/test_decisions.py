"""What is decided on a stage, and what later stages are built on."""

from dataclasses import replace

import pytest
from msgspec import structs

from perfkit import workloads
from perfkit.ladder import catalogue
from perfkit.recipe import Recipe
from perfkit.results import recordings
from perfkit.results.schema import Decision
from perfkit.results.store import RunStore
from perfkit.studies import decisions
from perfkit.studies.planning import plan
from tests.support.plans import on


@pytest.fixture
def store(data_dir):
    return RunStore()


@pytest.fixture
def ladder():
    return plan("photos", "quick", ["data_loading"], device="cpu")


def measured(store, mark=""):
    """The baseline and data loading of a recording, as if they had been measured here."""
    runs = {run.stage: run for run in recordings.find("cpu-quick")}
    pair = [
        structs.replace(runs[name], id=mark + runs[name].id, origin=None)
        for name in ("baseline", "data_loading")
    ]
    for run in pair:
        store.add(run)
    return pair


def test_later_stages_start_from_what_was_kept_and_without_what_was_dropped(store, ladder):
    before, after = measured(store)
    assert after.recipe["workers"] > 0 == before.recipe["workers"]
    for kept, run in ((True, after), (False, before)):
        decisions.decide(store, ladder, after, before, kept)
        decided = decisions.decided(store, ladder)
        settings = decisions.settings(decided, ["allocator", "data_loading"])
        assert settings == {name: run.recipe[name] for name in ("workers", "prefetch_factor", "wait_policy")}
    assert decisions.settings(decided, ["allocator"]) == {}


def test_what_is_kept_of_two_stages_together_replaces_what_was_decided_on_each(store, ladder):
    before, after = measured(store)
    runs = {}
    for name, amp, threads in (
        ("amp", "bf16", 0),
        ("cpu_threads", "off", 2),
        ("amp_fewer_threads", "bf16", 1),
    ):
        recipe = Recipe.from_dict(before.recipe).replace(amp=amp, cpu_threads=threads).to_dict()
        runs[name] = structs.replace(after, id=name, stage=name, recipe=recipe)
        store.add(runs[name])

    def left(*names):
        return decisions.settings(decisions.decided(store, ladder), names)

    decisions.decide(store, ladder, runs["amp"], before, kept=False)
    decisions.decide(store, ladder, runs["amp_fewer_threads"], before, kept=True)
    assert left("amp", "cpu_threads") == {"amp": "bf16", "cpu_threads": 1}
    assert left("amp") == {"amp": "off"}, "a stage below the second of them is built on the first alone"
    decisions.decide(store, ladder, runs["amp"], before, kept=False)
    decisions.decide(store, ladder, runs["cpu_threads"], before, kept=True)
    assert left("amp", "cpu_threads") == {"amp": "off", "cpu_threads": 2}, "the newest decision counts"
    decisions.decide(store, ladder, runs["cpu_threads"], before, kept=False)
    decisions.decide(store, ladder, runs["amp"], before, kept=True)
    decisions.decide(store, ladder, runs["amp_fewer_threads"], before, kept=False)
    assert left("amp", "cpu_threads") == {"amp": "bf16", "cpu_threads": 0}, "without both, each counts"


def test_a_deleted_baseline_leaves_the_decision_on_the_stage_as_it_is(store, ladder):
    before, after = measured(store)
    decisions.decide(store, ladder, after, before, kept=False)
    store.delete([before.id])
    assert decisions.settings(decisions.decided(store, ladder), ["data_loading"])["workers"] == 0
    store.delete([after.id])
    assert decisions.decided(store, ladder) == {}


def test_a_switch_that_is_gone_since_is_left_out_of_a_decision(store, ladder):
    _, after = measured(store)
    old = {"workers": 3, "ranks": 2, "amp": "int4"}
    store.decide(decisions.ladder_key(ladder), after, Decision(True, "user"), old)
    assert decisions.settings(decisions.decided(store, ladder), ["data_loading"]) == {"workers": 3}


def test_a_stage_whose_baseline_is_not_known_is_dropped_for_the_plain_loop(store, ladder):
    _, after = measured(store)
    decisions.decide(store, ladder, after, None, kept=False)
    assert decisions.settings(decisions.decided(store, ladder), ["data_loading"])["workers"] == 0


def test_another_workload_size_or_option_is_another_ladder(store, ladder):
    before, after = measured(store)
    decisions.decide(store, ladder, after, before, kept=True)
    others = [on(ladder, options={"image_size": 224}), on(ladder, device="cuda")]
    assert [decisions.decided(store, other) for other in others] == [{}, {}]
    assert decisions.decided(store, ladder.trying(stages=("amp",)))


def test_a_question_is_of_everything_in_a_plan_and_of_the_workload_s_code(ladder, monkeypatch):
    asked = decisions.plan_key(ladder)
    assert decisions.plan_key(plan("photos", "quick", ["data_loading"], device="cpu")) == asked
    others = [
        on(ladder, seed=1),
        ladder.trying(settings={"workers": 1}),
        ladder.trying(changes={"workers": 2}),
        ladder.trying(recipes=(("one", Recipe()),)),
        replace(ladder, rule=replace(ladder.rule, rounds=7)),
    ]
    assert len({asked, *map(decisions.plan_key, others)}) == 6
    began = ladder.fixed()
    monkeypatch.setattr(workloads, "source", lambda name: b"edited")
    assert decisions.plan_key(ladder) != asked
    assert decisions.plan_key(began) == asked, "what was measured is the code that it began with"


def test_a_question_is_of_what_the_cards_set_here_and_of_the_program(ladder, monkeypatch, tmp_path):
    """After an edit of a card, numbers of its old settings were shown as measured earlier."""
    asked = decisions.plan_key(ladder)
    with monkeypatch.context() as edited:
        card = structs.replace(catalogue.OPTIMIZATIONS["data_loading"], settings={"workers": 7})
        edited.setitem(catalogue.OPTIMIZATIONS, "data_loading", card)
        assert decisions.plan_key(ladder) != asked
    with monkeypatch.context() as grown:
        grown.setattr(catalogue, "usable_cores", lambda: 64)
        assert decisions.plan_key(ladder) != asked, "its workers are others"
    for name in ("train.py", "program.py"):
        (tmp_path / name).write_bytes((decisions.PACKAGE / name).read_bytes())
    monkeypatch.setattr(decisions, "PACKAGE", tmp_path)
    assert decisions.plan_key(ladder) == asked
    (tmp_path / "train.py").write_text("# edited")
    assert decisions.plan_key(ladder) != asked
