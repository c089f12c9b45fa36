"""The content model: typed cells, declared tables, figures under one theme."""

from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex

from perfkit.results.stats import Estimate
from perfkit.show import units
from perfkit.show.document import Cell, Col, tabulate
from perfkit.show.style import BLUE, Figure, Look, Row
from tests.unit.show.test_figures import drawn

COLUMNS = (
    Col("stage", "stage"),
    Col("rate", "rate", units.interval),
    Col("share", lambda run: run.share, units.percent),
    Col("note", lambda run: "2 workers" if run.share else ""),
)


BASELINE = SimpleNamespace(stage="baseline", rate=Estimate(16.2, 16, 16.4), share=0.4)
THINGS = [BASELINE, SimpleNamespace(stage="AMP", rate=None, share=None)]
TABLE = tabulate(COLUMNS, THINGS, "The ladder")
DOT = Figure("dot", "A $dot$", [Row("$x$", [(1.0, Look("$x$", BLUE))])], "$x$")


def test_alignment_follows_from_types_not_from_text():
    assert TABLE.numeric == [False, True, True, False], "'2 workers' is text"
    assert tabulate((Col("a", str), Col("b", lambda _: Cell(None))), [1]).numeric == [False, True]


def test_a_table_without_rows_says_why():
    assert tabulate(COLUMNS, [], none="no stage").note == "no stage"


@pytest.mark.parametrize(("dark", "ink"), [(False, "#212223"), (True, "#dedfe1")])
def test_a_figure_has_the_ink_of_its_page_and_its_dollars_are_no_formulas(dark, ink):
    drawing = drawn(DOT, dark)
    (axes,) = drawing.axes
    assert {to_hex(text.get_color()) for text in axes.get_xticklabels()} == {ink}
    assert drawing.get_suptitle() == "A $dot$"
    assert not axes.title.get_parse_math()
