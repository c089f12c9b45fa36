"""The page of predictions: every one beside its result, and no more said than so few of them show."""

from __future__ import annotations

from perfkit.notebook.shown import Shown
from perfkit.show import calibration, document
from tests.unit.results.test_guesses import guess

SOME = [
    guess(1.5, 1.4, 1.6, stage="data_loading", confidence=70),
    guess(2.0, 1.0, 1.1, "no measurable difference", stage="<b>own</b>", confidence=90, device="sim:v100"),
    guess(1.0, 0.7, 1.4, "too few rounds", stage="amp"),
]


def test_every_prediction_stands_beside_its_result() -> None:
    bundle = Shown(SOME, calibration.sections(SOME))._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain", "image/png"}
    text = bundle["text/plain"]
    assert "1 of 2 predictions that can be judged hold" in text
    assert "show little" in text
    assert "sim:v100, quick" in text
    assert "<b>own" not in bundle["text/html"]
    rows = document.table(calibration.sections(SOME), "Your predictions").rows
    assert [row[4] for row in rows] == ["yes", "no", "open"]


def test_panel_and_board_judge_by_the_same_rule() -> None:
    words = [calibration.judgement(one.times, one.result) for one in SOME]
    assert words == ["within a fifth", "off by a factor of 1.91", "open, the rounds cannot tell"]


def test_without_predictions_it_says_how_to_make_one() -> None:
    (sentence,) = calibration.sections([])
    assert "press Predict" in str(sentence)
