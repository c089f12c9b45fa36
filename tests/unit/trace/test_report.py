"""A trace as sections: every table is there, and what is not known says why."""

from pathlib import Path

import pytest

from perfkit import trace
from perfkit.show import document, html, terminal
from perfkit.trace import report
from perfkit.trace.loading import Batch, Loading
from tests.unit.trace.recording import Recording

BATCH = Batch(
    number=0, worker=0, start_s=0, fetch_s=0.2, transform_s=None, collate_s=0.1, queued_s=0, wait_s=0.3
)
LOADER = Loading(
    workers=1, batches=[BATCH], fetches=[], supply_samples_per_s=10, demand_samples_per_s=20, pin_s=None
)


def everything(loaded, analysis):
    findings = trace.diagnose(analysis)
    return report.sections(analysis, findings, trace.lanes(loaded), LOADER)


def test_the_terminal_page(loaded, analysis):
    """Golden: `PERFKIT_GOLDEN=1` writes it anew."""
    golden = Path(__file__).with_name("golden_report.txt")
    text = terminal.text(everything(loaded, analysis))
    import os

    if os.environ.get("PERFKIT_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_page_has_every_figure_and_one_script(loaded, analysis):
    page = html.page("perfkit trace", everything(loaded, analysis))
    assert page.count("<svg") >= 4
    assert page.count("<script>") == 1
    assert "Wheel or" in page


@pytest.mark.parametrize("dark", [False, True])
def test_figures_draw_what_they_say(loaded, analysis, dark):
    sections = everything(loaded, analysis)
    breakdown = document.figure(sections, "breakdown").draw(dark)
    assert len(breakdown.axes[0].patches) >= 2 * (len(analysis.steps) + 1)
    assert document.figure(sections, "kernels").nothing.startswith("n/a: no accelerator")
    assert (
        document.figure(sections, "timeline").draw(dark).axes[0].get_xlabel().startswith("ms from the start")
    )


def test_a_simulated_trace_says_so_everywhere(tmp_path):
    made = Recording().step(1, 0, 100).launch("k", 0, (5, 20))
    made.head["simulated"] = {"device": "V100"}
    loaded = made.load(tmp_path)
    sections = report.sections(trace.analyse(loaded), (), trace.lanes(loaded))
    assert document.figure(sections, "breakdown").title == "Simulated: Where the steps' time goes"
    assert "simulated GPU 0 stream 7" in html.page("x", sections)
