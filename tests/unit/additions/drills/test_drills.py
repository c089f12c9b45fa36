"""Drills: a card's answers follow from its recording, a click is enough, and the first answer counts."""

import itertools
import re
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from IPython.utils.capture import capture_output

from perfkit import notebook as pk
from perfkit.additions.drills import cards, score
from perfkit.additions.drills.cards import Ratio
from perfkit.additions.drills.panel import FIRST, LIMIT, Drill
from perfkit.additions.drills.score import Given
from perfkit.additions.lanes.figures import Bar, DrawnSide
from perfkit.additions.shared import kept
from perfkit.errors import InvalidValue
from perfkit.show import terminal
from tests.unit.notebook.conftest import _apart  # noqa: F401

ROOT = Path(__file__).parents[4]
CARDS = [cards.card(number) for number in range(1, len(cards.asked()) + 1)]
each_card = pytest.mark.parametrize("card", CARDS, ids=lambda card: str(card.number))
TIMES = itertools.count()
KERNELS = {"batch_size", "amp", "channels_last", "compile", "cpu_threads"}
"""Switches that change how long kernels take."""


def test_two_cards_are_in_the_first_chapter_one_in_each_of_the_next_and_two_at_the_end():
    assert [card.asked.chapter for card in CARDS] == ["01", "01", "02", "03", "04", "05", "08", "08"]
    for card in CARDS:
        (source,) = (ROOT / "notebooks" / "src").glob(f"{card.asked.chapter}_*.py")
        assert f"pk.drill({card.number})" in source.read_text(encoding="utf-8")


@each_card
def test_a_card_is_a_recording_with_one_best_answer(card):
    asked, recorded = card.asked, card.recorded
    assert recorded.gains.keys() == asked.tries.keys() and len(asked.tries) == 3
    before, after = recorded.lanes.sides
    assert (before.title, after.title) == ("before: this loop", f"after: {recorded.best}")
    assert recorded.source.startswith("Simulated: " if asked.device.startswith("sim:") else "Recorded ")
    second, best = sorted(gain.ratio for gain in recorded.gains.values())[1:]
    assert best > 1.04 * second
    assert 1.0 <= recorded.bound < 9.0, "the slider ends there"


@each_card
def test_what_leaves_the_kernels_as_they_are_gains_no_more_than_the_bound(card):
    for name, changes in card.asked.tries.items():
        if not KERNELS & changes.keys():
            assert card.recorded.gains[name].low <= 1.1 * card.recorded.bound, name


def test_the_cards_have_more_than_one_limit():
    assert {card.recorded.limit for card in CARDS} >= {"data", "transfer", "device"}


@pytest.mark.parametrize(
    ("kernels", "host", "limit"),
    [
        ([(1, 10), (11, 20)], [(0, 1, "load"), (10, 11, "load")], "device"),
        ([(6, 10), (16, 20)], [(0, 6, "load"), (10, 16, "load")], "data"),
        ([(6, 10), (16, 20)], [(0, 5, "launch"), (10, 16, "launch")], "host"),
    ],
)
def test_what_limits_a_step_is_read_from_its_rows(kernels, host, limit):
    rows = {"kernels": [Bar(*span, "compute") for span in kernels], "host": [Bar(*bar) for bar in host]}
    assert cards.limit(DrawnSide(title="", step_ms=10.0, rows=rows)) == limit


@pytest.mark.parametrize(("waits_for", "limit"), [("copy", "transfer"), ("data", "data")])
def test_a_copy_in_the_gap_is_a_transfer_unless_the_host_waits_for_data_for_longer(waits_for, limit):
    rows = {
        "kernels": [Bar(6, 10, "compute"), Bar(16, 20, "compute")],
        "host": [Bar(0, 6, "wait", words=waits_for), Bar(10, 16, "wait", words=waits_for)],
        "copy": [Bar(2, 6, "copy"), Bar(12, 16, "copy")],
    }
    assert cards.limit(DrawnSide(title="", step_ms=10.0, rows=rows)) == limit


def buttons(drill):
    """The buttons of a card by their words, without the mark of a chosen one."""
    found = {}

    def walk(widget):
        if type(widget).__name__ == "Button":
            found[widget.description.removeprefix("✓ ")] = widget
        for child in getattr(widget, "children", ()):
            walk(child)

    walk(drill.widget)
    return found


def show(drill, bound=""):
    """Presses *Show the answer* on a page that has a bound, as `button.html` does."""
    drill.pressed.value = f"{bound} {next(TIMES)}"


def answered(number, right=True, factor=1.0):
    """A card that was answered by clicks."""
    drill = pk.drill(number)
    recorded = drill.card.recorded
    wrong = next(name for name in drill.card.asked.tries if name != recorded.best)
    press = buttons(drill)
    press[cards.LIMITS[recorded.limit]].click()
    press[recorded.best if right else wrong].click()
    drill.bound.value = round(factor * recorded.bound, 1)
    show(drill)
    return drill


