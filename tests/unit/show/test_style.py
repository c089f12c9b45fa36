"""SVG that lives in a page: follows its theme, clashes with nothing, has a text for screen readers."""

from __future__ import annotations

import re
import threading
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.scripts import tables as tables_script
from perfkit.scripts.tracked import Tracked
from perfkit.show import style, units
from perfkit.show.document import Figure
from perfkit.show.figures import VIEWS
from tests.unit.show.fake_runs import session
from tests.unit.show.test_figures import describe, figure


@pytest.fixture(scope="module")
def svg() -> str:
    return style.to_svg(figure("throughput", session()))


def test_it_is_one_element_that_parses(svg: str) -> None:
    assert svg.startswith("<svg")
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_ink_follows_the_theme(svg: str) -> None:
    assert "var(--jp-content-font-color1, #222)" in svg
    assert style.ink() not in svg
    dark = style.to_svg(figure("throughput", session(), dark=True))
    assert style.ink(dark=True) + ")" in dark
    assert style.ink(dark=True) not in dark.replace(f", {style.ink(dark=True)})", "")


def test_text_is_text_and_paper_is_left_out(svg: str) -> None:
    assert "resize on device</text>" in svg
    assert "#ffffff" not in svg


def test_screen_readers_get_the_numbers() -> None:
    made = figure("memory", session(title='<&"quoted">'))
    root = ElementTree.fromstring(style.to_svg(made))
    assert root.get("role") == "img"
    assert root.get("aria-label") == describe("memory", session(title='<&"quoted">'))


def test_ids_are_the_figures_own_and_resolve() -> None:
    pages = [style.to_svg(figure(name, session(gpu=True))) for name in [*VIEWS, "throughput"]]
    ids = [re.findall(r'\bid="([^"]+)"', page) for page in pages]
    flat = [one for some in ids for one in some]
    assert len(flat) > 100
    assert len(flat) == len(set(flat))
    for page, own in zip(pages, ids, strict=True):
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page)) <= set(own)


def test_nothing_acts_on_the_page_or_fetches(svg: str) -> None:
    assert "<style" not in svg
    assert "<script" not in svg
    assert not re.findall(r'(?:src|href)="(?!#)', svg)


def test_threads_do_not_disturb_each_other() -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(style.to_svg(figure("memory", session()[:2]))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert all("</text>" in one for one in made)


def test_png_is_on_paper_and_large_type_is_larger() -> None:
    assert style.to_png(figure("memory", session()), 40).startswith(b"\x89PNG")
    ordinary, large = (figure("memory", session(), large=large).axes[0] for large in (False, True))
    assert style.type_size(large) == 1.5 * style.type_size(ordinary)
    assert style.type_size(ordinary) >= 10


@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=60), st.floats(3, 1e6))
def test_an_outlier_is_named_not_drawn_to(values: list[float], factor: float) -> None:
    outlier = factor * 4 * max(values)
    kept, outside = style.split_outliers([*values, outlier])
    assert sorted([*kept, *outside]) == sorted([*values, outlier])
    assert kept
    assert not outside or max(kept) < min(outside)
    # Whatever its size, the axis is the same: one value moves no quartile of the others.
    assert style.split_outliers([*values, 2 * outlier])[0] == kept or outlier in kept
    assert bool(style.outliers_note([*values, outlier], "step", str)) == bool(outside)


def test_a_note_counts_what_lies_outside() -> None:
    values = [0.1, 0.11, 0.12] * 9 + [1.1, 1.0]
    assert style.outliers_note(values, "step", units.duration) == "2 steps above 120 ms, up to 1.10 s"
    assert style.outliers_note([1.0, 2.0, 3.0], "step", str) == ""
    assert style.split_outliers([float("nan"), float("inf")]) == ([], [])


def test_axes_of_losses_traces_and_loops_do_not_reach_for_an_outlier() -> None:
    run = session()[0]
    spiked = msgspec.structs.replace(run, losses=[2.4, 2.3, 2.2, 900.0, 2.1, 2.0, 1.9, 1.8])
    drawn = figure("losses", [spiked])
    assert drawn.axes[0].child_axes[0].get_ylim()[1] < 3
    assert "1 value above 2.40, up to 900" in drawn.axes[0].get_xlabel()
    result = Tracked()
    result.step_s += [0.05] * 30 + [1.0]
    result.wait_s += [0.0] * 31
    (picture,) = (one for one in tables_script.tracked(result) if isinstance(one, Figure))
    ax = picture.draw().axes[0]
    assert ax.get_ylim()[1] < 60
    assert "1 step above 50.0 ms, up to 1.00 s" in ax.get_xlabel()
