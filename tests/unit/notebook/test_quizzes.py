"""Every question has one right answer and reasons; the chapters that ask show all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfkit.errors import InvalidValue
from perfkit.notebook import layout, quizzes

SOURCES = {path.stem[:2]: path for path in (Path(__file__).parents[3] / "notebooks" / "src").glob("*.py")}
ASKING = {*(f"{number:02}" for number in (*range(1, 10), *range(14, 19)))}


def test_the_chapters_that_ask_are_those_that_have_questions() -> None:
    assert set(quizzes.questions()) == ASKING
    for number, path in SOURCES.items():
        called = re.findall(r'pk\.quiz\("(\d\d)"\)', path.read_text(encoding="utf-8"))
        assert called == [number] * (number in ASKING), path.name


@pytest.mark.parametrize("chapter", sorted(ASKING))
def test_each_answer_opens_to_its_reason(chapter: str) -> None:
    asked = quizzes.questions()[chapter]
    shown = quizzes.quiz(chapter).data
    assert 2 <= len(asked) <= 3
    assert shown.count("<b>Right.</b>") == len(asked)
    assert shown.count("<details>") == sum(1 + len(one.wrong) for one in asked)
    for one in asked:
        assert one.question.endswith("?")
        texts = [text for answer in (one.right, *one.wrong) for text in answer]
        assert all(reason.endswith(".") for _, reason in (one.right, *one.wrong))
        assert len(set(texts)) == len(texts)


def test_the_right_answer_is_not_always_at_the_same_place() -> None:
    every = [question for asked in quizzes.questions().values() for question in asked]
    places = [[right for right, _ in question.answers()].index(True) for question in every]
    assert {places.count(place) * 8 > len(places) for place in range(3)} == {True}
    assert places == [[right for right, _ in question.answers()].index(True) for question in every]


def test_code_is_marked_and_markup_is_escaped() -> None:
    assert layout.code_spans("`a < b` & c") == "<code>a &lt; b</code> &amp; c"


def test_a_chapter_without_questions_is_one_clear_message() -> None:
    with pytest.raises(InvalidValue, match="chapter with questions"):
        quizzes.quiz("99")
