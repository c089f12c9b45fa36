"""The ladder: what is kept, what is built on it, what is measured afresh at its end."""

from dataclasses import replace

import pytest
from msgspec import structs

from perfkit.errors import Cancelled, InvalidValue, RunFailed
from perfkit.ladder.catalogue import ALL_KEPT, NOT_STAGES, SO_FAR, Budget
from perfkit.results import stats
from perfkit.results.schema import AGAIN, Busiest
from perfkit.results.store import RunStore
from perfkit.studies.climb import climb, with_earlier
from perfkit.studies.here import TrainingSession
from perfkit.studies.sources import Progress
from tests.unit.show.fake_runs import session

pytestmark = pytest.mark.usefixtures("whole_machine")
NAMES = ("data_loading", "channels_last", "compile")


def rate(recipe):
    return 100.0 * 1.3 ** (recipe.workers > 0) * 0.8**recipe.channels_last * 1.5**recipe.compile


@pytest.fixture
def ladder(machine, where):
    machine.rate = rate
    return replace(where, rule=replace(where.rule, rounds=5)).trying(stages=NAMES)


def facts(runs):
    return {run.stage: in_words(run.decision) for run in runs}


def in_words(decision):
    """`kept`, or `not kept: slower`; empty without a decision."""
    if decision is None:
        return ""
    word = "kept" if decision.kept else "not kept"
    return f"{word}: {decision.why}" if decision.why else word


def changed(run):
    return {name for name in ("channels_last", "compile") if run.recipe[name]}


def test_a_stage_is_kept_if_it_is_faster_and_the_next_is_built_on_what_was_kept(machine, ladder):
    runs = climb(ladder)
    dropped = "not kept: slower"
    told = ["", "kept", dropped, "kept", "", ""]
    assert facts(runs) == dict(zip(["baseline", *NAMES, ALL_KEPT, AGAIN], told, strict=True))
    _, loading, layout, compiled, final, _ = runs
    assert changed(layout) == {"channels_last"}
    assert changed(compiled) == {"compile"}
    assert final.recipe == compiled.recipe
    assert compiled.pairing("previous").against == loading.id
    assert compiled.speedup("previous").ratio == pytest.approx(1.5)
    assert final.speedup("baseline").ratio == pytest.approx(1.95)
    assert all(pairing.interleaved for run in runs for pairing in run.pairings)
    assert compiled.speedup("baseline").ratio == pytest.approx(1.95), "by way of what was kept below"
    assert compiled.samples_per_s.value == pytest.approx(195.0)
    assert compiled.pairing("baseline").against == final.pairing("baseline").against == runs[0].id
    assert len(machine.children) == 3 * 2 + 3
    assert set(machine.slices()[-15:]) == {6, 7, 8}, "the end is measured in new processes"
    assert machine.alive() == []


@pytest.mark.parametrize("kept", [["channels_last"], NAMES])
def test_a_slower_stage_is_kept_if_that_is_asked_for(machine, ladder, kept):
    with pytest.raises(InvalidValue, match="channels_lost"):
        ladder.keeping(["channels_lost"])
    runs = climb(ladder.keeping(kept))
    assert facts(runs)["channels_last"] == "kept"
    assert changed(runs[3]) == {"channels_last", "compile"}


def test_nothing_is_built_on_a_stage_that_failed_in_its_rounds(machine, ladder):
    is_first_stage = lambda child: child.recipe.workers and not child.recipe.compile
    machine.fail("slice", RunFailed("the loss is nan", "lower it"), is_first_stage)
    runs = climb(ladder)
    assert [run.status for run in runs[:4]] == ["ok", "failed", "ok", "ok"]
    assert runs[3].recipe["workers"] == 0
    assert runs[3].pairing("previous").against == runs[0].id


def test_a_disturbed_room_drops_nothing_that_its_interval_supports(machine, ladder):
    machine.taken = lambda: 0.4
    runs = climb(ladder.trying(keep=("compile",)))
    assert list(facts(runs).values())[1:4] == ["kept", "not kept: slower", "kept"]
    assert all(run.disturbed and run.busiest == Busiest("chrome (process 7)", 0.38) for run in runs)


@pytest.fixture
def limits(monkeypatch):
    """How long each measurement of a ladder may take, in seconds."""
    found, measure = [], TrainingSession.measure

    def noted(self, stages, rule):
        found.append(rule.budget.ladder_s)
        return measure(self, stages, rule)

    monkeypatch.setattr(TrainingSession, "measure", noted)
    return found


