"""The verdict on a script that is to replace another, from what was measured and seen."""

import contextlib
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from typer.testing import CliRunner

from perfkit.additions.patch import edits
from perfkit.additions.referee import behaviour, command
from perfkit.additions.referee.behaviour import Behaviour, differences
from perfkit.additions.referee.match import Match, Terms, compare_whole, two_scripts, with_switches
from perfkit.additions.referee.verdict import MatchResult, judge_speed, run_table
from perfkit.additions.referee.witness import Witness
from perfkit.additions.scripts import messages
from perfkit.additions.scripts.script import Script, ScriptStep
from perfkit.additions.scripts.study import OF_SCRIPTS
from perfkit.additions.scripts.watched import Launch
from perfkit.additions.shared.memory import Memory
from perfkit.cli import app
from perfkit.errors import InvalidValue, RunFailed, StoreError
from perfkit.ladder.catalogue import PRESETS
from perfkit.recipe import Recipe
from perfkit.results.comparison import Comparison
from perfkit.results.rounds import Pairing
from perfkit.results.run import Run
from perfkit.results.schema import Raw
from perfkit.results.stats import Ratio, Spread
from perfkit.results.store import RunStore
from perfkit.rules import Target
from perfkit.studies import planning
from perfkit.studies.compare import Candidate, stages_of
from perfkit.studies.sides import Side
from perfkit.studies.sources import Progress
from tests.support.settings import settings

STEPS = 20
PLAIN = Behaviour(
    loaded=[16] * STEPS,
    trained=[16] * STEPS,
    values=[1600] * STEPS,
    backwards=[1] * STEPS,
    batches=[1.0] * STEPS,
    weight=[1.0] * STEPS,
    reached=[10] * STEPS,
    losses=[1.0] * STEPS,
    evaluations=[9],
    checkpoints=[],
    parameters=10,
    precision="float32",
    autocast=None,
    replaced=[],
)
SMALLER = msgspec.structs.replace(PLAIN, trained=[8] * STEPS, values=[800] * STEPS)


KNOWN = Spread(0.005, 20)


def comparison(
    speed=1, losses=1.0, passes=STEPS, scatter=0, disturbed=0.0, rounds=10, facts=None, spread=KNOWN
):
    def run(title, batch_size, loss):
        about = {"session": "s", "created": "", "stage": "s", "workload": "t.py", "device": "cpu"}
        about["recipe"] = Recipe(batch_size=batch_size).to_dict()
        return Run(id=title, title=title, **about, script=title, losses=[loss] * passes, facts=facts or {})

    rates = [100 * speed * (1 + scatter * (-1) ** number) for number in range(rounds)]
    about = {"against": "a", "role": "previous", "interleaved": True, "spread": spread}
    pairing = Pairing(rates, [100.0] * rounds, [disturbed] * rounds, **about)
    return Comparison(run("a", 16, 1.0), run("b", 32, losses), pairing)


class Turns:
    """A process that has ended after its second turn."""

    tree = None

    def __init__(self):
        self.turns = 0

    def ask(self, question, **how):
        self.turns += question == "run_on"
        return self.turns == 2

    def suspend(self):
        pass


def test_whole_runs_tell_each_turn(monkeypatch):
    monkeypatch.setattr(Memory, "of", lambda tree: Memory())
    monkeypatch.setattr("perfkit.additions.referee.match.record.begun", lambda *about: None)
    told = []
    session = InTwoLives()
    session.source.plan = session.source.description = None
    session.start_training = lambda stage: (Turns(), None)
    plan = replace(planning.plan("photos", device="cpu"), make_source=None)
    monkeypatch.setattr(type(plan), "open", lambda *_: contextlib.nullcontext(session))
    monkeypatch.setattr("perfkit.additions.referee.match._FullRun.ended", Mock(side_effect=KeyboardInterrupt))
    match = Match(plan, Candidate("old"), Candidate("new"), set())
    with pytest.raises(KeyboardInterrupt):
        compare_whole(match, Progress(lambda now: told.append(now.phase)))
    assert told == [f"turn {turn} of both, to their end" for turn in (1, 2)]


def runs_of(stages):
    about = {"session": "s", "created": "", "workload": "t.py", "device": "cpu", "recipe": {}}
    return [Run(id=each.name, title=each.title, stage=each.name, losses=[1.0], **about) for each in stages]


