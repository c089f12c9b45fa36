"""The one shape: what is numeric, what is kept in a narrow place, how a part is looked up."""

from __future__ import annotations

import pytest

from perfkit.errors import InvalidValue
from perfkit.show import document, style
from perfkit.show.document import Figure, Section, Table

STAGES = Table(
    ("stage", "samples/s", "× previous", "note"),
    [["baseline", "16.2 (16.0–16.4)", "–", ""], ["AMP", "n/a", "1.5× faster", "2 of 3 rounds"]],
    "The ladder", narrow=("stage", "× previous"),
)  # fmt: skip
DOT = Figure("dot", "A dot", "a dot at 1", lambda ax, ink: ax.plot(1, 1, "o", color=ink))
BOTH = ["text", Section("Results", [STAGES, Section("More", [DOT], folded=True)])]


def test_a_column_of_numbers_and_absent_values_is_numeric() -> None:
    assert STAGES.numeric == [False, True, True, False]
    assert Table(("a", "b"), [["1", "x"], ["2", "3"]]).numeric == [False, False]
    assert Table(("a", "b", "c"), [["x", "n/a", ""]]).numeric == [False, True, False]


def test_only_some_columns() -> None:
    assert STAGES.only(STAGES.narrow).rows == [["baseline", "–"], ["AMP", "1.5× faster"]]


def test_parts_are_looked_up_by_the_beginning_of_their_title() -> None:
    assert document.table(BOTH, "the lad") is STAGES
    assert document.figure(BOTH, "dot") is DOT
    with pytest.raises(InvalidValue, match="The ladder"):
        document.table(BOTH, "tea")


def test_a_figure_is_drawn_for_its_page_and_described() -> None:
    dark = DOT.draw(dark=True, large=True)
    assert dark.get_label() == "a dot at 1"
    assert dark.axes[0].lines[0].get_color() == style.ink(dark=True)
    assert dark.get_figwidth() > DOT.draw().get_figwidth()


def test_a_figure_of_nothing_says_why() -> None:
    empty = Figure("dot", "A dot", "nothing", lambda ax, ink: ax.plot(), nothing="No dot was measured.")
    texts = [text.get_text() for text in empty.draw().axes[0].texts]
    assert texts == ["No dot was measured."]