def test_time_goes_by_sides_and_what_nobody_needed_to_those_that_come_later(machine, ladder, limits):
    climb(replace(ladder, rule=replace(ladder.rule, budget=Budget(60.0, 300.0))))
    assert limits == pytest.approx([300 * 2 / 10, 300 * 2 / 8, 300 * 3 / 6, 300], abs=2)


def test_groups_that_begin_when_the_time_is_up_still_get_the_rounds_of_a_verdict(
    machine, ladder, monkeypatch
):
    """Starting took longer than their share, so each had two rounds, and what helped was dropped."""
    monkeypatch.setattr("perfkit.studies.climb.time.monotonic", lambda: machine.now)
    machine.start_s = 20.0
    runs = climb(replace(ladder, rule=replace(ladder.rule, budget=Budget(60.0, 100.0))))
    assert list(facts(runs).values())[1:4] == ["kept", "not kept: slower", "kept"]
    assert {len(run.raw.block_samples_per_s) for run in runs} == {stats.MIN_ROUNDS}


def test_what_cannot_act_takes_no_time_from_the_others(machine, ladder, limits):
    more = ladder.trying(stages=("data_loading", "pinning", "tf32", *NAMES[1:]))
    climb(replace(more, rule=replace(ladder.rule, budget=Budget(60.0, 300.0))))
    assert limits[0] == pytest.approx(300 * 2 / 10, abs=2), "as without them"


def test_a_ladder_in_a_disturbed_room_gets_more_time(machine, ladder, limits):
    machine.taken = lambda: 0.4
    climb(replace(ladder, rule=replace(ladder.rule, budget=Budget(60.0, 300.0, 600.0))))
    assert limits == pytest.approx([300 * 2 / 10, 600 * 2 / 8, 600 * 3 / 6, 600], abs=2)


def test_without_verdicts_every_stage_is_kept_and_nothing_is_repeated(machine, ladder):
    runs = climb(replace(ladder, rule=replace(ladder.rule, rounds=3)))
    assert list(facts(runs).values()) == ["", "kept", "kept", "kept"]


def test_one_stage_is_measured_beside_the_baseline_and_its_repetition(machine, ladder):
    runs = climb(ladder.trying(stages=("compile",), below=True))
    assert [run.stage for run in runs] == ["baseline", "compile", AGAIN]
    assert len({tuple(sorted(machine.slices()[at : at + 3])) for at in range(0, 15, 3)}) == 1


def test_nobody_waits_for_the_loop_below_a_stage_that_cannot_act(machine, ladder):
    (run,) = climb(ladder.trying(stages=("pinning",), below=True))
    assert run.status == "not_applicable" and not machine.slices()


GROUP = ("batch_size", "uint8_copy")
"""Two stages that share rounds."""


def gains(recipe, together=1.0):
    """A larger batch 1.2, bytes 1.3, channels_last 1.5 times as fast; the first two are not free together."""
    larger = recipe.batch_size > 8
    rate = 100.0 * 1.2**larger * 1.3**recipe.uint8_copy * 1.5**recipe.channels_last
    return rate * (together if larger and recipe.uint8_copy else 1.0)


def test_stages_of_a_group_share_rounds_and_the_next_is_built_on_all_that_were_kept(machine, ladder):
    machine.rate = gains
    runs = climb(ladder.trying(stages=(*GROUP, "channels_last")))
    assert [run.stage for run in runs] == ["baseline", *GROUP, SO_FAR, "channels_last", ALL_KEPT, AGAIN]
    base, larger, bytes_, both, layout, final, _ = runs
    assert {tuple(sorted(machine.slices()[at : at + 3])) for at in range(0, 15, 3)} == {(0, 1, 2)}
    for run, gain in ((larger, 1.2), (bytes_, 1.3)):
        assert {pairing.against for pairing in run.pairings} == {base.id}
        assert run.speedup("previous").ratio == run.speedup("baseline").ratio == pytest.approx(gain)
    assert bytes_.recipe["batch_size"] != larger.recipe["batch_size"], "neither is built on the other"
    assert layout.recipe == {**larger.recipe, "uint8_copy": True, "channels_last": True} == final.recipe
    assert layout.speedup("previous").ratio == pytest.approx(1.5)
    assert layout.previous(runs) is both and both.recipe == {**layout.recipe, "channels_last": False}
    assert both.samples_per_s.value == pytest.approx(100 * 1.2 * 1.3)
    assert both.speedup("baseline").ratio == pytest.approx(1.2 * 1.3) and both.previous(runs) is None
    assert both.pairing("baseline").own_samples_per_s == [], "it was not measured with the baseline"
    assert both.pairing("baseline").via == [run.pairing("previous").rounds for run in (larger, bytes_)]
    assert layout.speedup("baseline").ratio == pytest.approx(1.2 * 1.3 * 1.5)
    assert layout.samples_per_s.value == pytest.approx(100 * 1.2 * 1.3 * 1.5)
    assert len(machine.children) == 3 + 2 + 3


