"""The book as a reader opens it: from its folder, without a server or a network."""

import pytest
from playwright.sync_api import expect

from docs.book import __main__ as book
from tests.browser.lab import violations

PAGES = ("index.html", "notebooks/01_baseline.html", "cards/amp.html", "search.html")

pytestmark = [
    pytest.mark.usefixtures("no_orphans"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Sphinx's extensions
]


@pytest.fixture(scope="module")
def site(chromium, tmp_path_factory):
    """The book."""
    return book.build(tmp_path_factory.mktemp("book"))


@pytest.fixture
def offline(page, console_errors):
    """A page whose requests to a network fail the test."""
    page.on("request", lambda one: console_errors.append(one.url) if one.url.startswith("http") else None)
    return page


def test_the_book_opens_and_is_searched_from_its_folder(site, offline, console_errors):
    for name in PAGES:
        offline.goto((site.parent / name).as_uri())
        assert offline.title()
    offline.goto((site.parent / "notebooks/01_baseline.html").as_uri())
    content = offline.get_by_role("main")
    expect(content).to_contain_text("played, not measured now")
    expect(content).to_contain_text("samples/s")
    offline.goto(site.as_uri())
    offline.get_by_role("textbox", name="Search").fill("autocast")
    offline.keyboard.press("Enter")
    expect(offline.locator("#search-results li").first).to_be_visible()
    assert not console_errors
    for name in PAGES:  # last, as axe itself asks for style sheets, which a browser refuses for file://
        offline.goto((site.parent / name).as_uri())
        assert not violations(offline), name
