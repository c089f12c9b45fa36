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


def test_the_book_opens_and_is_searched_from_its_folder(page, console_errors, tmp_path):
    """A request to a network fails it."""
    site = book.build(tmp_path)
    page.on("request", lambda one: console_errors.append(one.url) if one.url.startswith("http") else None)
    for name in PAGES:
        page.goto((site.parent / name).as_uri())
        assert page.title()
    page.goto((site.parent / "notebooks/01_baseline.html").as_uri())
    content = page.get_by_role("main")
    expect(content).to_contain_text("Not measured on this machine")
    expect(content).to_contain_text("samples/s")
    knob = page.frame_locator("iframe[title^='The pipeline']").get_by_role("button", name="8 workers")
    knob.click()  # alive, where a chapter's saved output has a picture
    expect(knob).to_have_attribute("aria-pressed", "true")
    page.goto(site.as_uri())
    guess = page.frame_locator("iframe[title='Climb it yourself']").get_by_role("button", name="AMP")
    guess.click()
    expect(guess).to_have_count(0)
    page.get_by_role("textbox", name="Search").fill("autocast")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results li").first).to_be_visible()
    assert not console_errors
    for name in PAGES:  # last, as axe itself asks for style sheets, which a browser refuses for file://
        page.goto((site.parent / name).as_uri())
        assert not violations(page), name