def test_what_is_kept_so_far_says_of_each_stage_how_it_was_measured(machine, ladder, monkeypatch):
    """Memory held one side at a time in the first group, and equal processes differ more where workers load."""
    monkeypatch.setattr("perfkit.studies.starting.Starter._is_crowded", lambda *_: len(machine.children) < 3)
    machine.rate = lambda recipe: rate(recipe) * 1.4 ** (recipe.allocator == "keep") * 2**recipe.channels_last
    runs = climb(ladder.trying(stages=("allocator", "data_loading", "channels_last")))
    *_, both, layout, final, _ = runs
    assert [run.stage for run in (both, layout, final)] == [SO_FAR, "channels_last", ALL_KEPT]
    for run in (both, layout):
        pairing = run.pairing("baseline")
        assert pairing.interleaved
        assert [part.interleaved for part in pairing.via] == [False, False]
        assert [part.spread for part in pairing.via] == [stats.UNKNOWN, stats.WITH_WORKERS]


def test_rates_divide_to_the_ratios_though_the_machine_becomes_slower(machine, ladder):
    sides_before = 1 + len(GROUP)
    machine.rate = lambda recipe: gains(recipe) * (1.0 if len(machine.children) <= sides_before else 0.6)
    base, larger, _, both, layout, final, _ = climb(ladder.trying(stages=(*GROUP, "channels_last")))
    for run, before in ((larger, base), (both, base), (layout, both), (final, base)):
        role = "previous" if before is both else "baseline"
        assert run.samples_per_s.value / before.samples_per_s.value == pytest.approx(run.speedup(role).ratio)


def test_a_stage_that_fails_stops_no_other_of_its_group(machine, ladder):
    machine.rate = gains
    machine.fail("train", RunFailed("no", "x"), lambda child: child.recipe.batch_size > 8)
    _, larger, bytes_, layout, *_ = climb(ladder.trying(stages=(*GROUP, "channels_last")))
    assert [run.status for run in (larger, bytes_, layout)] == ["failed", "ok", "ok"]
    assert layout.recipe["batch_size"] == 8 and layout.recipe["uint8_copy"]
    assert layout.pairing("previous").against == bytes_.id


@pytest.mark.parametrize(("together", "is_said"), [(1.0, False), (0.7, True)])
def test_it_is_said_if_what_helps_alone_does_not_help_together(machine, ladder, together, is_said):
    machine.rate = lambda recipe: gains(recipe, together)
    *_, final, again = climb(ladder.trying(stages=GROUP))
    said = [text for text in final.warnings if "does not help together" in text]
    assert bool(said) is is_said and not any("together" in text for text in again.warnings)
    if is_said:
        assert said[0].startswith("everything kept is slower than 'uint8 copy' promised (1.30×")


BOTH = "amp_fewer_threads"
AT_ONCE = ("amp", "cpu_threads", "compile")
"""Two stages that are also tried together, and one that is built on them."""


def of_both(amp, fewer, both):
    """How fast a recipe is with AMP, with fewer threads, with both; compiled 1.5 times as fast."""

    def rate(recipe):
        one = amp if recipe.amp != "off" else 1.0
        other = fewer if recipe.cpu_threads else 1.0
        return 100.0 * (both if one != 1.0 != other else one * other) * 1.5**recipe.compile

    return rate