class InTwoLives:
    """A session whose sides are asked in each life of their processes; `b` has always ended by then."""

    def __init__(self):
        self.source = SimpleNamespace(baseline=Recipe, target=Target("cpu"))

    def measure(self, stages, rule, look):
        assert rule.cached == 0, "as in every comparison"
        for losses in (3.0, 7.0):
            seen = msgspec.structs.replace(PLAIN, losses=[losses] * STEPS)
            answers = Mock(return_value=seen), Mock(side_effect=RunFailed("it ended"))
            for stage, answer in zip(stages, answers, strict=True):
                look(Side(stage, child=SimpleNamespace(tree=None, ask=answer)))
        look(Side(stages[0]))  # nothing of it runs
        return runs_of(stages)


def test_what_steps_did_in_the_first_life_comes_beside_the_runs_and_not_of_a_side_that_had_ended(monkeypatch):
    monkeypatch.setattr(Memory, "of", lambda tree: Memory(peak=5, others=2))
    match = Match(SimpleNamespace(rule=PRESETS["quick"].rule), Candidate("old"), Candidate("new"), set())
    runs, seen, unseen = match._observed(InTwoLives())
    assert seen == {"a": msgspec.structs.replace(PLAIN, losses=[3.0] * STEPS, memory=7)}
    assert [run.losses for run in runs] == [[3.0] * STEPS, [1.0]], "a loss for each step, or as it was told"
    assert unseen == "new: it ended"
    given = MatchResult(comparison(2.0), seen, set(), failure=unseen).verdict(0.02)
    assert (given.outcome, given.reason) == ("undecided", "the steps were not looked at: new: it ended")


def test_the_old_script_comes_first_whichever_side_was_asked_first(monkeypatch):
    """The differences are of the second one: in the other order, a script that does less would seem to do more."""
    monkeypatch.setattr(Memory, "of", lambda tree: Memory())
    match = Match(SimpleNamespace(rule=PRESETS["quick"].rule), Candidate("old"), Candidate("new"), set())
    session = InTwoLives()

    def measure(stages, rule, look):
        for stage in reversed(stages):
            look(Side(stage, child=SimpleNamespace(tree=None, ask=lambda _: PLAIN)))
        return runs_of(stages)

    session.measure = measure
    assert [*match._observed(session)[1]] == ["a", "b"]


def test_a_side_that_was_not_asked_in_time_says_what_ended_it(monkeypatch):
    """Its rounds count, so that nothing else tells why the verdict is undecided."""
    monkeypatch.setattr(Memory, "of", lambda tree: Memory())
    match = Match(SimpleNamespace(rule=PRESETS["quick"].rule), Candidate("old"), Candidate("new"), set())
    session = InTwoLives()

    def measure(stages, rule, look):
        look(Side(stages[0], child=SimpleNamespace(tree=None, ask=lambda _: PLAIN)))
        look(Side(stages[1], ended_by=RunFailed("killed")))
        return runs_of(stages)

    session.measure = measure
    assert match._observed(session)[2] == "new: killed"


def measured(result):
    """The same of one script, with the rates of its rounds."""
    rates = result.pairing.other_samples_per_s, result.pairing.own_samples_per_s
    runs = [
        msgspec.structs.replace(
            run, script="t.py", title=title, samples_per_step=16, raw=Raw(block_samples_per_s=each)
        )
        for run, title, each in zip((result.a, result.b), ("before", "now"), rates, strict=True)
    ]
    return Comparison(*runs, result.pairing)


def but(**changes):
    return msgspec.structs.replace(PLAIN, **changes)


def verdict(speed=1, new=PLAIN, allowed="", gate=None, old=PLAIN, whole=False, **how):
    found = MatchResult(comparison(speed, **how), {"a": old, "b": new}, {allowed}, is_whole=whole)
    return found.verdict(0.02, gate)


OFTEN = {"run_steps": 20, "marked": 4}
VALIDATED = but(evaluations=[3, 7, 11, 15], run={"steps": 1.0, "evaluation": 9.0}, **OFTEN)
QUICKLY = but(evaluations=[3, 7, 11, 15], run={"steps": 1.0, "evaluation": 1.0}, **OFTEN)
RARELY = but(evaluations=[15], run={"steps": 1.0, "evaluation": 2.2}, **OFTEN)


