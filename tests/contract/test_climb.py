"""The page "Climb it yourself" holds what is recorded, and what is recorded is of today's model."""

import json
import re

import pytest
from msgspec.structs import replace

from docs import climb
from perfkit.results import recordings

MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def predicted():
    """All combinations of the article's switches."""
    return climb.simulated()


def test_the_page_is_made_of_what_is_recorded_and_small():
    text = climb.PAGE.read_text(encoding="utf-8")
    assert text == climb.current(), "run `python -m docs.climb`"
    assert len(text.encode()) <= MOST_BYTES
    assert "</script" not in re.search(r'id="numbers">(.*?)</script>', text, re.DOTALL)[1]


def test_a_text_in_the_numbers_cannot_end_the_script(predicted):
    evil = replace(predicted, about="</script><img src=x>")
    text = climb.page([evil])
    assert "</script><img" not in text
    assert json.loads(re.search(r'id="numbers">(.*?)</script>', text, re.DOTALL)[1])["climbs"]


def test_all_96_combinations_are_there_and_say_why_they_do_not_run(predicted):
    assert predicted.found.keys() == {key for key, _ in climb.combinations(predicted.knobs)}
    assert len(predicted.found) == 96
    lacking = {key for key, shown in predicted.found.items() if shown.why}
    # Batch 1,024 fits into 16 GB only in 16 bits: the same with everything else on or off.
    assert lacking == {key for key in predicted.found if key[2] == "2" and key[4] == "0"}
    assert all("out of memory" in predicted.found[key].why for key in lacking)


def test_what_a_change_gains_is_the_ratio_of_the_rates_and_undone_by_the_way_back(predicted):
    for key, shown in predicted.found.items():
        for other, (ratio, low, high) in shown.next.items():
            there = predicted.found[other]
            assert ratio == pytest.approx(there.samples_per_s / shown.samples_per_s, abs=0.002)
            assert low <= ratio <= high
            assert there.next[key][0] * ratio == pytest.approx(1, abs=0.01)


def test_the_bottleneck_moves(predicted):
    """What the page teaches: AMP and compiling gain nothing while the loader decides, and much later."""
    first, later = predicted.found["000000"].next, predicted.found["110100"].next
    amp, compiled = "000010", "000001"
    assert first[amp][0] < 1 and first[compiled][0] < 1.03  # which saves launches as well
    assert later["110110"][0] > 1.3


@pytest.mark.integration
def test_combinations_are_computed_again_as_they_are_recorded(predicted):
    """Three that run, one of them with workers, whose bars a trace tells; and one that does not fit."""
    some = ["000000", "102010", "112111", "002000"]
    today = climb.simulate(only=some)
    for key in some:
        old = predicted.found[key]
        again = "the model has changed: make recordings ARGS='--only climb'"
        assert today.found[key] == replace(old, gain=[], next={}), again
    assert today.found["112111"].rows["worker"]
    assert today.about == predicted.about


def test_what_was_measured_is_what_the_recorded_ladder_says():
    recorded = recordings.find("cpu-quick")
    runs = {climb.Recipe.from_dict(run.recipe): run for run in reversed(recorded) if run.pairings}
    shown = climb.of_runs(recorded, climb.LADDER, "")
    assert len(shown.found) == 11, "a combination of the ladder is not one of the page's"
    by_key = dict(climb.combinations(climb.LADDER))
    for key, one in list(shown.found.items())[1:]:
        assert one.step_ms == pytest.approx(1e3 * one.samples / one.samples_per_s, rel=0.001)
        ratio = runs[climb.Recipe().replace(**by_key[key])].speedup("baseline")
        assert one.gain == pytest.approx([ratio.ratio, ratio.low, ratio.high], abs=0.001)


@pytest.mark.integration
@pytest.mark.usefixtures("no_orphans")
def test_every_combination_of_a_grid_is_measured_with_the_plain_loop():
    knobs = climb.MEASURED[:1]
    runs = climb.measure(knobs, preset="smoke", minutes=0.02)
    found = climb.of_runs(runs, knobs, "").found
    assert found.keys() == {"0", "1"}
    quiet = {key for key, shown in found.items() if shown.why != "other programs disturbed it"}
    for key in quiet:
        assert found[key].samples_per_s and not found[key].why
        assert found[key].next.keys() == quiet & {*climb.neighbours(key, knobs)}
    assert all(shown.diff for key, shown in found.items() if key != "0")