def test_a_card_asks_shows_what_was_measured_and_keeps_the_first_answer(data_dir):
    drill = pk.drill(3)
    press = buttons(drill)
    show(drill)
    assert LIMIT in drill.error.value and FIRST in drill.error.value and not drill.result.value
    press["the host"].click()
    press["the data"].click()
    marked = [button.description for button in press.values() if button.description.startswith("✓")]
    assert marked == ["✓ the data"]
    show(drill)
    assert FIRST in drill.error.value and LIMIT not in drill.error.value
    assert score.load() == {}
    first = answered(3, right=False)
    assert "2 of 3 points" in first.result.value and not first.error.value
    second = answered(3)
    assert "3 of 3 points" in second.result.value
    assert score.load()[3].first != second.card.recorded.best, "the first answer counts"


def test_the_bound_on_the_page_is_the_answer_though_the_kernel_has_not_had_it_yet(data_dir):
    """While a cell runs, the page keeps what a slider says, and that comes after the click."""
    drill = pk.drill(3)
    for name in (cards.LIMITS["data"], "8 workers"):
        buttons(drill)[name].click()
    show(drill, bound="2.4")
    assert score.load()[3].bound == drill.bound.value == 2.4
    show(drill, bound="1000")
    assert drill.bound.value == drill.bound.max


def test_answers_of_two_notebooks_are_both_kept_and_one_that_cannot_be_kept_is_told(data_dir, monkeypatch):
    second = threading.Thread(target=score.keep, args=(2, Given("data", "8 workers", 2.0)))
    load = score.load

    def slowly():
        found = load()
        if not second.ident:
            second.start()  # the other notebook, between reading and writing
            second.join(0.5)
        return found

    monkeypatch.setattr(score, "load", slowly)
    score.keep(1, Given("data", "8 workers", 2.0))
    second.join()
    assert load().keys() == {1, 2}
    monkeypatch.setattr(kept.filelock, "FileLock", Mock(side_effect=PermissionError(13, "Permission denied")))
    drill = answered(3)
    assert "Your answer is not kept: " in drill.error.value and "3 of 3 points" in drill.result.value


def test_the_score_has_all_cards_and_says_in_which_direction_bounds_are_wrong(data_dir):
    assert "No drill is answered yet" in repr(pk.drills())
    answered(2, factor=2.0)
    answered(3, right=False, factor=1.5)
    said = repr(pk.drills())
    assert "3 of 6 points; 2 of 8 drills answered" in said
    assert "too high as a rule" in said
    assert {2, 3} == {*pk.drills().found}


def test_points_of_a_bound_are_for_what_is_close():
    card = CARDS[1]
    recorded = card.recorded
    for factor, is_right in ((0.7, False), (0.9, True), (1.0, True), (1.15, True), (1.3, False)):
        given = Given(recorded.limit, recorded.best, factor * recorded.bound)
        assert score.points(card, given) == [True, True, is_right]


@pytest.mark.parametrize("number", [0, 9])
def test_there_is_no_such_card(number):
    with pytest.raises(InvalidValue, match="from 1 to 8"):
        pk.drill(number)


def test_a_page_without_a_kernel_has_the_picture_the_questions_and_a_folded_answer(shell, monkeypatch):
    def shown():
        with capture_output() as output:
            shell.run_cell("from perfkit import notebook as pk\npk.drill(3)")
        return output.outputs[-1].data

    data = shown()
    assert "application/vnd.jupyter.widget-view+json" in data
    page = data["text/html"]
    assert page.index("<svg") < page.index("<details") < page.index(CARDS[2].asked.why)
    assert "What limits this step" in data["text/plain"]
    monkeypatch.setattr("perfkit.additions.drills.panel.in_colab", lambda: True)
    assert "text/html" not in shown()


def test_what_is_told_has_the_numbers_of_the_recording():
    card = CARDS[2]
    told = terminal.text(score.told(card, None))
    assert card.recorded.best in told and f"{card.recorded.bound:.2f}×" in told and "points" not in told
    ratios = re.findall(r"~(\d\.\d+)×", told)
    assert len(ratios) == 3 and all(isinstance(gain, Ratio) for gain in card.recorded.gains.values())
    assert isinstance(Drill(card).title, str)


@pytest.mark.parametrize("damaged", ["[{", '{"1": {"limit": "data", "first": "8 workers", "bound": 0.0}}'])
def test_damaged_answers_are_told_with_what_to_do(data_dir, damaged):
    score.keep(1, Given("data", "8 workers", 2.0))
    (data_dir / "drills.json").write_text(damaged)
    with pytest.raises(InvalidValue, match=r"drills.json is damaged.*Move it away"):
        pk.drills()