@pytest.mark.parametrize(
    ("case", "outcome", "code"),
    [
        ({"speed": 2.0}, "faster", 0),
        ({"speed": 0.5}, "slower", 1),
        ({}, "not faster", 1),
        ({"scatter": 0.3}, "undecided", 3),
        ({"speed": 2.0, "disturbed": 0.5}, "faster", 0),
        ({"speed": 17.0, "disturbed": 0.9}, "faster", 0),
        ({"speed": 2.0, "passes": 0}, "undecided", 3),
        ({"speed": 0.99, "gate": 0.03}, "not slower", 0),
        ({"speed": 0.5, "gate": 0.03}, "slower", 1),
        ({"speed": 0.99, "gate": 0.01}, "undecided", 3),
        ({"speed": 2.0, "losses": 1.1}, "trains differently", 4),
        ({"speed": 2.0, "losses": 1.1, "allowed": "losses"}, "faster", 0),
        ({"speed": 2.0, "losses": 1.0001}, "faster", 0),
        ({"speed": 2.0, "new": SMALLER, "disturbed": 0.5}, "trains differently", 4),
        ({"speed": 2.0, "new": SMALLER, "losses": 1.1, "allowed": "samples"}, "faster", 0),
        ({"speed": 2.0, "new": SMALLER, "losses": 1.1, "allowed": "batches"}, "trains differently", 4),
        ({"speed": 10.5, "rounds": 3}, "faster", 0),
        ({"speed": 0.1, "rounds": 3}, "slower", 1),
        ({"speed": 1.5, "rounds": 3}, "undecided", 3),
        ({"speed": 10.5, "rounds": 1}, "undecided", 3),
        ({"speed": 2.0, "new": but(optimizers=["SparseAdam"])}, "trains differently", 4),
        ({"speed": 2.0, "new": but(optimizers=["SparseAdam"]), "allowed": "optimizer"}, "faster", 0),
        ({"speed": 2.0, "new": but(moved={"table": 1.0}), "old": but(moved={"table": 2.0})}, "trains differently", 4),
        ({"speed": 2.0, "new": but(moved={"table": 1.1}), "old": but(moved={"table": 1.0})}, "faster", 0),
        ({"old": VALIDATED, "new": RARELY}, "does less besides", 4),
        ({"old": VALIDATED, "new": RARELY, "losses": 1.1}, "trains differently", 4),
        ({"old": VALIDATED, "new": RARELY, "allowed": "evaluations"}, "faster", 0),
        ({"old": VALIDATED, "new": QUICKLY}, "faster", 0),
        ({"speed": 2.0, "old": QUICKLY, "new": VALIDATED}, "not faster", 1),
        ({"speed": 2.0, "rounds": 1, "whole": True}, "faster", 0),
        ({"rounds": 1, "whole": True}, "not faster", 1),
        ({"speed": 2.0, "rounds": 1, "whole": True, "new": but(trained=[16] * 10, loaded=[16] * 10)},
         "trains differently", 4),
    ],
)  # fmt: skip
def test_a_verdict_and_its_exit_code(case, outcome, code):
    given = verdict(**case)
    assert (given.outcome, given.exit_code) == (outcome, code), given.reason


FASTER = Ratio(1.3, 1.2, 1.4, "faster")
SLOWER = Ratio(0.8, 0.75, 0.85, "slower")
EQUAL = Ratio(1.0, 0.99, 1.01, "no measurable difference")
OPEN = Ratio(1.1, 0.9, 1.3, "undecided")
CLEARLY_FASTER, CLEARLY_SLOWER = Ratio(4.0, 3.0, 5.0, "undecided"), Ratio(0.25, 0.2, 0.3, "undecided")
CLEAR, NEVER_CLEAR = (2.0, 0.05), (float("inf"), 0.05)


