"""Pictures of a trace."""

from __future__ import annotations

import pytest

from perfkit import trace
from perfkit.errors import InvalidValue
from perfkit.show import document, style
from perfkit.trace import figures as figures_trace

NAMES = ("breakdown", "ladder", "operators", "kernels", "memory", "timeline")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dark", [False, True])
def test_every_picture_is_drawn_and_described(
    name: str, dark: bool, analysis: trace.Analysis, loaded: trace.Trace
) -> None:
    figure = document.figure(figures_trace.views(analysis, figures_trace.first_step(loaded)), name)
    drawn = figure.draw(dark)
    assert 'role="img"' in style.to_svg(drawn)
    assert len(style.to_png(drawn)) > 3_000
    assert figure.alt.startswith(figure.title)
    assert any(digit in figure.alt for digit in "0123456789") or "n/a" in figure.alt


def test_what_a_cpu_trace_cannot_know_is_said_not_drawn_as_zero(analysis: trace.Analysis) -> None:
    figure = document.figure(figures_trace.views(analysis), "kernels").draw()
    assert "no accelerator" in " ".join(text.get_text() for text in figure.axes[0].texts)
    ladder = {name: share for name, _, share, _ in figures_trace.utilization(analysis)}
    assert set(ladder.values()) == {None}


def test_the_breakdown_draws_the_steps_to_scale(analysis: trace.Analysis) -> None:
    bars = document.figure(figures_trace.views(analysis), "breakdown").draw().axes[0].patches
    drawn = sum(bar.get_width() for bar in bars)
    steps = [step.duration_us for step in analysis.steps] + [analysis.mean_step_us]
    assert drawn == pytest.approx(sum(filter(None, steps)) / 1e3)


def test_an_unknown_picture_is_refused(analysis: trace.Analysis) -> None:
    with pytest.raises(InvalidValue, match="breakdown"):
        document.figure(figures_trace.views(analysis), "tea")
