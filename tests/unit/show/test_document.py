"""The content model: typed cells, declared tables."""

from types import SimpleNamespace

from perfkit.results.stats import Estimate
from perfkit.show import units
from perfkit.show.document import Cell, Col, tabulate

COLUMNS = (
    Col("stage", "stage"),
    Col("rate", "rate", units.interval),
    Col("share", lambda run: run.share, units.percent),
    Col("note", lambda run: "2 workers" if run.share else ""),
)


BASELINE = SimpleNamespace(stage="baseline", rate=Estimate(16.2, 16, 16.4), share=0.4)
THINGS = [BASELINE, SimpleNamespace(stage="AMP", rate=None, share=None)]
TABLE = tabulate(COLUMNS, THINGS, "The ladder")


def test_alignment_follows_from_types_not_from_text():
    assert TABLE.numeric == [False, True, True, False], "'2 workers' is text"
    assert tabulate((Col("a", str), Col("b", lambda _: Cell(None))), [1]).numeric == [False, True]


def test_a_table_without_rows_says_why():
    assert tabulate(COLUMNS, [], none="no stage").note == "no stage"
