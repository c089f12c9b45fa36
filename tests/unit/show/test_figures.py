"""Every view: what it drew (by its artists), that nothing overlaps or is cut off, that bad data is borne."""

import itertools
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from perfkit.errors import InvalidValue
from perfkit.results import recordings
from perfkit.results.run import Pairing, Raw, Run
from perfkit.show import figures, style
from perfkit.show.figures import VIEWS, view
from tests.unit.show.fake_runs import again, disturbed, many, session

every_view = pytest.mark.parametrize("name", VIEWS)


def words_of(drawing: Figure) -> str:
    """Texts that a person would see."""
    texts = [text for text in drawing.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return "\n".join(text.get_text() for text in texts)


def bars(ax: Axes, at: int) -> list[tuple[float, float]]:
    """(left, width) of the bars in a row."""
    row = [patch for patch in ax.patches if abs(patch.get_y() + patch.get_height() / 2 - at) < 0.01]
    return [(patch.get_x(), patch.get_width()) for patch in row]


def test_an_unknown_view_names_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="Did you mean 'throughput'"):
        view("troughput", session())


def test_matplotlib_is_not_loaded_for_the_table() -> None:
    code = "import sys, perfkit.show.tables; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@every_view
@pytest.mark.parametrize(("count", "gpu"), [(1, False), (2, True), (10, True), (20, False)])
def test_no_text_overlaps_or_is_cut_off(name: str, gpu: bool, count: int) -> None:
    runs = many(count, gpu) if count > 10 else session(gpu)[:count]
    drawing = view(name, disturbed(again(runs)) if count == 10 else runs).draw()
    FigureCanvasAgg(drawing).draw()  # positions are those of the last drawing
    boxes = [(text.get_text(), text.get_window_extent()) for text in _drawn(drawing)]
    assert len(boxes) >= 2
    width, height = drawing.canvas.get_width_height()
    for text, box in boxes:
        assert -1 <= box.x0 <= box.x1 <= width + 1, text
        assert -1 <= box.y0 <= box.y1 <= height + 1, text
    for (text, first), (other, second) in itertools.combinations(boxes, 2):
        wide = min(first.x1, second.x1) - max(first.x0, second.x0)
        high = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert wide <= 1 or high <= 2, f"{text!r} overlaps {other!r} by {wide:.0f} × {high:.0f}"


def _drawn(drawing: Figure) -> Iterator[Text]:
    """Texts within limits: an axis keeps labels of ticks that lie outside and are not drawn."""
    hidden: set[int] = set()
    for ax in drawing.findobj(Axes):
        for axis in (ax.xaxis, ax.yaxis):
            drawn = {id(tick) for tick in axis._update_ticks()} if axis.get_visible() and ax.axison else set()
            for tick in [*axis.majorTicks, *axis.minorTicks]:
                if id(tick) not in drawn:
                    hidden |= {id(tick.label1), id(tick.label2)}
    for text in drawing.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            yield text


@every_view
def test_stages_without_numbers_say_why_and_the_words_have_the_numbers(name: str) -> None:
    picture = view(name, session(gpu=True))
    assert "cancelled: Stopped by" in words_of(picture.draw()).replace("\n", " ")
    assert re.search(r"data loading: [\d.,]+", picture.alt)
    assert "AMP: cancelled: Stopped by the person" in picture.alt


