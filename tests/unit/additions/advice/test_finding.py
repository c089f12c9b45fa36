"""What a finding is worth, how it is said, and which warnings of a script are worth repeating."""

from types import SimpleNamespace

import jinja2
import pytest

from perfkit import lookup
from perfkit.additions.advice import finding
from perfkit.additions.advice.finding import Finding, advice_table, warnings_of
from perfkit.additions.scripts import report
from perfkit.process.failures import PACKAGE
from perfkit.results.stats import Ratio

FASTER = Ratio(1.3, 1.2, 1.4, "faster")


def found(**about):
    return Finding("a cause", "evidence", "change", **about)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"share": 0.5}, "up to about 2×"),
        ({"share": 0.999}, "up to about 100×"),  # a share is never known so well
        ({"share": 0.5, "limit": "at least"}, "at least 2×"),
        ({"share": 0.5, "limit": ""}, "measure to find out"),
        ({}, "measure to find out"),
        ({"kind": "memory"}, "less memory"),
        ({"kind": "data"}, "correct training"),
        ({"kind": "waste"}, "measure to find out"),
        ({"share": 0.5, "measured": FASTER}, ", measured"),
    ],
)
def test_the_gain_is_measured_or_bound_by_the_share_or_named(about, words):
    assert words in found(**about).expected()
    (row,) = advice_table([found(**about)]).rows
    assert words in str(row[2])


@pytest.mark.parametrize(
    ("measured", "helps"),
    [
        (None, True),
        (FASTER, True),
        (Ratio(1.04, 1.02, 1.06, "faster"), False),
        (Ratio(1.2, 0.9, 1.5, "undecided"), True),
        (Ratio(1.06, 0.99, 1.13, "no measurable difference"), False),
        (Ratio(0.9, 0.85, 0.95, "slower"), False),
    ],
)
def test_what_was_tried_and_gained_nothing_is_suggested_no_more(measured, helps):
    assert found(settings={"workers": 2}, measured=measured).may_help == helps


@pytest.mark.parametrize(
    ("about", "comes_first"),
    [
        ({"share": 0.06}, True),
        ({"share": 0.04}, False),
        ({"share": 0.06, "settings": {"workers": 2}}, False),
        ({"share": 0.1, "settings": {"workers": 2}}, True),
        ({"settings": {"workers": 2}, "measured": FASTER}, True),
        ({"urgency": 0.5}, True),
        ({}, False),
    ],
)
def test_a_cause_may_be_said_first_with_half_of_what_a_switch_needs(about, comes_first):
    assert found(**about).is_worth_a_sentence == comes_first


def test_a_finding_in_words_names_its_place_if_there_is_one():
    seen = SimpleNamespace(evidence=SimpleNamespace(one_thread=False))
    gains = " Removing it would make the run at most 2× as fast."
    first = report.SENTENCES.first
    assert first(seen, found(where="t.py:7", share=0.5)) == f"t.py:7: evidence. Remedy: change.{gains}"
    assert first(seen, found()) == "evidence. Remedy: change."


def test_nothing_found_is_said():
    assert advice_table([]).note == "Nothing observed suggests a change."


def test_each_warning_is_repeated_once_and_no_more_than_a_dozen():
    lines = [
        "epoch 1",
        "/home/me/train.py:3: UserWarning: twice",
        "/home/me/train.py:3: UserWarning: twice  ",
        "W torch._dynamo hit config.recompile_limit (8)",
        "a line about a Warning: of its own",
    ]
    assert warnings_of(lines) == [lines[1], lines[3]]
    assert len(warnings_of(f"t.py:{number}: UserWarning: one" for number in range(50))) == 12
    repeated = [f"t.py:7: UserWarning: step {number} took {number / 7:.3f} s" for number in range(50)]
    assert warnings_of(repeated) == repeated[:1]


def test_what_torch_says_of_an_error_while_a_look_was_on_is_no_warning_of_the_script():
    said = "/t.py:7: UserWarning: Error detected in MulBackward0. Traceback of forward call that caused the error:"
    assert warnings_of([said]) == []


def test_a_warning_of_what_perfkit_wraps_is_not_at_a_line_of_perfkit():
    said = "FutureWarning: `broadcast_buffers` is deprecated"
    assert warnings_of([f"{PACKAGE}/additions/ranks/ddp.py:151: {said}"]) == [said]


TABLES = {
    "causes": "ranks",
    "outside": "scripts.causes",
    "steps": "scripts.causes",
    "loading": "scripts.causes",
}


@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_a_table_is_two_sentences_that_can_be_filled_and_its_kind(name):
    rows = lookup.toml(f"perfkit.additions.{TABLES[name]}", name)
    rows.pop("limits", None)
    assert len(rows) > 5
    for cause, row in rows.items():
        assert {"seen", "change"} <= row.keys() <= {"seen", "change", "kind", "urgency", "limit"}, cause
        assert row.get("kind", "time") in ("time", "waste", "memory", "data"), cause
        for text in (row["seen"], row["change"]):
            finding._SENTENCES.from_string(text)  # an error of its syntax, or an unknown filter
            assert not text.removesuffix("...").endswith("."), f"{cause}: words follow it"


def test_a_fact_that_is_missing_is_an_error_and_not_a_gap_in_a_sentence():
    causes = finding.Causes("perfkit.additions.scripts.causes.outside")
    with pytest.raises(jinja2.UndefinedError):
        causes.found("evaluation", share=0.5)
    with pytest.raises(KeyError):
        causes.found("no such cause")
