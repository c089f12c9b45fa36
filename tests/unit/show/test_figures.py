"""Every view: what it drew (by its artists), that nothing overlaps or is cut off, that bad data is borne."""

from __future__ import annotations

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
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from perfkit.errors import InvalidValue
from perfkit.results.run import Raw, Run
from perfkit.show import results, style
from perfkit.show.figures import VIEWS, view
from tests.unit.show.fake_runs import again, disturbed, many, session


def figure(name: str, runs: list[Run], dark: bool = False, large: bool = False) -> Figure:
    return view(name, runs).draw(dark, large)


def describe(name: str, runs: list[Run]) -> str:
    return view(name, runs).alt


every_view = pytest.mark.parametrize("name", VIEWS)


def axes(made: Figure) -> Axes:
    return made.axes[0]


def shown(made: Figure) -> Iterator[Text]:
    """Texts that a person would see."""
    for artist in made.findobj(Text):
        if artist.get_visible() and artist.get_text().strip():
            yield artist


def words_of(made: Figure) -> str:
    return "\n".join(text.get_text() for text in shown(made))


def test_there_are_five() -> None:
    assert list(VIEWS) == ["step_time", "throughput", "memory", "losses", "utilization"]


def test_unknown_view_names_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="Did you mean 'throughput'"):
        figure("troughput", session())


def test_matplotlib_is_not_loaded_for_the_table() -> None:
    code = "import sys, perfkit.show.tables; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@every_view
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(
    ("count", "large"), [(1, False), (2, False), (2, True), (10, False), (10, True), (20, False), (20, True)]
)
def test_no_text_overlaps_or_is_cut_off(name: str, gpu: bool, count: int, large: bool) -> None:
    runs = many(count, gpu) if count > 10 else session(gpu)[:count]
    made = figure(name, disturbed(again(runs)) if count == 10 else runs, large=large)
    FigureCanvasAgg(made).draw()  # positions are those of the last drawing
    boxes = [(text.get_text(), text.get_window_extent()) for text in _drawn(made)]
    assert len(boxes) >= 2
    width, height = made.canvas.get_width_height()
    for text, box in boxes:
        assert -1 <= box.x0 <= box.x1 <= width + 1, text
        assert -1 <= box.y0 <= box.y1 <= height + 1, text
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        wide = min(first.x1, second.x1) - max(first.x0, second.x0)
        high = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert wide <= 1 or high <= 2, f"{one!r} overlaps {other!r} by {wide:.0f} × {high:.0f}"


def _drawn(made: Figure) -> list[Text]:
    """Texts within limits: an axis keeps labels of ticks that lie outside and are not drawn."""
    hidden: set[int] = set()
    for ax in made.findobj(Axes):
        for axis in (ax.xaxis, ax.yaxis):  # type: ignore[attr-defined]
            drawn = {id(tick) for tick in axis._update_ticks()} if axis.get_visible() and ax.axison else set()  # type: ignore[attr-defined]
            for tick in [*axis.majorTicks, *axis.minorTicks]:
                if id(tick) not in drawn:
                    hidden |= {id(tick.label1), id(tick.label2)}
    return [text for text in shown(made) if id(text) not in hidden]


@every_view
def test_stages_without_numbers_say_why(name: str) -> None:
    made = figure(name, session(gpu=True))
    text = words_of(made).replace("\n", " ")
    assert "cancelled" in text
    assert "Stopped by" in text


@every_view
@pytest.mark.parametrize("dark", [False, True])
def test_all_text_is_in_the_ink(name: str, dark: bool) -> None:
    for text in shown(figure(name, session(gpu=True), dark=dark)):
        assert to_hex(text.get_color()) == style.ink(dark), text.get_text()


@every_view
def test_hostile_and_empty_data_is_borne(name: str) -> None:
    bare = Run(id="x", session="s", created="", stage="<b>$x^{$", workload="", device="cuda", recipe={})
    odd = msgspec.structs.replace(bare, title="\x00$\\frac{1}\n" * 9, status="failed", reason="$\\bad{ " * 99)
    nothing = msgspec.structs.replace(
        session()[0],
        raw=Raw(step_s=[0.0], data_wait_s=[0.0], block_samples_per_s=[0.0]),
        losses=[float("nan"), float("inf")],
        device="cuda",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for runs in ([], [bare], [odd], [bare, odd, nothing], [nothing]):
            made = figure(name, runs)
            ElementTree.fromstring(style.to_svg(made))
            style.to_png(made, 40)
            assert describe(name, runs).startswith(VIEWS[name].title)


@every_view
def test_alt_text_has_the_numbers(name: str) -> None:
    text = describe(name, session(gpu=True))
    assert re.search(r"data loading: [\d.,]+", text)
    assert "AMP: cancelled: Stopped by the person" in text


def test_views_draw_on_any_axes() -> None:
    for one in VIEWS.values():
        one.draw([], Figure().add_subplot(), "black")
        one.draw(session()[:2], Figure().add_subplot(), "black")


def bars(ax: Axes, at: int) -> list[tuple[float, float]]:
    """(left, width) of the bars in a row."""
    found = [patch for patch in ax.patches if abs(patch.get_y() + patch.get_height() / 2 - at) < 0.01]  # type: ignore[attr-defined]
    return [(patch.get_x(), patch.get_width()) for patch in found]  # type: ignore[attr-defined]


def test_throughput_is_a_waterfall() -> None:
    runs = session()
    ax = axes(figure("throughput", runs))
    rates = [found.value if (found := results.rate(run)) else np.nan for run in runs]
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
    assert "▲ 1.53× (1.51–1.56) faster" in text
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


def test_disturbed_rows_have_a_mark_of_their_own_and_words() -> None:
    runs = disturbed(again(session()))
    marks = [line for line in axes(figure("throughput", runs)).lines if line.get_marker() == "^"]
    assert list(marks[0].get_ydata()) == [at for at, run in enumerate(runs) if run.status == "ok"]
    assert "disturbed by other programs" in words_of(figure("throughput", runs))
    assert "! disturbed" in describe("throughput", runs)
    assert "disturbed" not in words_of(figure("throughput", session()))


def test_the_baseline_again_is_a_bar_of_its_own_look() -> None:
    runs = again(session())
    made = figure("throughput", runs)
    assert "A/A 1.00×" in words_of(made)
    assert {patch.get_hatch() for patch in axes(made).patches} >= {style.AGAIN_HATCH}
    assert "baseline (again)" not in describe("losses", runs)
    assert "baseline (again)" in describe("throughput", runs)


def test_a_ceiling_below_the_rate_is_not_drawn_as_if_it_were_one() -> None:
    run = session()[0]
    low = msgspec.structs.replace(
        run.raw, ceiling_samples_per_s=[0.5 * rate for rate in run.raw.block_samples_per_s]
    )
    runs = [msgspec.structs.replace(run, raw=low)]
    assert "ceiling" not in words_of(figure("throughput", runs))
