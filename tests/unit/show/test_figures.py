"""Every view: what it drew (by its artists), that nothing overlaps or is cut off, that bad data is borne."""

import itertools
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import matplotlib
import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text

from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.results.schema import Decision, Raw
from perfkit.results.stats import Estimate
from perfkit.show import figures, style
from perfkit.show.figures import step_time, throughput
from perfkit.show.style import Figure, Look, Row
from tests.unit.show.fake_runs import again, disturbed, many, session

every_view = pytest.mark.parametrize("view", [step_time, throughput])


def words_of(drawing):
    """Texts that a person would see."""
    texts = [text for text in drawing.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return "\n".join(text.get_text() for text in texts)


def drawn(picture, dark=False):
    """The matplotlib figure on a light or a dark page."""
    with style.theme(dark):
        drawing = picture.draw()
        drawing.draw_without_rendering()  # ticks take their colour when they are first drawn
    return drawing


@every_view
@pytest.mark.parametrize(("count", "gpu"), [(1, False), (10, True), (20, False)])
def test_no_text_overlaps_or_is_cut_off(view, gpu, count, monkeypatch):
    runs, boxes = many(count, gpu) if count > 10 else session(gpu)[:count], []
    drawing = drawn(view(disturbed(again(gpu)) if count == 10 else runs))

    def draw(text, renderer):
        if text.get_visible() and text.get_text().strip():
            boxes.append((text.get_text(), text.get_window_extent(renderer)))

    monkeypatch.setattr(Text, "draw", draw)  # labels of ticks outside an axis are not drawn
    FigureCanvasAgg(drawing).draw()
    assert len(boxes) >= 2
    width, height = drawing.canvas.get_width_height()
    for text, box in boxes:
        assert -1 <= box.x0 <= box.x1 <= width + 1, text
        assert -1 <= box.y0 <= box.y1 <= height + 1, text
    for (text, first), (other, second) in itertools.combinations(boxes, 2):
        wide = min(first.x1, second.x1) - max(first.x0, second.x0)
        high = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert wide <= 1 or high <= 2, f"{text!r} overlaps {other!r} by {wide:.0f} × {high:.0f}"


@every_view
def test_stages_without_numbers_say_why_and_the_words_have_the_numbers(view):
    picture = view(session(gpu=True))
    assert re.search(r"data loading: [\d.,]+", picture.alt)
    assert "AMP: cancelled: Stopped by the person" in picture.alt
    assert any("cancelled: Stopped by" in row.text for row in picture.rows)


@every_view
def test_hostile_and_empty_data_is_borne(view):
    bare = Run(id="x", session="s", created="", stage="<b>$x^{$", workload="", device="cuda", recipe={})
    odd = msgspec.structs.replace(bare, title="\x00$\\frac{1}\n" * 9, status="failed", reason="$\\bad{ " * 99)
    losses = [float("nan"), float("inf")]
    nothing = msgspec.structs.replace(session()[0], raw=Raw(), losses=losses, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for runs in ([], [bare], [odd], [bare, odd, nothing], [nothing]):
            picture = view(runs)
            ElementTree.fromstring(picture.svg())
            assert picture.alt.startswith(picture.title)


def test_what_is_in_a_row_is_painted():
    pieces = [(2.0, Look("a", style.BLUE)), (0.0, Look("none", style.SKY)), (1.0, Look("b", "none"))]
    picture = Figure("", "", [Row("row", pieces, "3", Estimate(3.0, 2.5, 3.5))], "s")
    (axes,) = drawn(picture).axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 2.0), (2.0, 1.0)]
    assert list(axes.lines[0].get_xdata()) == [2.5, 3.5]
    for text in ("row", "3", "a", "b", "s"):
        assert text in words_of(axes.figure).splitlines()
    assert "none" not in words_of(axes.figure)


def test_throughput_has_bars_and_those_of_dropped_stages_are_hollow():
    runs = disturbed(again())
    rows = throughput(runs).rows
    for row, run in zip(rows, runs, strict=True):
        rate = run.samples_per_s
        assert row.interval == rate
        assert [width for width, _ in row.pieces] == ([rate.value] if rate else [])
    assert rows[-1].text.endswith("samples/s\n1.00× (0.94–1.08)"), "the baseline again has no verdict"
    kept = [run for run in recordings.find("cpu-quick") if run.stage == "kept_so_far"]
    assert kept and all(row.text.endswith("samples/s") for row in throughput(kept).rows), "nor have these"
    assert "samples/s\n▲ 1.53× (1.43–1.65) faster" in rows[1].text, "a remark, and never the verdict"
    dropped = msgspec.structs.replace(runs[1], decision=Decision(False, "climb", "slower"))
    assert throughput([dropped]).rows[0].pieces[0][1] == Look("not kept", "none")