def test_two_stages_that_help_only_at_once_are_tried_together_and_kept(machine, ladder):
    machine.rate = of_both(0.8, 0.7, 1.2)
    runs = climb(ladder.trying(stages=AT_ONCE), RunStore())
    assert [run.stage for run in runs] == ["baseline", "amp", "cpu_threads", BOTH, "compile", ALL_KEPT, AGAIN]
    base, _, threads, both, compiled, final, _ = runs
    assert {tuple(sorted(machine.slices()[at : at + 4])) for at in range(0, 20, 4)} == {(0, 1, 2, 3)}
    assert (facts(runs)["amp"], facts(runs)["cpu_threads"]) == ("not kept: slower",) * 2
    assert facts(runs)[BOTH] == "kept" and both.title == "AMP with fewer CPU threads"
    assert both.pairing("previous").against == base.id and both.speedup("previous").ratio == pytest.approx(
        1.2
    )
    assert both.recipe["amp"] == "bf16" and both.recipe["cpu_threads"] == threads.recipe["cpu_threads"] > 0
    assert compiled.pairing("previous").against == both.id
    assert compiled.recipe == {**both.recipe, "compile": True} == final.recipe
    assert compiled.speedup("baseline").ratio == pytest.approx(1.2 * 1.5)
    assert RunStore().get(both.id) == both


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((1.2, 1.3, 1.4), [*["not kept: AMP with fewer CPU threads is faster"] * 2, "kept"]),
        ((1.4, 0.7, 1.2), ["kept", "not kept: slower", "not kept: AMP is faster"]),
        (
            (1.2, 1.5, 1.3),
            ["not kept: fewer CPU threads is faster", "kept", "not kept: fewer CPU threads is faster"],
        ),
        ((0.8, 0.7, 0.6), ["not kept: slower"] * 3),
    ],
)
def test_of_two_stages_and_both_together_the_fastest_that_helps_is_kept(machine, ladder, rates, told):
    machine.rate = of_both(*rates)
    found = facts(climb(ladder.trying(stages=AT_ONCE)))
    assert [found[name] for name in ("amp", "cpu_threads", BOTH)] == told


def test_a_gain_counts_once_where_the_plan_keeps_a_part_of_what_is_kept_together(machine, ladder):
    machine.rate = of_both(0.8, 0.7, 1.2)
    runs = {run.stage: run for run in climb(ladder.trying(stages=AT_ONCE).keeping(["amp"]))}
    assert runs["amp"].decision.kept and runs[BOTH].decision.kept and SO_FAR not in runs
    assert runs["compile"].speedup("baseline").ratio == pytest.approx(1.2 * 1.5)


def test_what_fails_together_is_not_kept_together(machine, ladder):
    machine.rate = of_both(1.2, 1.3, 1.4)
    is_both = lambda child: child.recipe.amp != "off" and child.recipe.cpu_threads
    machine.fail("train", RunFailed("no", "x"), is_both)
    runs = {run.stage: run for run in climb(ladder.trying(stages=AT_ONCE))}
    assert runs[BOTH].status == "failed" and not runs["amp"].decision.kept
    assert runs["compile"].recipe["cpu_threads"] and runs["compile"].recipe["amp"] == "off"


def test_two_stages_stay_kept_where_both_together_are_tried_later(machine, ladder):
    machine.rate = of_both(1.2, 1.3, 1.6)
    found = facts(climb(ladder.trying(stages=("amp", "cpu_threads", BOTH))))
    assert (found["amp"], found["cpu_threads"]) == ("kept", "kept")


def test_a_ladder_without_a_limit_says_how_long_it_takes(machine, ladder):
    told = []
    climb(ladder.until(30), progress=Progress(told.append))
    assert all(update.describe() for update in told)


@pytest.mark.parametrize(
    ("stages", "settings", "rounds"),
    [
        (("amp", "compile"), {}, 5),
        (("amp", "compile", "cpu_threads"), {}, 5),  # not in one group
        (("amp", "cpu_threads"), {"amp": "bf16"}, 5),  # there is nothing to change
        (("amp", "cpu_threads"), {}, 3),  # every stage is kept
        (("amp", "cpu_threads", BOTH), {}, 5),
    ],
)
def test_both_are_tried_only_in_a_group_that_has_both_and_where_both_act(
    machine, ladder, stages, settings, rounds
):
    plan = ladder.trying(stages=stages, settings=settings)
    runs = climb(replace(plan, rule=replace(plan.rule, rounds=rounds)))
    assert [run.stage for run in runs if run.stage not in NOT_STAGES] == ["baseline", *stages]


def test_runs_are_stored_and_told_in_the_order_of_the_ladder(machine, ladder):
    seen = []
    runs = climb(ladder.trying(stages=("pinning", *NAMES)), RunStore(), Progress(seen.append))
    assert [run.stage for run in runs][:3] == ["baseline", "pinning", "data_loading"]
    assert runs[1].status == "not_applicable"
    assert [update.run for update in seen if update.run] == runs
    assert [RunStore().get(run.id) for run in runs] == runs
    fractions = [update.fraction for update in seen]
    assert fractions == sorted(fractions)


