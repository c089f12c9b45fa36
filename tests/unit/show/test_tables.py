"""Tables of runs, checks, histories and looks inside; the golden pages of the terminal hold more of their cells."""

import subprocess
import sys

import msgspec
import pytest

from perfkit.results.parity import Check, Parity
from perfkit.results.run import Communication
from perfkit.results.store import entry
from perfkit.show import document, inside, tables, terminal
from perfkit.show.document import Table
from perfkit.worker.messages import KernelReport, MemoryReport, Place, ShapeTiming, StepWork, SyncReport
from tests.unit.show.fake_runs import again, disturbed, session
from tests.unit.show.test_figures import bars


def cells(runs, at):
    table = tables.ladder(runs)
    return dict(zip(table.columns, map(str, table.rows[at]), strict=True))


def texts(table):
    return [[*map(str, row)] for row in table.rows]


def test_matplotlib_and_torch_are_not_loaded_for_a_table():
    code = "import sys, perfkit.show.tables; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cells_of_a_measured_stage_on_a_gpu():
    row = cells(session(gpu=True), 3)
    assert row["× previous"].endswith(" ▲")
    assert (row["peak memory"], row["bytes/sample"], row["note"]) == ("11.3 GB", "602,112 B", "1 warning")
    elsewhere = session(gpu=True, h2d_bytes_per_sample=0)
    assert cells(elsewhere, 0)["bytes/sample"] == "602,112 B, 0 B copied"


@pytest.mark.parametrize(("at", "word"), [(2, "n/a"), (9, "failed")])
def test_a_stage_without_numbers_says_why_and_has_no_zero(at, word):
    _, rate, *values, note = cells(session(), at).values()
    assert (rate, set(values)) == (word, {"n/a"})
    assert note.startswith(f"{word}: ")
    failed = session(status="failed", reason="killed")
    assert set([*cells(failed, 0).values()][2:-1]) == {"n/a"}, "partial values are not shown"


def test_a_disturbed_row_is_marked():
    row = cells(disturbed(session()), 1)
    assert row["samples/s"].endswith(" !") and row["× baseline"].endswith(" !")
    assert row["note"].startswith("disturbed; 1 warning")


def test_two_columns_that_say_the_same_are_one_that_names_its_other_side():
    runs = again(session()[:2])
    named = [msgspec.structs.replace(runs[0], title="eager attention"), *runs[1:]]
    ratios = [
        [column for column in tables.ladder(rows).columns if "×" in column] for rows in (named, session())
    ]
    assert ratios == [["× eager attention"], ["× previous", "× baseline"]]
    assert "= the same recipe in a second process" in tables.ladder(runs).note


def test_what_a_stage_changes_and_what_fails_is_its_proof():
    before, run = session()[0], session()[4]
    wrong = [run.mechanism[0], msgspec.structs.replace(run.mechanism[1], switch="amp", ok=False)]
    parity = Parity(
        "uint8", "bitwise", [Check("losses", False, "0.1 apart"), Check("outputs", True, "")], False, {}
    )
    proof = tables.proof([before, msgspec.structs.replace(run, mechanism=wrong)], parity)
    assert [row[1:3] for row in texts(proof)] == [["uint8_copy", "✓"], ["amp", "✗"], ["losses", "✗"]]
    assert proof.note == "3 other checks, all passed"
    assert tables.proof([session()[2]], parity).note == "nothing was checked"
    assert tables.parity(parity)[1] == "uint8: NOT the same training: losses: 0.1 apart"


def test_communication_of_several_ranks_and_its_forecast():
    times = Communication(
        bytes_per_step=44_000_000, step_s=0.05, compute_s=0.04, alone_s=0.02, rank_compute_s=[0.04, 0.044],
        start_s=1e-5,
    )  # fmt: skip
    table = tables.communication([msgspec.structs.replace(session()[0], communication=times)])
    row = ["baseline", "50.0 ms", "40.0 ms", "20.0 ms", "10.0 ms", "44.0 MB", "1.05×"]
    assert texts(table) == [row]
    assert tables.communication(session()).note == "no run has several ranks"
    assert texts(tables.forecast({2: 0.91, 4: 0.84})) == [["2", "91%"], ["4", "84%"]]


def test_a_row_of_the_history_has_texts_and_the_numbers_to_sort_by():
    run = session()[3]
    row = tables.history_row(entry(run))
    assert run.samples_per_s and row["rate_value"] == run.samples_per_s.value
    assert (row["rate"], row["ratio"]) == ("25.0 (24.5–25.4)", "1.54× (1.51–1.56) ▲")
    assert (row["name"], row["date"]) == ("batch size", "2026-11-20 12:00")
    assert row["changes"] == "Batch size 128, Loader workers 2"
    named = msgspec.structs.replace(entry(session()[9]), name="mine")
    assert tables.history_row(named) | {"name": "mine", "rate": "failed", "ratio": "–"} == tables.history_row(
        named
    )
    assert "mine" in terminal.text([tables.stored([named])], 60)


def test_kernels_show_roofs_shapes_and_the_step():
    row = ShapeTiming("1 x 2 x 3", "float32", seconds=0.001, flops_per_s=1e9, flops_per_byte=4.0)
    report = KernelReport(
        peaks={"float32": 2e9}, bytes_per_s=1e9, rows=[row], work=StepWork(10**9, 10**8, "float32"),
        step_s=1.0, mfu=0.5, light_share=0.6, recipe="baseline",
    )  # fmt: skip
    sections = inside.kernels(report)
    assert ["copying", "1.0 GB/s"] in document.table(sections, "roofs").rows
    assert str(document.table(sections, "by shape").rows[0][-1]) == "50%"
    assert ["share of the measured peak (FLOP/s)", "50.0%"] in document.table(sections, "a step of").rows
    assert document.figure(sections, "roofline").svg()
    unknown = msgspec.structs.replace(report, work=StepWork(None, None, "", "because"), mfu=None)
    assert ["FLOPs", "n/a: because"] in document.table(inside.kernels(unknown), "a step of").rows


def test_memory_has_a_column_for_each_recipe_and_bars_that_add_up():
    parts = dict.fromkeys(("weights", "gradients", "activations"), 1_000_000)
    ledger = MemoryReport(
        recipe="baseline", peak=3_000_000, peak_phase="backward", allocated=None, reserved=None,
        parts=parts | dict.fromkeys(("optimizer", "batch", "workspace"), 0),
        places=[("0.weight", "weights", 1_000_000)],
    )  # fmt: skip
    other = msgspec.structs.replace(ledger, recipe="amp=bf16", peak=2_000_000)
    sections = inside.memory([ledger, other])
    peak = document.table(sections, "at the peak")
    assert list(peak.columns) == ["what", "baseline", "amp=bf16"]
    assert texts(peak)[-1] == ["all together", "3.00 MB", "2.00 MB"]
    figure = document.figure(sections, "held")
    assert "amp=bf16: 2.00 MB" in figure.alt
    assert [width for _, width in bars(figure.draw().axes[0], 0)] == pytest.approx([1.0, 1.0, 1.0])


def test_syncs_are_counted_per_step_and_name_the_way_out():
    place = Place("item", "toy.py:7", "wait", "read it later", count=8)
    (table,) = inside.syncs(SyncReport([place], 4, "cpu"))
    assert isinstance(table, Table)
    assert texts(table) == [["toy.py:7", "item", "2", "read it later", "wait"]]
    assert "on the CPU" in table.note