def test_a_line_climbs_through_what_was_kept():
    before, kept, absent, *_ = session()
    decisions = Decision(True, "climb"), Decision(False, "climb", "slower")
    kept, dropped = (msgspec.structs.replace(kept, decision=decision) for decision in decisions)
    assert absent.status == "not_applicable"
    picture = throughput([before, absent, kept, dropped])
    line = drawn(picture).axes[0].lines[-1]
    ends = [(before.samples_per_s.value, 0), (kept.samples_per_s.value, 2)]
    assert [*zip(*line.get_data(), strict=True)] == ends


def test_bars_of_a_cpu_show_the_wait_where_it_was_and_count_workers():
    before, after = session()[:2]
    picture = step_time([before, after])
    head, loader, host, second, _ = picture.rows
    step, wait = 1e3 * before.step_s.value, 1e3 * before.step_s.value * before.data_wait_share
    assert head.text.startswith("baseline: 1.97 s")
    assert [width for width, _ in loader.pieces] == [wait], "the loader works while the host waits"
    assert [width for width, _ in host.pieces] == pytest.approx([wait, step - wait])
    assert second.text.endswith(", 1 worker")
    odd = msgspec.structs.replace(after, recipe=after.recipe | {"workers": "x"})
    words = [row.text for row in step_time([before, odd]).rows]
    assert not any("worker" in text for text in words), "a recording from others may hold anything"
    assert picture.unit == "ms for 32 samples, medians"


def test_the_bars_below_a_ratio_divide_to_it_though_medians_of_steps_do_not():
    """Steps at the starts of epochs count in the rounds, and hardly move a median."""
    before, after = session()[:2]
    raw = msgspec.structs.replace(after.raw, step_s=[step / 2 for step in after.raw.step_s])
    runs = [before, msgspec.structs.replace(after, raw=raw)]
    steps = [row.interval.value for row in figures.headline(runs).rows if row.interval]
    assert steps[0] / steps[1] == pytest.approx(after.speedup("previous").ratio)
    assert steps[0] / (1e3 * runs[1].step_s.value) > 1.5 * after.speedup("previous").ratio
    assert figures.headline(runs).unit.endswith("means of all rounds")


def test_bars_of_a_gpu_show_how_busy_it_is_as_a_share_and_one_scale_for_both_batches():
    small, large = (run for run in session(gpu=True) if run.stage in ("data_loading", "batch_size"))
    picture = step_time([small, large])
    assert "12% waits for data, device busy 72% of it" in picture.alt
    assert "512 samples, medians" in picture.unit
    _, host, *_ = picture.rows
    assert sum(width for width, _ in host.pieces) == pytest.approx(16e3 * small.step_s.value)
    raw = msgspec.structs.replace(small.raw, gpu_utilization_nvml=[])
    assert [row.label for row in step_time([msgspec.structs.replace(small, raw=raw)]).rows] == ["", "host"]


def test_a_simulated_step_says_so():
    simulated = recordings.find("sim-v100")
    assert {view(simulated).unit.split()[0] for view in (step_time, throughput)} == {"simulated"}


def test_the_headline_is_the_last_comparison_in_words():
    runs = session()
    assert figures.headline(runs[:2]).title == "data loading: 1.53× (1.43–1.65) as fast as baseline"
    assert figures.headline(runs[:1]).title == "baseline: 1.97 s (1.94–2.00) a step"
    assert figures.headline([]).nothing


def test_svg_is_real_text_in_the_ink_of_its_page_and_acts_on_nothing_else():
    views = (step_time, throughput, throughput)
    pages = [view(session(gpu=True, title='<&"quoted">')).svg() for view in views]
    roots = list(map(ElementTree.fromstring, pages))
    assert {root.get("role") for root in roots} == {"img"}
    assert roots[0].get("aria-label") == step_time(session(gpu=True, title='<&"quoted">')).alt
    text = "".join(pages)
    assert "var(--jp-content-font-color1, var(--vscode-foreground, #212223))" in text
    assert not re.findall(r"#212223(?!\))|#ffffff|<style|<script", text), "no ink of its own, no paper"
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert 100 < len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|(?:src|href)=")#?([^")]+)', text)) <= set(ids)


def test_threads_do_not_disturb_each_other():
    before, picture = dict(matplotlib.rcParams), throughput(session()[:2])
    with ThreadPoolExecutor(6) as pool:
        drawn = [*pool.map(picture.png, (True, False) * 3)]
    assert drawn == drawn[:2] * 3 and drawn[0] != drawn[1], "a dark and a light picture"
    assert all(png.startswith(b"\x89PNG") for png in drawn)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(("dark", "ink"), [(False, "#212223"), (True, "#dedfe1")])
def test_a_figure_has_the_ink_of_its_page_and_its_dollars_are_no_formulas(dark, ink):
    drawing = drawn(Figure("dot", "A $dot$", [Row("$x$", [(1.0, Look("$x$", style.BLUE))])], "$x$"), dark)
    (axes,) = drawing.axes
    assert {to_hex(text.get_color()) for text in axes.get_xticklabels()} == {ink}
    assert drawing.get_suptitle() == "A $dot$"
    assert not axes.title.get_parse_math()
