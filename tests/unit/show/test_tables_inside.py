"""What a look inside a training finds, as tables and figures."""

import msgspec
import pytest

from perfkit.show import document, tables_inside
from perfkit.worker.messages import KernelReport, MemoryReport, Place, ShapeTiming, StepWork, SyncReport
from tests.unit.show.test_figures import bars


def test_the_views_show_what_was_measured() -> None:
    row = ShapeTiming(
        shape="1 x 2 x 3", kind="matmul", dtype="float32", seconds=0.001, flops_per_s=1e9, flops_per_byte=4.0
    )
    found = KernelReport(
        peaks={"float32": 2e9}, bytes_per_s=1e9, rows=[row], work=StepWork(10**9, 10**8, "float32"),
        misaligned=[], step_s=1.0, mfu=0.5, light_share=0.6, recipe="baseline", device="cpu",
    )  # fmt: skip
    sections = tables_inside.kernels(found)
    assert ["copying", "1.0 GB/s"] in document.table(sections, "roofs").rows
    assert str(document.table(sections, "by shape").rows[0][-1]) == "50%"
    assert ["MFU (FLOP/s / measured peak)", "50.0%"] in document.table(sections, "a step of").rows
    assert document.figure(sections, "roofline").svg()
    work = StepWork(None, None, "", "because")
    unknown = msgspec.structs.replace(found, work=work, mfu=None, light_share=None)
    assert ["FLOPs", "n/a: because"] in document.table(tables_inside.kernels(unknown), "a step of").rows


LEDGER = MemoryReport(
    recipe="baseline", peak=3_000_000, peak_phase="backward", allocated=None, reserved=None,
    parts={
        "weights": 1_000_000, "gradients": 1_000_000, "optimizer": 0, "batch": 0, "activations": 1_000_000,
        "workspace": 0,
    },
    phases={"forward": 2_000_000, "backward": 3_000_000}, places=[("0.weight", "weights", 1_000_000)],
)  # fmt: skip


def test_memory_has_a_column_for_each_recipe_and_bars_that_add_up() -> None:
    other = msgspec.structs.replace(LEDGER, recipe="amp=bf16", peak=2_000_000, phases={"forward": 2_000_000})
    sections = tables_inside.memory([LEDGER, other])
    peak = document.table(sections, "at the peak")
    assert list(peak.columns) == ["what", "baseline", "amp=bf16"]
    assert [*map(str, peak.rows[-1])] == ["all together", "3.00 MB", "2.00 MB"]
    assert [*map(str, document.table(sections, "highest").rows[-1])] == ["backward", "3.00 MB", "0 B"]
    figure = document.figure(sections, "held")
    assert "amp=bf16: 2.00 MB" in figure.alt
    widths = [width for _, width in bars(figure.draw().axes[0], 0)]
    assert widths == pytest.approx([1.0, 1.0, 1.0])


def test_syncs_are_counted_per_step_and_name_the_way_out() -> None:
    place = Place("item", "toy.py:7", "wait", "read it later", count=8)
    (table,) = tables_inside.syncs(SyncReport([place], 4, "cpu"))
    assert isinstance(table, document.Table)
    assert [*map(str, table.rows[0])] == ["toy.py:7", "item", "wait", "2", "read it later"]
    assert "on the CPU" in table.note
    (none,) = tables_inside.syncs(SyncReport([], 4, "cpu"))
    assert isinstance(none, document.Table)
    assert none.note.startswith("no copy and no wait")
