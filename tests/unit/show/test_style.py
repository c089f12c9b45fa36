"""SVG that lives in a page: follows its theme, clashes with nothing, has a text for screen readers."""

import re
import threading
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.show import style, units
from perfkit.show.figures import VIEWS, view
from tests.unit.show.fake_runs import session


@pytest.fixture(scope="module")
def svg() -> str:
    return view("throughput", session()).svg()


def test_it_is_one_element_of_real_text_in_the_ink_of_its_page(svg: str) -> None:
    assert svg.startswith("<svg")
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "resize on device</text>" in svg
    assert "var(--jp-content-font-color1, #212223)" in svg
    assert "#212223" not in svg.replace(", #212223)", "")
    assert "#ffffff" not in svg, "no paper"


def test_screen_readers_get_the_numbers() -> None:
    picture = view("memory", session(title='<&"quoted">'))
    root = ElementTree.fromstring(picture.svg())
    assert root.get("role") == "img"
    assert root.get("aria-label") == picture.alt


def test_ids_occur_nowhere_else_and_resolve() -> None:
    pages = [view(name, session(gpu=True)).svg() for name in [*VIEWS, "throughput"]]
    ids = [re.findall(r'\bid="([^"]+)"', page) for page in pages]
    flat = [name for some in ids for name in some]
    assert len(flat) > 100
    assert len(flat) == len(set(flat))
    for page, own in zip(pages, ids, strict=True):
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page)) <= set(own)


def test_nothing_acts_on_the_page_or_fetches(svg: str) -> None:
    assert "<style" not in svg
    assert "<script" not in svg
    assert not re.findall(r'(?:src|href)="(?!#)', svg)


def test_threads_do_not_disturb_each_other() -> None:
    import matplotlib

    before, drawn = dict(matplotlib.rcParams), list[bytes]()
    picture = view("memory", session()[:2])
    threads = [threading.Thread(target=lambda: drawn.append(picture.png(dpi=40))) for _ in range(3)]
    threads += [
        threading.Thread(target=lambda: drawn.append(picture.png(dark=True, dpi=40))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(png.startswith(b"\x89PNG") for png in drawn)
    assert sorted(map(drawn.count, set(drawn))) == [3, 3], "a light and a dark picture"
    assert dict(matplotlib.rcParams) == before


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
