"""The book as a reader opens it: from its folder, without a server or a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from docs.book import __main__ as book
from docs.book import execute, slides

PAGES = ("index.html", "notebooks/01_baseline.html", "cards/amp.html", "search.html")

pytestmark = [
    pytest.mark.usefixtures("no_orphans"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Sphinx's extensions
]


@pytest.fixture(scope="module")
def site(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book, one chapter of it executed; building it checks all links."""
    return book.build(tmp_path_factory.mktemp("book"), only=["01"])


@pytest.fixture
def offline(page: Page, console_errors: list[str]) -> Page:
    """A page whose requests to a network fail the test."""
    page.on("request", lambda one: console_errors.append(one.url) if one.url.startswith("http") else None)
    return page


def violations(page: Page) -> list[str]:
    """What axe complains of."""
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_book_opens_from_its_folder(
    site: Path, offline: Page, console_errors: list[str], scheme: str
) -> None:
    offline.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    for name in PAGES:
        offline.goto((site.parent / name).as_uri())
        assert offline.title()
    offline.goto((site.parent / "notebooks/01_baseline.html").as_uri())
    content = offline.get_by_role("main")
    expect(content).to_contain_text("The results on this page are not yours")
    expect(content).to_contain_text("cpu-quick")
    assert content.locator("svg[role=img]").count() > 0, "figures are in the colours of the page"
    assert not console_errors
    for name in PAGES:  # last, as axe itself asks for style sheets, which a browser refuses for file://
        offline.goto((site.parent / name).as_uri())
        assert not violations(offline), name


def test_the_search_works_from_a_folder(site: Path, offline: Page, console_errors: list[str]) -> None:
    offline.goto(site.as_uri())
    offline.get_by_role("textbox", name="Search").fill("autocast")
    offline.keyboard.press("Enter")
    expect(offline.locator("#search-results li").first).to_be_visible()
    assert not console_errors


def test_slides_are_turned_with_keys_and_fit_the_window(
    site: Path, tmp_path: Path, offline: Page, console_errors: list[str]
) -> None:
    source = execute.chapters()[1]
    folder = site.parents[1]
    notebook = execute.executed(source, folder / "data", "cpu-quick", folder / "executed")
    target = tmp_path / "slides.html"
    target.write_text(slides.page(notebook, "01 baseline"), encoding="utf-8")
    offline.goto(target.as_uri())
    count = offline.locator(".slide").count()
    assert count > 5
    for number in range(1, count + 1):
        now = offline.locator(".slide.now")
        expect(now).to_have_attribute("aria-label", f"Slide {number} of {count}")
        box = now.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 1280 and box["y"] + box["height"] <= 720
        offline.keyboard.press("ArrowRight")
    assert not console_errors and not violations(offline)
