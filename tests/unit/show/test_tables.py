"""The table of a session: n/a where nothing was measured; the golden pages of the terminal hold its cells."""

import msgspec
import pytest

from perfkit.results.parity import Check, Parity
from perfkit.results.run import Raw, Run
from perfkit.show import document, tables
from perfkit.show.document import Notice, Table
from tests.unit.show.fake_runs import again, disturbed, session


def cells(run: Run) -> dict[str, str]:
    table = tables.ladder([run])
    return dict(zip(table.columns, map(str, table.rows[0]), strict=True))


def test_cells_of_a_measured_stage_on_a_gpu() -> None:
    row = cells(session(gpu=True)[3])
    assert row["× previous"].endswith(" ▲")
    assert (row["pipeline efficiency"], row["peak memory"], row["note"]) == ("95%", "11.3 GB", "1 warning")
    assert row["bytes/sample"] == "602,112 B"
    elsewhere = msgspec.structs.replace(session(gpu=True)[0], h2d_bytes_per_sample=0)
    assert cells(elsewhere)["bytes/sample"] == "602,112 B, 0 B copied"


@pytest.mark.parametrize(("at", "word"), [(2, "n/a"), (9, "failed")])
def test_a_stage_without_numbers_says_why_and_has_no_zero(at: int, word: str) -> None:
    _, rate, *values, note = cells(session()[at]).values()
    assert rate == word
    assert set(values) == {"n/a"}
    assert note.startswith(f"{word}: ")


def test_partial_values_of_a_failed_run_are_not_shown() -> None:
    failed = msgspec.structs.replace(session()[0], status="failed", reason="killed")
    assert set(list(cells(failed).values())[2:-1]) == {"n/a"}
    empty = Run(id="x", session="s", created="", stage="s", workload="w", device="cpu", recipe={}, raw=Raw())
    assert "0" not in "".join(cells(empty).values())


def test_numbers_are_flush_right_and_notes_are_not() -> None:
    table = tables.ladder(session())
    numeric = dict(zip(table.columns, table.numeric, strict=True))
    assert [name for name, number in numeric.items() if not number] == ["stage", "note"]


def test_a_disturbed_row_is_marked_and_the_notice_stands_above_the_table() -> None:
    runs = disturbed(again(session()))
    for run in (runs[1], runs[-1]):
        row = cells(run)
        assert row["samples/s"].endswith(" !")
        assert row["× baseline"].endswith(" !")
        assert row["note"].startswith("disturbed; 1 warning")
    kinds = [type(part) for part in tables.sections(runs)]
    assert kinds.index(Notice) < kinds.index(Table)
    assert Notice not in map(type, tables.sections(session()))


def test_two_columns_that_say_the_same_are_one_that_names_its_other_side() -> None:
    runs = again(session()[:2])
    assert {"× baseline"} == {name for name in tables.short_ladder(runs).columns if name.startswith("×")}
    title = "eager attention"
    named = [msgspec.structs.replace(runs[0], title=title), *runs[1:]]
    assert f"× {title}" in tables.short_ladder(named).columns
    assert "× previous" in tables.short_ladder(session()).columns


def test_the_baseline_again_is_a_row_but_no_stage() -> None:
    runs = again(session(gpu=True))
    assert cells(runs[-1])["× previous"] == "–"
    assert "= the same recipe in a second process" in tables.ladder(runs).note
    assert tables.summary(runs) == tables.summary(runs[:-1])


def test_what_is_not_as_set_is_listed_first() -> None:
    run = session()[4]
    parity = Parity("AMP", "bitwise", [Check("losses", False, "0.1 apart")], False, {})
    rows = tables.evidence_of(run, parity).rows
    assert [str(row[0]) for row in rows] == ["uint8_copy", "workers", "losses"]
    (proof, *_) = tables.proof([session()[0], run], parity)
    assert isinstance(proof, Table)
    assert ["losses", "NOT the same", "0.1 apart"] in [[str(cell) for cell in row] for row in proof.rows]
    assert tables.evidence_of(session()[2], parity).note.startswith("n/a: Pin memory")
    mechanism = [msgspec.structs.replace(run.mechanism[0], ok=False)]
    wrong = tables.evidence([msgspec.structs.replace(run, mechanism=mechanism)])
    assert document.table(wrong).title == "Switches that are not as set"
