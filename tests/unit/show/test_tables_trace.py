"""The tables of a trace, and its page."""

from __future__ import annotations

import re

from perfkit import trace
from perfkit.show import document, html
from perfkit.trace import diagnosis
from perfkit.trace import figures as figures_trace
from perfkit.trace import result_tables as tables_trace


def test_the_page_has_every_table_and_runs_one_script_only(
    analysis: trace.Analysis, loaded: trace.Trace
) -> None:
    window = figures_trace.first_step(loaded)
    sections = tables_trace.sections(analysis, diagnosis.diagnose(analysis), window)
    page = html.page("perfkit trace", sections)
    tables = [one for one in document.walk(sections) if isinstance(one, document.Table)]
    assert len(tables) == 12
    for table in tables:
        assert table.title in page
    assert re.findall(r"script-src ([^;\"]*)", page)[0].startswith("'sha256-")
    assert page.count("<script") == 2
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_what_is_not_known_has_its_reason(analysis: trace.Analysis) -> None:
    kernels = document.table(tables_trace.sections(analysis), "kernels")
    assert not kernels.rows
    assert "no accelerator" in kernels.note


def test_a_comparison_with_itself_changes_nothing(analysis: trace.Analysis) -> None:
    section = tables_trace.comparison(trace.compare(analysis, analysis))
    assert document.table([section], "changed operators").note == "nothing changed"
    assert all(this == other for _, this, other in document.table([section], "mean step").rows)


def test_the_numbers_behind_a_diagnosis_have_words_and_units() -> None:
    evidence = {
        "dataloader_exposed_us": 92_907.0, "loader_in_main_process": True, "share_of_kernel_time": 0.25,
        "bytes_per_step": 96_000.0, "operators_us": {"aten::<mul>": 1_500.0}, "frame": None,
    }  # fmt: skip
    finding = diagnosis.Bottleneck(
        bottleneck="data-bound", message="waiting", exposed_us=92_907.0, share_of_step=0.5, gain_at_most=2.0,
        evidence=evidence, try_next=["workers"],
    )  # fmt: skip
    assert tables_trace.diagnosis([finding]).rows[0][2] == (
        "dataloader exposed 92.9 ms, loader in main process, share of kernel time 25%, 96.0 kB per step, "
        "operators aten::<mul> 1.50 ms, frame n/a"
    )