def test_a_clock_that_is_set_back_during_a_start_leaves_runs_that_can_be_read(machine, ladder):
    """As in a virtual machine that was asleep: the start took -3 s, which no stored run may have."""
    machine.startup_s = -3.0
    store = RunStore()
    runs = climb(ladder, store)
    assert store.runs()[::-1] == runs and store.problems == []
    assert {run.startup_s for run in runs} == {None}


def test_a_stage_is_not_kept_if_what_was_kept_failed_with_it(machine, ladder):
    is_kept = lambda child: child.recipe.workers and not child.recipe.compile and len(machine.children) == 6
    machine.fail("slice", RunFailed("lost", ""), is_kept)
    runs = climb(ladder)
    assert facts(runs)["data_loading"] == "kept" and facts(runs)["compile"] == ""
    assert [run.stage for run in runs if run.status == "failed"] == [SO_FAR], "it is told"
    assert runs[-2].stage == ALL_KEPT and runs[-2].recipe == runs[1].recipe


def test_a_baseline_that_fails_at_the_end_is_told(machine, ladder):
    is_base = lambda child: (
        not child.recipe.workers and not child.recipe.compile and len(machine.children) > 6
    )
    machine.fail("slice", RunFailed("lost", ""), is_base)
    assert [run.stage for run in climb(ladder) if run.status == "failed"][:1] == ["baseline"]


def test_the_baseline_has_its_rounds_though_no_stage_of_the_first_group_can_act(machine, ladder):
    rule = replace(ladder.rule, budget=Budget(60.0, 345.0))
    baseline, *_ = climb(replace(ladder, rule=rule).trying(stages=("pinning", "data_loading")))
    assert len(baseline.raw.block_samples_per_s) >= stats.MIN_ROUNDS


def test_rounds_are_added_to_those_of_the_same_stage_and_recipe_only():
    base, stage = session()[:2]
    (joined,) = with_earlier([stage], [base, stage])
    assert joined.raw.block_samples_per_s == 2 * stage.raw.block_samples_per_s
    other = structs.replace(stage, recipe={**stage.recipe, "workers": 9})
    (alone,) = with_earlier([stage], [base, other])
    assert alone is stage


def test_a_continuation_that_is_stopped_before_its_first_round_leaves_what_was_there(machine, where):
    plan = where.trying(stages=("channels_last",))
    store = RunStore()
    before = climb(plan, store)
    machine.fail("slice", Cancelled("stopped on request"))
    assert climb(plan, store, earlier=before) == before
    assert (store.lost, len(store.runs())) == ([], len(before)), "it is stored already"


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_continuation_that_is_stopped_before_each_side_has_further_rounds_leaves_all_as_they_were(
    machine, where, monkeypatch, stopped
):
    """The sides took turns, in either order, because they did not fit into memory together."""
    base, stage = session()[:2]
    failed = structs.replace(stage, id="failed", stage="failed", status="failed", reason="out of memory")
    earlier = [base, stage, failed]
    store = RunStore()
    for run in earlier:
        store.add(run)
    further = [structs.replace(run, id=f"{run.id} more", session="further") for run in earlier]
    further[stopped] = structs.replace(further[stopped], status="cancelled", pairings=[])
    monkeypatch.setattr(TrainingSession, "measure", lambda source, stages, rule: further)
    runs = climb(where, store, earlier=earlier)
    assert runs == earlier
    assert runs[1].previous(runs) is runs[0], "what it was compared with is there"
    assert (store.lost, len(store.runs())) == ([], len(earlier)), "it is stored already"


def test_a_side_that_fails_leaves_the_others_their_further_rounds(machine, where, monkeypatch):
    base, stage = session()[:2]
    further = [structs.replace(run, id=f"{run.id} more", session="further") for run in (base, stage)]
    further[1] = structs.replace(further[1], status="failed", reason="out of memory")
    monkeypatch.setattr(TrainingSession, "measure", lambda source, stages, rule: further)
    joined, failed = climb(where, RunStore(), earlier=[base, stage])
    assert joined.id == further[0].id and failed.status == "failed"
    assert len(joined.raw.block_samples_per_s) == 2 * len(base.raw.block_samples_per_s)
