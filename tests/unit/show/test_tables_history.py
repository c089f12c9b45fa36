"""The history as rows: names, numbers, and what changed since which run."""

from __future__ import annotations

import csv
import io

from perfkit.results.index import Marks, entry
from perfkit.results.store import History
from perfkit.show import tables, tables_history
from tests.unit.show.fake_runs import session


def history(**marks: Marks) -> History:
    runs = [run for run in session() if run.status == "ok"][:4]
    by_id = {f"fake-{stage}": mark for stage, mark in marks.items()}
    return History([entry(run) for run in reversed(runs)], by_id, 0)


def test_a_row_says_the_same_as_the_ladder_and_what_changed_since_which_run() -> None:
    rows = {row.stage: row for row in tables_history.lines(history())}
    ladder = {cells[0]: cells for cells in map(tables.row, session())}
    batch = rows["batch_size"]
    assert batch.rate == ladder["batch size"][1]
    assert batch.ratio.split()[0] in ladder["batch size"][3]
    assert batch.changes == ["Batch size 128", "Loader workers 2"] and batch.since == "data loading"
    assert rows["baseline"].since == "" and rows["baseline"].ratio == "–"


def test_what_people_wrote_is_shown_and_their_lineage_comes_first() -> None:
    marks = Marks("mine", True, "at night", "fake-baseline")
    given = history(uint8_copy=marks, batch_size=Marks("big"))
    rows = {row.stage: row for row in tables_history.lines(given)}
    own = rows["uint8_copy"]
    assert (own.name, own.star, own.note, own.since) == ("mine", True, "at night", "baseline")
    assert "uint8 copy on" in own.changes and "Batch size 128" in own.changes
    without = rows["batch_size"]
    assert (without.name, without.since) == ("big", "data loading")


def test_the_spreadsheet_has_plain_numbers_and_no_formulas() -> None:
    given = history(amp=Marks(), batch_size=Marks("=1+1", False, "-x"))
    rows = list(csv.DictReader(io.StringIO(tables_history.as_csv(given))))
    assert len(rows) == len(given.entries)
    rate = given.entries[0].samples_per_s
    assert rate and float(rows[0]["samples_per_s"]) == rate.value
    big = next(row for row in rows if row["stage"] == "batch_size")
    assert (big["name"], big["note"], big["batch_size"]) == ("'=1+1", "'-x", "128")
