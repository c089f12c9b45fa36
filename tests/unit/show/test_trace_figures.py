"""Pictures, tables and the page of a trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from perfkit import trace
from perfkit.errors import InvalidValue
from perfkit.show import html, style, timeline, trace_tables
from perfkit.show import trace_figures as trace_views
from perfkit.trace import Bar, Lane, Lanes, diagnosis

RECORDED = Path(__file__).parents[3] / "data" / "recordings" / "traces"


@pytest.fixture(scope="module")
def loaded() -> trace.Trace:
    return trace.load(RECORDED / "photos-smoke-baseline.pt.trace.json.gz")


@pytest.fixture(scope="module")
def analysis(loaded: trace.Trace) -> trace.Analysis:
    return trace.analyse(loaded)


@pytest.mark.parametrize("name", trace_views.NAMES)
@pytest.mark.parametrize("dark", [False, True])
def test_every_picture_is_drawn_and_described(
    name: str, dark: bool, analysis: trace.Analysis, loaded: trace.Trace
) -> None:
    figure = trace_views.figure(name, analysis, trace_views.first_step(loaded), dark)
    svg = style.to_svg(figure)
    assert 'role="img"' in svg
    assert len(style.to_png(figure)) > 3_000


def test_what_a_cpu_trace_cannot_know_is_said_not_drawn_as_zero(analysis: trace.Analysis) -> None:
    figure = trace_views.figure("kernels", analysis)
    assert "no accelerator" in " ".join(text.get_text() for text in figure.axes[0].texts)
    ladder = {name: share for name, _, share, _ in trace_tables.ladder(analysis)}
    assert set(ladder.values()) == {None}


def test_the_breakdown_draws_the_steps_to_scale(analysis: trace.Analysis) -> None:
    bars = trace_views.figure("breakdown", analysis).axes[0].patches
    drawn = sum(bar.get_width() for bar in bars)
    steps = [step.duration_us for step in analysis.steps] + [analysis.mean_step_us]
    assert drawn == pytest.approx(sum(filter(None, steps)) / 1e3)


def test_an_unknown_picture_is_refused(analysis: trace.Analysis) -> None:
    with pytest.raises(InvalidValue, match="breakdown"):
        trace_views.figure("tea", analysis)


def test_the_page_has_every_table_and_runs_one_script_only(
    analysis: trace.Analysis, loaded: trace.Trace
) -> None:
    said = trace_tables.sections(analysis, diagnosis.diagnose(analysis))
    page = html.trace_html(analysis, trace_views.first_step(loaded), said)
    for section in said:
        assert section.title in page
    assert re.findall(r"script-src ([^;\"]*)", page)[0].startswith("'sha256-")
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_names_from_outside_cannot_leave_the_timeline() -> None:
    evil = "</script><script>alert(1)</script>"
    bar = Bar(name=evil, start_us=0, duration_us=1, colour="cpu_op", depth=0)
    lane = Lane(label=evil, kind="thread", bars=[bar])
    lanes = Lanes(name=evil, start_us=0, duration_us=2, lanes=[lane], phases=[], omitted=0)
    page = timeline.page(lanes)
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 2
    assert evil not in timeline.frame(lanes)
    text = page.split('id="pk-timeline-data">')[1].split("</script>")[0]
    assert json.loads(text)["lanes"][0]["label"].startswith("</script>")