@pytest.mark.parametrize(
    ("ratio", "run", "limits", "outcome"),
    [
        (FASTER, None, CLEAR, "faster"),
        (SLOWER, None, CLEAR, "slower"),
        (EQUAL, None, CLEAR, "not faster"),
        (EQUAL, None, (2.0, 0.005), "undecided"),
        (OPEN, None, CLEAR, "undecided"),
        (CLEARLY_FASTER, None, CLEAR, "faster"),
        (CLEARLY_FASTER, None, NEVER_CLEAR, "undecided"),
        (CLEARLY_SLOWER, None, CLEAR, "slower"),
        (CLEARLY_SLOWER, None, NEVER_CLEAR, "undecided"),
        (FASTER, 1.0, CLEAR, "faster"),
        (Ratio(1.02, 1.01, 1.03, "faster"), 0.9, CLEAR, "not faster"),  # the run takes the gain
        (FASTER, 0.9, CLEAR, "undecided"),  # the same, of an interval that is too wide
        (CLEARLY_FASTER, 0.9, CLEAR, "undecided"),
        (EQUAL, 1.4, CLEAR, "not faster"),  # evaluations scatter
        (EQUAL, 1.6, CLEAR, "faster"),
        (OPEN, 1.6, CLEAR, "faster"),
        (SLOWER, 1.6, CLEAR, "slower"),
        (CLEARLY_SLOWER, 1.6, CLEAR, "slower"),
        (SLOWER, 0.5, CLEAR, "slower"),
        (EQUAL, 0.5, CLEAR, "not faster"),
    ],
)
def test_the_speed_is_judged_by_the_first_case_that_holds(ratio, run, limits, outcome):
    assert judge_speed(ratio, run, *limits) == outcome


@pytest.mark.parametrize(
    ("speed", "outcome", "code"),
    [
        (0.5, "slower", 1),
        (0.93, "undecided", 3),
        (1.0, "undecided", 3),
        (1.05, "undecided", 3),
        (1.07, "undecided", 3),
        (1.09, "faster", 0),
        (2.0, "faster", 0),
    ],
)
def test_one_run_of_each_is_judged_by_its_interval_and_no_remedy_is_a_longer_budget(speed, outcome, code):
    result = comparison(speed, rounds=1, spread=OF_SCRIPTS)
    given = verdict(speed, rounds=1, spread=OF_SCRIPTS, whole=True)
    assert (given.outcome, given.exit_code) == (outcome, code), given.reason
    holds_both = result.ratio.low <= 1 <= result.ratio.high
    assert holds_both == (outcome == "undecided") == ("run it again" in given.reason)
    assert "--budget" not in given.reason


def test_how_far_weights_move_is_one_difference_and_none_where_another_one_explains_it():
    old, new = but(moved={"table": 2.0, "head": 1.0}), but(moved={"table": 1.0, "head": 4.0})
    given = verdict(2.0, old=old, new=new)
    assert [(one.name, one.evidence) for one in given.differences] == [
        ("moved", "6 steps move head 4 times as far, table 0.5 times as far")
    ]
    fewer = msgspec.structs.replace(SMALLER, moved=new.moved)
    assert [one.name for one in verdict(2.0, old=old, new=fewer).differences] == ["samples"]


@pytest.mark.parametrize(
    ("values", "loss", "told"),
    [
        ([1600] * STEPS, 1.0, None),
        ([1120] * STEPS, 1.0, None),  # padding is left out: the losses are the same
        ([1120] * STEPS, 1.1, "an input has 70 values, not 100"),
        ([1120] * messages.LOSSES + [800] * (STEPS - messages.LOSSES), 1.0, None),  # they differ in length
        ([1120] * messages.LOSSES + [160] * (STEPS - messages.LOSSES), 1.0, "values, not 70"),
    ],
)
def test_inputs_without_their_padding_are_the_measure_of_later_ones(values, loss, told):
    found = [one.evidence for one in differences(PLAIN, but(values=values, losses=[loss] * STEPS))]
    assert len(found) == (told is not None) and (told or "") in " ".join(found)


PASSES = "an optimizer step has {} backward passes, not {}".format


@pytest.mark.parametrize(
    ("old", "new", "passes", "updates", "samples"),
    [  # loaded, trained, backward passes
        ((16, 16, 1), (16, 16, 1), None, None, None),
        ((16, 16, 4), (16, 16, 1), None, None, None),  # parts are merged
        ((16, 16, 1), (16, 16, 0.5), PASSES(0.5, 1), None, None),
        ((16, 16, 1), (32, 16, 1), "32 samples are loaded a step, 16 trained on", None, None),
        ((32, 16, 1), (32, 16, 1), None, None, None),
        ((16, 16, 1), (16, 8, 1), None, None, "8 samples are trained on in a step, not 16"),
        ((16, 16, 1), (32, 32, 2), None, f"{PASSES(2, 1)}: 32 samples", "32 samples"),
        ((16, 16, 1), (64, 64, 2), None, None, "64 samples"),  # it is not the passes alone
        ((16, 16, 1), (16, 16, 1.1), None, None, None),
    ],
)
def test_each_difference_of_a_step_is_told_from_the_others(old, new, passes, updates, samples):
    found = [
        find(behaviour.MeanStep(*old), behaviour.MeanStep(*new))
        for find in (behaviour.fewer_passes, behaviour.fewer_updates, behaviour.other_samples)
    ]
    for evidence, words in zip(found, (passes, updates, samples), strict=True):
        assert evidence is None if words is None else evidence.startswith(words)


