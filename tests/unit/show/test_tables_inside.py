"""What a look inside a training finds, as tables and figures."""

from __future__ import annotations

from perfkit.show import document, style, tables_inside


def test_the_views_show_what_was_measured() -> None:
    row = {"shape": "1 x 2 x 3", "kind": "matmul", "dtype": "float32", "seconds": 0.001, "flops_per_s": 1e9,
           "flops_per_byte": 4.0}  # fmt: skip
    work = {"flops": 10**9, "bytes": 10**8, "dtype": "float32", "why": ""}
    found = {
        "peaks": {"float32": 2e9}, "bytes_per_s": 1e9, "rows": [row], "work": work, "misaligned": [],
        "step_s": 1.0, "mfu": 0.5, "light_share": 0.6, "recipe": "baseline",
    }  # fmt: skip
    sections = tables_inside.kernels(found)
    assert ["copying", "1.0 GB/s"] in document.table(sections, "roofs").rows
    assert document.table(sections, "by shape").rows[0][-1] == "50%"
    assert ["MFU (FLOP/s / measured peak)", "50.0%"] in document.table(sections, "a step of").rows
    assert style.to_svg(document.figure(sections, "roofline").draw())
    unknown = {**found, "work": {"flops": None, "bytes": None, "dtype": "", "why": "because"}, "mfu": None}
    assert ["FLOPs", "n/a: because"] in document.table(tables_inside.kernels(unknown), "a step of").rows
