"""Views with a row for each stage: what they drew, by their artists."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from matplotlib.axes import Axes

from perfkit.results.run import Raw
from perfkit.show import results, style
from tests.unit.show.fake_runs import session
from tests.unit.show.test_figures import axes, figure, words_of


def bars(ax: Axes, at: int) -> list[tuple[float, float]]:
    """(left, width) of the bars in a row."""
    found = [patch for patch in ax.patches if abs(patch.get_y() + patch.get_height() / 2 - at) < 0.01]  # type: ignore[attr-defined]
    return [(patch.get_x(), patch.get_width()) for patch in found]  # type: ignore[attr-defined]


def test_throughput_is_a_waterfall() -> None:
    runs = session()
    ax = axes(figure("throughput", runs))
    rates = [found.median if (found := results.rate(run)) else np.nan for run in runs]
    assert bars(ax, 0) == [(0, pytest.approx(rates[0]))]
    kept, gained = bars(ax, 1)
    assert kept == (0, pytest.approx(rates[0]))
    assert gained == (pytest.approx(rates[0]), pytest.approx(rates[1] - rates[0]))
    assert bars(ax, 2) == []
    now, lost = bars(ax, 6)
    assert now == (0, pytest.approx(rates[6]))
    assert lost == (pytest.approx(rates[6]), pytest.approx(rates[5] - rates[6]))


def test_throughput_marks_verdicts_with_signs_and_hatches() -> None:
    made = figure("throughput", session())
    text = words_of(made)
    assert "▲ 1.53× (1.52–1.55) faster" in text
    assert "▼ 0.89× (0.88–0.91) slower" in text
    assert "≈ 1.00×" in text
    assert {patch.get_hatch() for patch in axes(made).patches} >= {style.GAIN_HATCH, style.LOSS_HATCH}


def test_throughput_has_whiskers_and_ceiling() -> None:
    runs = session()[:1]
    ax = axes(figure("throughput", runs))
    rate = results.rate(runs[0])
    assert rate
    ends = np.concatenate([c.get_segments()[0][:, 0] for c in ax.collections])  # type: ignore[attr-defined]
    assert sorted(ends) == pytest.approx([rate.low, rate.high])
    ceiling = [line for line in ax.lines if line.get_color() == style.VERMILLION]
    assert ceiling[0].get_xdata() == pytest.approx([runs[0].ceiling_samples_per_s] * 2)


def test_step_time_is_waiting_and_the_rest() -> None:
    runs = session(gpu=True)
    step = results.step_s(runs[0])
    assert step
    wait, rest = bars(axes(figure("step_time", runs)), 0)
    assert wait == (0, pytest.approx(1e3 * step.median * 0.54))
    assert sum(rest) == pytest.approx(1e3 * step.median)


def test_memory_says_which() -> None:
    on_gpu, on_cpu = figure("memory", session(gpu=True)), figure("memory", session())
    assert bars(axes(on_gpu), 3) == [
        (0, pytest.approx(11.3)),
        (pytest.approx(11.3), pytest.approx(0.18 * 11.3)),
    ]
    assert "GPU memory, allocator's peak [GB]" in words_of(on_gpu)
    assert "RSS" in words_of(on_cpu)
    assert "reserved" not in words_of(on_cpu)


def test_utilization_without_a_gpu_says_so() -> None:
    assert "No GPU in this run." in words_of(figure("utilization", session()))
    run = msgspec.structs.replace(session(gpu=True)[0], raw=Raw())
    assert "too short for NVML" in words_of(figure("utilization", [run]))


def test_utilization_shows_every_sample() -> None:
    runs = session(gpu=True)
    ax = axes(figure("utilization", runs))
    assert list(ax.lines[0].get_xdata()) == runs[0].raw.gpu_utilization_nvml  # type: ignore[arg-type]
    assert bars(ax, 0)[0][1] == pytest.approx(np.median(runs[0].raw.gpu_utilization_nvml))
