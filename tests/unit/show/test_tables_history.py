"""The history as rows: names, numbers, and what changed since which run."""

from typing import Any

from msgspec.structs import replace

from perfkit.results.store import Entry, entry
from perfkit.show import tables_history
from tests.unit.show.fake_runs import session


def history(**marks: dict[str, Any]) -> list[Entry]:
    runs = [run for run in session() if run.status == "ok"][:4]
    return [replace(entry(run), **marks.get(run.stage, {})) for run in reversed(runs)]


def test_a_row_says_what_was_measured_and_what_changed_since_which_run() -> None:
    rows = {row.stage: row for row in tables_history.lines(history())}
    batch = rows["batch_size"]
    run = next(run for run in session() if run.stage == "batch_size")
    assert run.samples_per_s and batch.rate_value == run.samples_per_s.value
    assert batch.rate.startswith(f"{batch.rate_value:.0f}")
    assert "faster" in batch.ratio or "▲" in batch.ratio
    assert batch.changes == ["Batch size 128", "Loader workers 2"] and batch.since == "data loading"
    assert rows["baseline"].since == "" and rows["baseline"].ratio == "–"


def test_what_people_wrote_is_shown_and_their_lineage_comes_first() -> None:
    written = {"name": "mine", "note": "at night", "parent": "fake-baseline"}
    rows = {
        row.stage: row
        for row in tables_history.lines(history(uint8_copy=written, batch_size={"name": "big"}))
    }
    copied = rows["uint8_copy"]
    assert (copied.name, copied.note, copied.since) == ("mine", "at night", "baseline")
    assert "uint8 copy on" in copied.changes and "Batch size 128" in copied.changes
    assert (rows["batch_size"].name, rows["batch_size"].since) == ("big", "data loading")
