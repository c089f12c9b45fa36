"""The terminal: fewer columns where it is narrow, whole words everywhere, nothing taken for markup."""

from __future__ import annotations

import pytest

from perfkit.show import tables, terminal
from perfkit.show.document import Bullets, Code, Section, Table
from tests.unit.show.fake_runs import again, disturbed, session
from tests.unit.show.test_document import BOTH

WIDE = Table(
    ("stage", "samples/s", "pipeline efficiency", "note"),
    [["data loading", "24.9 (24.6–25.2)", "95%", "the step still waits for its data"]] * 2,
    "The ladder", "≈ no measurable difference", narrow=("stage", "samples/s"),
)  # fmt: skip


@pytest.mark.parametrize("width", [24, 30, 40, 50, 60, 80, 140])
def test_no_line_is_too_long_and_no_word_is_broken(width: int) -> None:
    text = terminal.text([WIDE], width)
    assert max(map(len, text.splitlines())) <= width
    sentences = [WIDE.title, WIDE.note, "Too narrow for:", *WIDE.columns, *WIDE.rows[0]]
    whole = {word for sentence in sentences for word in sentence.split()}
    assert {word.rstrip(",.") for word in text.replace("─", "").split()} <= whole


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_ladder_with_disturbed_rows_and_the_baseline_again_breaks_no_word(width: int) -> None:
    ladder = tables.ladder(disturbed(again(session())))
    text = terminal.text([ladder], width)
    assert max(map(len, text.splitlines())) <= width
    cells = [
        ladder.title,
        ladder.note,
        "Too narrow for:",
        *ladder.columns,
        *(c for row in ladder.rows for c in row),
    ]
    whole = {word for cell in cells for word in cell.split()}
    assert {word.rstrip(",.") for word in text.replace("─", "").split()} <= whole | {
        w.rstrip(",.") for w in whole
    }
    assert text.count("!") >= 2 * 8, "narrow or not, disturbed rows are marked"


def test_a_narrow_terminal_has_fewer_columns_and_says_which_are_missing() -> None:
    assert "note" in terminal.text([WIDE], 80)
    narrow = terminal.text([WIDE], 32)
    assert "95%" not in narrow
    assert "Too narrow for: pipeline" in narrow


def test_folded_details_and_figures_are_for_pages() -> None:
    text = terminal.text(BOTH)
    assert "Results" in text
    assert "More" not in text
    assert "dot" not in text


def test_nothing_from_outside_is_taken_for_markup_or_moves_the_cursor() -> None:
    evil = "[red]x[/] \x1b[2J\x07"
    shown = terminal.text([evil, Bullets([evil]), Code(evil), Section(evil, [Table((evil,), [[evil]])])], 200)
    assert shown.count("[red]x[/]") == 6
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_a_table_without_rows_says_why() -> None:
    assert terminal.text([Table(("a",), [], "Kernels", "no accelerator")]) == "Kernels: no accelerator\n"