@every_view
def test_hostile_and_empty_data_is_borne(name: str) -> None:
    bare = Run(id="x", session="s", created="", stage="<b>$x^{$", workload="", device="cuda", recipe={})
    odd = msgspec.structs.replace(bare, title="\x00$\\frac{1}\n" * 9, status="failed", reason="$\\bad{ " * 99)
    raw = Raw(step_s=[0.0], data_wait_s=[0.0], block_samples_per_s=[0.0])
    losses = [float("nan"), float("inf")]
    nothing = msgspec.structs.replace(session()[0], raw=raw, losses=losses, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for runs in ([], [bare], [odd], [bare, odd, nothing], [nothing]):
            picture = view(name, runs)
            ElementTree.fromstring(picture.svg())
            assert picture.alt.startswith(VIEWS[name].title)


def test_throughput_is_a_waterfall_with_whiskers_and_ceilings() -> None:
    runs = session()
    drawing = view("throughput", runs).draw()
    ax = drawing.axes[0]
    rates = [run.samples_per_s.value if run.samples_per_s else np.nan for run in runs]
    assert bars(ax, 0) == [(0, pytest.approx(rates[0]))]
    kept, gained = bars(ax, 1)
    assert kept == (0, pytest.approx(rates[0]))
    assert gained == (pytest.approx(rates[0]), pytest.approx(rates[1] - rates[0]))
    assert bars(ax, 2) == []
    now, lost = bars(ax, 6)
    assert now == (0, pytest.approx(rates[6]))
    assert lost == (pytest.approx(rates[6]), pytest.approx(rates[5] - rates[6]))
    assert {patch.get_hatch() for patch in ax.patches} >= {"//", "xx"}, "not by colour alone"
    assert "▲ 1.53× (1.51–1.56) faster" in words_of(drawing)
    ceilings = [line for line in ax.lines if line.get_color() == style.VERMILLION]
    assert ceilings[0].get_xdata() == pytest.approx([runs[0].ceiling_samples_per_s] * 2)


def test_the_baseline_again_is_a_bar_in_its_own_view_only() -> None:
    runs = again(session())
    drawing = view("throughput", runs).draw()
    assert "A/A 1.00×" in words_of(drawing)
    assert ".." in {patch.get_hatch() for patch in drawing.axes[0].patches}
    assert "baseline (again)" not in view("losses", runs).alt


def test_a_ceiling_below_the_rate_is_not_drawn() -> None:
    run = session()[0]
    low = [0.5 * rate for rate in run.raw.block_samples_per_s]
    raw = msgspec.structs.replace(run.raw, ceiling_samples_per_s=low)
    assert "ceiling" not in words_of(view("throughput", [msgspec.structs.replace(run, raw=raw)]).draw())


def test_disturbed_rows_have_a_mark_and_words() -> None:
    runs = disturbed(again(session()))
    drawing = view("throughput", runs).draw()
    (marks,) = [line for line in drawing.axes[0].lines if line.get_marker() == "^"]
    assert list(marks.get_ydata()) == [at for at, run in enumerate(runs) if run.status == "ok"]
    assert "disturbed by other programs" in words_of(drawing)


def test_memory_is_the_allocator_s_or_the_process_s() -> None:
    on_gpu, on_cpu = (view("memory", session(gpu)).draw() for gpu in (True, False))
    assert bars(on_gpu.axes[0], 3) == [(0, pytest.approx(11.3)), (pytest.approx(11.3), pytest.approx(2.034))]
    assert "GPU memory, allocator's peak [GB]" in words_of(on_gpu)
    assert "RSS" in words_of(on_cpu)
    assert "reserved" not in words_of(on_cpu)


def test_utilization_shows_every_sample_or_says_why_there_is_none() -> None:
    runs = session(gpu=True)
    ax = view("utilization", runs).draw().axes[0]
    assert list(ax.lines[0].get_xdata()) == runs[0].raw.gpu_utilization_nvml
    assert bars(ax, 0)[0][1] == pytest.approx(np.median(runs[0].raw.gpu_utilization_nvml))
    assert view("utilization", session()).nothing == "No GPU in this run."
    assert "too short" in view("utilization", [msgspec.structs.replace(runs[0], raw=Raw())]).nothing


def test_losses_are_over_samples_on_equal_axes() -> None:
    runs = session(gpu=True)
    panels = view("losses", runs).draw().axes
    curve = panels[3].lines[-1]
    assert list(curve.get_xdata()) == [512 * step for step in range(1, 9)]
    assert list(curve.get_ydata()) == runs[3].losses
    assert len({(panel.get_xlim(), panel.get_ylim()) for panel in panels}) == 1


def test_losses_name_an_outlier_and_where_they_became_nan() -> None:
    run = session()[0]
    spiked = msgspec.structs.replace(run, losses=[2.4, 2.3, 2.2, 900.0, 2.1, 2.0, 1.9, 1.8])
    drawing = view("losses", [spiked]).draw()
    assert drawing.axes[0].get_ylim()[1] < 3
    assert "1 value above 2.40, up to 900" in words_of(drawing)
    lost = msgspec.structs.replace(run, losses=[2.0, float("nan"), float("nan")])
    assert "NaN from sample 64 on" in words_of(view("losses", [lost]).draw())


def test_a_step_is_drawn_as_shares_for_as_many_samples() -> None:
    small, large = (run for run in session() if run.stage in ("data_loading", "batch_size"))
    ax = view("step_time", [small, large]).draw().axes[0]
    assert "128 samples, medians; the colours are shares, not places" in ax.get_xlabel()
    (_, wait), (start, rest) = bars(ax, 0)
    assert small.step_s and small.data_wait_share
    assert wait == start == pytest.approx(4 * small.step_s.value * small.data_wait_share)
    assert wait + rest == pytest.approx(4 * small.step_s.value)


def test_how_busy_the_device_is_stands_in_words_and_at_no_place() -> None:
    measured, simulated = session(gpu=True)[0], recordings.find("sim-v100").runs[0]
    assert "54% waits for data, device busy 17% of it" in view("step_time", [measured]).alt
    assert len(bars(view("step_time", [measured]).draw().axes[0], 0)) == 2
    picture = view("step_time", [simulated])
    assert "device busy" in picture.alt
    assert "everything else, simulated" in words_of(picture.draw())


def test_the_headline_is_the_last_comparison_in_words() -> None:
    runs = session()
    assert figures.headline(runs).title == "AMP is 2.91× (2.88–2.93) faster than baseline"
    assert figures.headline(runs[:1]).title == "baseline: 1.97 s (1.94–2.00) a step"
    assert figures.headline([]).nothing
    assert list(figures.others(runs)) == ["Every stage", "Throughput", "Memory", "Losses"]
    assert list(figures.others(runs[:2])) == ["Throughput", "Memory", "Losses"]


@pytest.mark.parametrize(
    ("factor", "rounds", "words"),
    [(1.0, 8, "No measurable difference, data loading against baseline: 1.00×"),
     (0.5, 8, "data loading is 2.00× (2.00–2.00) slower than baseline"),
     (1.5, 2, "Too few rounds; data loading against baseline: 1.50×")],
)  # fmt: skip
def test_every_verdict_has_its_headline(factor: float, rounds: int, words: str) -> None:
    before, after = session()[:2]
    rates = [16.0] * rounds
    pairing = Pairing(
        [factor * rate for rate in rates], rates, against=before.id, role="previous", interleaved=True
    )
    runs = [before, msgspec.structs.replace(after, pairings=[pairing])]
    assert figures.headline(runs).title.startswith(words)
