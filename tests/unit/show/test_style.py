"""SVG that lives in a page: follows its theme, clashes with nothing, has a text for screen readers."""

from __future__ import annotations

import re
import threading
from xml.etree import ElementTree

import pytest

from perfkit.show import style
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
