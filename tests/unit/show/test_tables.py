"""The table: one row a run, plain cells, n/a where nothing was measured."""

from __future__ import annotations

import msgspec
import pytest

from perfkit.results.parity import Check, Parity
from perfkit.results.run import Raw, Run
from perfkit.show import tables
from tests.unit.show.fake_runs import again, disturbed, session


def test_cells_of_a_measured_stage() -> None:
    cells = dict(zip(tables.COLUMNS, tables.row(session(gpu=True)[3]), strict=True))
    assert cells["stage"] == "batch size"
    assert cells["samples/s"].startswith("4,5")
    assert cells["× previous"].endswith("faster")
    assert cells["× baseline"].startswith("11.")
    assert cells["waits for data"] == "2%"
    assert cells["step time"].startswith("111 ms (")
    assert cells["pipeline efficiency"] == "95%"
    assert cells["peak memory"] == "11.3 GB"
    assert cells["bytes/sample"] == "602,112 B"
    assert cells["note"] == "1 warning"


def test_the_baseline_has_nothing_before_it() -> None:
    assert tables.row(session()[0])[2:4] == ["–", "–"]


@pytest.mark.parametrize(("at", "word"), [(2, "n/a"), (9, "failed")])
def test_a_stage_without_numbers_says_why_and_has_no_zero(at: int, word: str) -> None:
    cells = tables.row(session()[at])
    assert cells[1] == word
    assert cells[2:-1] == ["n/a"] * (len(cells) - 3)
    assert cells[-1].startswith(f"{word}: ")


def test_partial_values_of_a_failed_run_are_not_shown() -> None:
    failed = msgspec.structs.replace(session()[0], status="failed", reason="killed")
    assert set(tables.row(failed)[2:-1]) == {"n/a"}


def test_a_run_with_no_values_at_all() -> None:
    empty = Run(id="x", session="s", created="", stage="s", workload="w", device="cpu", recipe={}, raw=Raw())
    assert tables.row(empty)[-1] == "n/a: nothing was measured"
    assert "0" not in "".join(tables.row(empty))


def test_bytes_that_cross_are_told_apart_from_those_of_the_batch() -> None:
    run = msgspec.structs.replace(session(gpu=True)[0], h2d_bytes_per_sample=0)
    assert tables.bytes_per_sample(run) == "602,112 B (0 B cross)"


def test_a_disturbed_row_is_marked_in_its_cells_and_its_note() -> None:
    runs = disturbed(again(session()))
    for cells in (tables.row(run) for run in (runs[1], runs[-1])):
        assert [cell[-2:] for cell in (cells[1], cells[3])] == [" !", " !"]
        assert cells[-1].startswith("disturbed; 1 warning")
    assert tables.ladder(runs).note == "!: disturbed"
    contents = tables.sections(runs)
    kinds = [type(one).__name__ for one in contents]
    assert kinds.index("Notice") < kinds.index("Table"), "the notice stands above the table"
    assert "Notice" not in [type(one).__name__ for one in tables.sections(session())]


def test_in_a_notebook_two_columns_that_say_the_same_are_one() -> None:
    runs = again(session()[:2])
    pair, more = tables.short_ladder(runs), tables.short_ladder(session())
    assert "× previous" not in pair.columns
    assert "× baseline" in pair.columns
    assert set(pair.columns) - set(tables.short_ladder(runs, large=True).columns) == {"step time", "note"}
    before = [msgspec.structs.replace(runs[0], title="before"), *runs[1:]]
    assert "× before" in tables.short_ladder(before).columns
    named = [msgspec.structs.replace(runs[0], title="a name of one's own"), *runs[1:]]
    assert "× baseline" in tables.short_ladder(named).columns
    assert "× previous" in more.columns
    assert "pipeline efficiency" not in more.columns


def test_the_baseline_again_is_a_row_but_no_stage() -> None:
    runs = again(session(gpu=True))
    cells = dict(zip(tables.COLUMNS, tables.row(runs[-1]), strict=True))
    assert cells["× previous"] == "–"
    assert cells["× baseline"].endswith(" A/A")
    assert "A/A: equal processes" in tables.ladder(runs).note
    assert tables.summary(runs) == tables.summary(runs[:-1])
    assert tables._changes(runs) == tables._changes(runs[:-1])


def test_evidence_of_a_run_and_of_its_training_is_one_table() -> None:
    run = session()[4]
    parity = Parity("AMP", "bitwise", [Check("losses", False, "0.1 apart")], False, {})
    rows = tables.evidence_of(run, parity).rows
    assert [row[0] for row in rows] == ["uint8_copy", "workers", "losses"]
    assert rows[-1][1] == "NOT the same"
    assert tables.evidence_of(session()[2], parity).note.startswith("n/a: Pin memory")
