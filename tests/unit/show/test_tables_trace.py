"""The tables of a trace, and its page."""

from __future__ import annotations

import re

from perfkit import trace
from perfkit.show import document, figures_trace, html, tables_trace
from perfkit.trace import diagnosis


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