def test_of_differences_of_a_step_the_first_is_told():
    half = but(trained=[8] * STEPS, loaded=[8] * STEPS, backwards=[0, 1] * (STEPS // 2))
    assert [one.name for one in differences(PLAIN, half)] == ["backward"]
    unseen = but(trained=[0] * STEPS)
    assert "samples" not in [one.name for one in differences(PLAIN, unseen)]


def test_a_run_is_judged_with_all_that_is_between_its_steps():
    given = verdict(old=VALIDATED, new=QUICKLY)
    assert given.run == pytest.approx(5.0)
    assert (
        "a step is 1.000 times as fast" in given.reason
        and "the run" in given.reason
        and "5 times" in given.reason
    )
    assert verdict(old=VALIDATED, new=msgspec.structs.replace(QUICKLY, marked=1)).run is None, (
        "seen too rarely"
    )
    allowing = verdict(old=VALIDATED, new=RARELY)
    assert "--allow evaluations" in allowing.reason and "not 4" in allowing.reason


@pytest.mark.parametrize(
    ("speed", "evaluation", "outcome", "is_told"),
    [(1.0, 1.3, "not faster", False), (1.3, 2.0, "not faster", True), (1.3, 1.0, "faster", False)],
)
def test_of_a_few_evaluations_only_what_is_far_off_or_takes_the_gain_of_steps_is_told(
    speed, evaluation, outcome, is_told
):
    """They scatter, and no interval says by how much."""
    run = {"steps": 1.0, "evaluation": 1.0}
    old = but(evaluations=[3, 7], run=run, **OFTEN)
    new = but(evaluations=[3, 7], run={"steps": 1.0 / speed, "evaluation": evaluation}, **OFTEN)
    given = verdict(speed, old=old, new=new)
    assert given.outcome == outcome and ("the run" in given.reason) == is_told


def test_weights_that_barely_move_do_not_count():
    old, new = (but(moved={"table": 10.0, "bias": bias}) for bias in (0.1, 0.2))
    assert not [*differences(old, new)]
    new = but(moved={"table": 10.0, "head.bias": 0.2})
    assert not [*differences(old, new)], "other names are another model"


@pytest.mark.parametrize(
    ("case", "remedy"),
    [
        ({"facts": {"ended": "they did"}}, "--whole"),
        ({"disturbed": 0.5}, "close other programs, which took 50% of the cores"),
        ({}, "raise --budget"),
    ],
)
def test_one_remedy_is_named_the_one_that_helps(case, remedy):
    reason = verdict(scatter=0.4, **case).reason
    remedies = ("--whole", "close other programs", "raise --budget")
    assert remedy in reason and sum(each in reason for each in remedies) == 1


def test_what_is_shown_has_one_verdict():
    """Rounds that are too few for a small difference are open, and decide a large one."""
    result, given = comparison(10.5, rounds=3), verdict(10.5, rounds=3)
    speed, *_, last = given.sections(result)
    assert speed.startswith("b / a: 10.500× (") and speed.endswith("); 3 interleaved rounds")
    assert last.startswith("Verdict: faster: 10.500 times as fast")


def test_a_difference_that_is_allowed_says_so_next_to_its_mark():
    """A tick next to "more than rounding explains" would contradict itself."""
    result = comparison(2.0, losses=1.1)
    for allowed, mark in (("losses", "✓"), ("", "✗")):
        (table,) = [
            part
            for part in verdict(2.0, losses=1.1, allowed=allowed).sections(result)
            if getattr(part, "title", "") == "Checks"
        ]
        (row,) = [[str(cell) for cell in row] for row in table.rows if row[0] == "losses"]
        assert row[1] == mark and row[2].endswith(": allowed") is bool(allowed)


def test_memory_of_all_processes_is_shown_of_both():
    given = verdict(old=but(memory=2_000_000_000), new=but(memory=500_000_000))
    rows = run_table(given.observed, comparison(), is_whole=False).rows
    assert ["memory of all processes", "2.00 GB", "500 MB"] in [[*row] for row in rows]


def test_steps_in_the_table_divide_to_the_ratio_and_the_rest_is_as_it_was_seen():
    """Disturbed rounds count less in both; the steps that were looked at are of one life of the processes."""
    result = measured(comparison(1.3, scatter=0.2))
    run = {"steps": 9.0, "evaluation": 0.2}
    old, new = but(run=run, run_steps=STEPS), but(run=run | {"steps": 8.9}, run_steps=STEPS)
    rows = {name: cells for name, *cells in run_table({"a": old, "b": new}, result, is_whole=False).rows}
    a, b = (float(text.partition(" ")[0]) for text in rows["steps"])
    assert a / b == pytest.approx(result.ratio.ratio, rel=0.01) and rows["evaluation"] == ["10.0 ms"] * 2
    whole = run_table({"a": old, "b": new}, result, is_whole=True)
    assert whole.rows[0] == ["steps", "9.00 s", "8.90 s"]


def test_the_start_of_a_first_epoch_is_no_part_of_a_step():
    run = {"steps": 9.0, "starts of epochs": 0.1}

    def shown(epochs, is_whole=False, steps=38):
        sides = (but(run=run, run_steps=count, epochs=epochs) for count in (38, steps))
        return run_table(dict(zip("ab", sides, strict=True)), comparison(), is_whole)

    first, second = ({row[0]: row[1] for row in shown(epochs).rows} for epochs in (1, 2))
    assert "starts of epochs" not in first and first["total"] == first["steps"]
    assert second["starts of epochs"] == "2.63 ms" and second["total"] != second["steps"]
    assert "starts of epochs" in [row[0] for row in shown(1, is_whole=True).rows], "a run has it once"
    assert shown(1).note == "Time between steps: averaged over 38 steps."
    assert shown(1, steps=40).note.endswith("over 38 and 40 steps.")


def test_the_sentence_and_the_table_tell_the_same_of_the_run():
    """Steps that were looked at include those of a warm-up, which may be slow in one of both."""
    result = measured(comparison(1.4))
    times = {"steps": 0.3, "evaluation": 4.0}, {"steps": 0.4, "evaluation": 0.02}
    old, new = (but(run=run, run_steps=STEPS, marked=4, evaluations=[3, 7]) for run in times)
    given = MatchResult(result, {"a": old, "b": new}, set()).verdict(0.02)
    table = given.sections(result)[-2]
    rows = {name: cells for name, *cells in table.rows}
    a, b = (float(text.partition(" ")[0]) for text in rows["total"])
    assert given.run == pytest.approx(a / b, rel=0.01)
    assert f"with all that is between steps, {given.run:.3g} times" in given.reason
    assert table.note.endswith("over 20 steps (evaluations in the first 20: 2 and 2).")


def test_an_evaluation_beyond_the_steps_that_both_have_shown_makes_no_side_slower():
    longer = {"steps": 1.0, "evaluation": 6.0}
    shorter = {"steps": 0.85, "evaluation": 2.0}
    old = but(evaluations=[3, 18, 19], run=longer, run_steps=20, marked=3)
    new = behaviour._first_steps(but(evaluations=[3], run=shorter, run_steps=17, marked=3), 17)
    assert verdict(old=old, new=new).run == pytest.approx(1.0)


def test_sides_of_one_script_are_headed_by_what_they_are_and_two_files_are_a_and_b():
    both, one, two = {"a": PLAIN, "b": PLAIN}, measured(comparison()), comparison()
    assert one.a.script == one.b.script and two.a.script != two.b.script
    assert [*run_table(both, one, is_whole=False).columns] == ["for each step", "before", "now"]
    assert [*run_table(both, two, is_whole=True).columns] == ["the whole run", "A", "B"]


def witness_of_a_script():
    return Witness(Script(settings(), None))


def behaviour_of(steps, trained=16):
    """What a witness has kept of a script with so many steps, an evaluation after each 1000, and its size."""
    witness = witness_of_a_script()
    for number in range(steps):
        marks = {"evaluation"} if number % 1000 == 999 else set()
        witness.on_steps([ScriptStep(samples=16, forward_samples=trained, marks=marks)])
    return witness.behaviour(), len(witness._steps)


def test_what_a_rank_tells_from_a_thread_stays_as_it_was_while_its_script_goes_on():
    """Lists that grew before they were sent differed in length."""
    witness = witness_of_a_script()
    step = ScriptStep(samples=16, forward_samples=16, marks={"evaluation", "checkpoint"})
    witness.on_steps([step])
    told = witness.behaviour()
    witness.on_steps([step])
    assert {len(getattr(told, name)) for name in behaviour.PER_STEP} == {1}
    assert (told.steps, told.evaluations, told.checkpoints) == (1, [0], [0])
    assert witness.behaviour().steps == 2


def test_what_is_kept_of_steps_barely_grows_with_their_number_and_tells_as_much(monkeypatch):
    """Of the first steps each is kept, of further ones fewer and fewer, and all are counted."""
    monkeypatch.setattr(behaviour.LIMIT, "full", 200)
    short, few = behaviour_of(1000)
    long, many = behaviour_of(32_000)
    assert many < 4 * few, "32 times as many steps"
    assert (short.steps, long.steps) == (1000, 32_000) and len(long.loaded) < 2000
    assert long.loaded[: len(short.loaded)] == short.loaded, "the same steps are kept of both"
    assert long.samples == 32_000 * 16
    assert len(long.evaluations) == 32 and long.times("evaluations", 1000) == 1
    assert list(differences(long, short)) == []
    assert "samples" in [each.name for each in differences(long, behaviour_of(32_000, 8)[0])]


def test_steps_that_are_kept_lie_side_by_side_so_that_one_without_an_update_is_seen():
    kept = [number for number in range(100_000) if behaviour.is_kept(number)]
    assert kept[:4000] == list(range(4000))
    neighbours = sum(after == before + 1 for before, after in pairwise(kept))
    assert neighbours > 0.9 * len(kept)
    assert kept[-1] > 90_000, "the end is seen, too"


def test_smaller_batches_come_through_fewer_epochs_in_as_many_steps():
    old, new = (msgspec.structs.replace(PLAIN, evaluations=ends) for ends in ([1, 3, 5, 7], [3, 7]))
    new = msgspec.structs.replace(new, loaded=[8] * STEPS, trained=[8] * STEPS)
    assert {one.name for one in differences(old, new)} == {"samples"}


def test_both_sides_of_a_comparison_are_checked_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text("")
    a, b = Launch("a/train.py"), Launch("b/train.py")
    match = two_scripts(a, b, Terms("smoke"))
    assert (match.plan.subject.workload, match.plan.rule.loss_steps) == ("train.py", messages.LOSSES)
    assert (match.a.title, match.b.title, match.allowed) == ("a/train.py", "b/train.py", set())
    one, other = (Launch("a/train.py", ("--size", size)) for size in ("1", "2"))
    match = two_scripts(one, other, Terms("smoke"))
    assert match.a.title == match.b.title == "a/train.py"
    match = with_switches(Launch("a/train.py"), {"batch_size": 8, "compile": True}, Terms("smoke"))
    assert (match.a.title, match.b.title) == ("the unchanged script", "batch_size=8, compile=on")
    assert (match.b.changes["batch_size"], match.allowed) == (8, {"samples", "updates", "losses"})
    assert two_scripts(a, b, Terms(allowed="samples")).allowed == {"samples"}
    with pytest.raises(InvalidValue, match="unknown difference 'sample'"):
        two_scripts(a, b, Terms(allowed=["sample"]))
    with pytest.raises(InvalidValue, match="unknown script 'c.py'"):
        two_scripts(a, Launch("c.py"), Terms())


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({}, "verified: as fast as with"),
        ({"speed": 0.5}, "NOT verified: slower, compared with"),
        ({"speed": 0.14, "disturbed": 0.5}, "NOT verified: slower, compared with"),
        ({"scatter": 0.3}, "NOT verified: undecided"),
        ({"losses": 1.1}, "NOT verified: trains differently"),
    ],
)
def test_a_patch_is_verified_by_a_verdict_only(case, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    found = MatchResult(comparison(**case), {"a": PLAIN, "b": PLAIN}, set())
    monkeypatch.setattr(Match, "compare", lambda *_: found)
    result = edits.Patch(Launch("train.py"), {"workers": 2}, {}, {})
    proof = edits.verify(result, Launch("train.py"), 30.0, Progress())
    assert proof.evidence.startswith(said) and proof.ok == (not case)


@pytest.fixture
def judge(data_dir, monkeypatch):
    """Has the command find this comparison."""

    def judge(result, *options, ends=lambda found, progress: found):
        plan = SimpleNamespace(until=lambda *_: None)
        match = Match(plan, Candidate("a"), Candidate("b"), set())
        found = MatchResult(result, {"a": PLAIN, "b": PLAIN}, set(), is_whole="--whole" in options)
        monkeypatch.setattr(command, "_match", lambda *_: match)
        monkeypatch.setattr(command, "compare_whole", lambda *_: found)
        monkeypatch.setattr(Match, "compare", lambda match, progress, *_: ends(found, progress))
        return CliRunner().invoke(app, ["referee", "old.py", "new.py", *options])

    return judge


@pytest.mark.parametrize(("more", "remedy"), [([], "raise --budget"), (["--whole"], "run it again")])
def test_a_gate_that_cannot_tell_names_a_remedy_that_there_is(more, remedy, judge):
    """With --whole, a budget is refused."""
    result = judge(comparison(0.97, rounds=1, spread=OF_SCRIPTS), "--fail-if-slower", "3%", *more)
    assert result.exit_code == 3 and remedy in " ".join(result.output.split())


@pytest.mark.parametrize("more", [[], ["--whole"]])
def test_the_exit_code_is_the_verdict_s_where_nothing_can_be_stored(more, judge, monkeypatch):
    monkeypatch.setattr(RunStore, "_open", Mock(side_effect=StoreError("it is read-only", "Free it")))
    result = judge(comparison(2.0), *more)
    assert result.exit_code == 0, result.output
    assert ("will not be stored: it is read-only" in result.output) == (not more), "whole runs are not kept"


def test_a_match_that_is_stopped_shows_and_writes_what_was_measured(judge, tmp_path):
    """Nothing was shown of it, nor that it is kept."""

    def stopped(found, progress):
        progress.found = found
        raise KeyboardInterrupt

    file = tmp_path / "found.json"
    result = judge(comparison(scatter=0.4), "--json", str(file), ends=stopped)
    assert result.exit_code == 130
    assert "stopped; what was measured is kept (perfkit runs)\n" in result.output
    assert "\nVerdict: undecided: " in result.output and "let it go on for longer" in result.output
    document = msgspec.json.decode(file.read_bytes())
    assert (document["outcome"], document["exit_code"], document["rounds"]) == ("undecided", 130, 10)


def test_with_a_switch_the_first_program_is_the_script_and_the_rest_are_its_arguments(
    tmp_path, monkeypatch, capsys
):
    """As projects start it whose configurations are files of Python."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "config.py"):
        (tmp_path / name).write_text("")
    match = command._match(["train.py", "config.py", "--fast"], ["workers=2"], False, Terms("smoke"))
    starter = match.plan.source().starter
    assert (starter.launch.program, starter.launch.arguments) == ("train.py", ("config.py", "--fast"))
    assert match.b.program is None and match.b.changes == {"workers": 2}
    assert "python train.py config.py --fast, as it is and with workers=2" in capsys.readouterr().err


def test_two_sides_of_one_title_are_started_each_by_its_own_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    one, other = (Launch("train.py", ("--size", size)) for size in ("1", "2"))
    match = two_scripts(one, other, Terms("smoke"))
    starter = match.plan.source().starter
    started = [(side.program or starter.launch).arguments for side in (match.a, match.b)]
    assert started == [("--size", "1"), ("--size", "2")]


@pytest.mark.parametrize("title", ["old.py", "new.py", "slow"])
def test_a_side_that_is_renamed_is_started_by_its_own_command(title, tmp_path, monkeypatch):
    """The capstone called its slow script as the learner called the edit: the slow side ran the edit."""
    monkeypatch.chdir(tmp_path)
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text("")
    match = two_scripts(Launch("old.py"), Launch("new.py"), Terms("smoke"))
    source = match.plan.source()
    stages = stages_of(match.a._replace(title=title), match.b, source)
    assert stages[0].title == title != stages[1].title
    assert [(stage.program or source.starter.launch).program for stage in stages] == ["old.py", "new.py"]
