"""The terminal: whole pages as golden texts, fewer columns where it is narrow, nothing taken for markup."""

import pytest

from perfkit.show import tables, terminal
from perfkit.show.document import Bullets, Cell, Code, Section, Table
from tests.unit.show.fake_runs import again, disturbed


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_of_a_session(width, golden):
    golden(f"session_{width}", terminal.text(tables.report(again()), width))


@pytest.mark.parametrize("width", [30, 60, 100])
def test_no_line_is_longer_than_the_terminal(width):
    kernels = Table(("kernel", "time"), [["void at::native::" + 60 * "k", Cell(1.5)]])
    text = terminal.text([tables.ladder(disturbed(again())), kernels], width)
    assert max(map(len, text.splitlines())) <= width


def test_nothing_from_outside_is_taken_for_markup_or_moves_the_cursor():
    evil = "[red]x[/] \x1b[2J\x07"
    parts = [evil, Bullets([evil]), Code(evil), Section(evil, [Table((evil,), [[evil]])])]
    shown = terminal.text(parts, 200)
    assert shown.count("[red]x[/]") == 6
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_no_word_is_cut_off_where_every_column_is_as_narrow_as_its_words():
    cells = ["a" * 14, "9.99×", "(0.42–3.06), disturbed", "optimizer_impl=fused", "its work is 4% of a step"]
    lines = terminal.text([Table(["what", "predicted", "measured", "set", "why"], [cells])], 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert sorted(" ".join(lines[2:]).split()) == sorted(" ".join(cells).split())


def test_code_keeps_its_tabs_and_loses_control_characters():
    assert (
        terminal.text([Code("+\tif a:\n+\t\tb\x1b[31m", "diff")]) == "+       if a:\n+               b [31m\n"
    )
