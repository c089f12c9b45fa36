"""The page "Climb it yourself": a guess, then switches, all from a file and without a kernel or a network."""

import pytest
from PIL import Image
from playwright.sync_api import expect

from docs import climb, pictures
from tests.browser.lab import violations


@pytest.fixture
def ladder(page, console_errors):
    """The page from its file; a request to anything else fails it."""
    page.on("request", lambda one: one.url.startswith("file:") or console_errors.append(one.url))
    page.goto(climb.PAGE.as_uri())
    yield page
    assert not console_errors


def times(path, below="000000"):
    """How many times as fast one combination of the simulated machine is as another, as the page writes it."""
    found = climb.simulated().found
    return f"× {found[path].samples_per_s / found[below].samples_per_s:.2f}"


def switch(page, number, level):
    """The control of a level of a switch, by their numbers."""
    return page.locator(f"input[name=knob{number}]").nth(level)


def test_a_guess_comes_first_and_is_answered(ladder):
    expect(switch(ladder, 0, 1)).to_be_disabled()
    ladder.get_by_role("button", name="AMP").press("Enter")
    asked = ladder.locator("#question")
    expect(asked).to_contain_text(f"AMP alone: {times('000010')}. uint8 copy helps most.")
    expect(asked).to_contain_text("torch.compile alone: no clear change")
    expect(switch(ladder, 0, 1)).to_be_enabled()
    expect(ladder.locator("#asked")).to_be_focused()


def test_switches_work_from_the_keyboard_and_the_gains_of_the_others_change(ladder):
    ladder.get_by_role("button", name="no guess").press("Enter")
    amp = switch(ladder, 4, 1).locator("..")
    expect(amp).to_contain_text(times("000010"))
    expect(switch(ladder, 0, 0)).to_be_focused()
    ladder.keyboard.press("ArrowRight")
    numbers = climb.simulated().found["100000"]
    expect(ladder.locator("#rate")).to_contain_text(f"~{numbers.samples_per_s:.0f} samples/s")
    expect(ladder.locator("#over")).to_contain_text(f"{times('100000')} the plain loop")
    expect(amp).to_contain_text(times("100010", "100000"))
    expect(ladder.locator("#lanes")).to_contain_text("workers")
    expect(ladder.locator("#diff")).to_contain_text("num_workers=8")
    expect(switch(ladder, 0, 1)).to_be_focused()


def test_the_path_is_in_the_address_and_leads_back(ladder):
    ladder.goto(f"{climb.PAGE.as_uri()}#0=000000,100000,112111")
    ladder.reload()
    expect(ladder.locator("#question")).to_be_hidden()
    expect(ladder.locator("#goal")).to_contain_text("This is the fastest of all 96 combinations.")
    ladder.get_by_role("button", name="Loader workers 8: ").first.click()
    expect(switch(ladder, 5, 0)).to_be_checked()
    assert ladder.evaluate("location.hash") == "#0=000000,100000"
    ladder.goto(f"{climb.PAGE.as_uri()}#7=999999,<b>")
    ladder.reload()
    plain = climb.simulated().found["000000"].samples_per_s
    expect(ladder.locator("#rate")).to_contain_text(f"{plain:.0f} samples/s")


def test_what_does_not_fit_says_why_and_what_was_not_recorded_cannot_be_chosen(ladder):
    ladder.get_by_role("button", name="no guess").click()
    switch(ladder, 2, 2).check()
    expect(ladder.locator("#rate")).to_contain_text("does not run")
    expect(ladder.locator("#over")).to_contain_text("out of memory on the simulated GPU")
    ladder.get_by_role("button", name="measured on 2 CPU cores").click()
    expect(ladder.locator("#about")).to_contain_text("Recorded")
    if not (climb.RECORDINGS / climb.GRID).is_file():
        ladder.get_by_role("button", name="no guess").click()
        expect(switch(ladder, 2, 1)).to_be_disabled()
        expect(switch(ladder, 2, 1).locator("..")).to_contain_text("not recorded")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_the_page_is_accessible_and_fits(ladder, scheme, width):
    ladder.set_viewport_size({"width": width, "height": 720})
    ladder.emulate_media(color_scheme=scheme)
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert violations(ladder) == [] and ladder.evaluate(fits)
    ladder.get_by_role("button", name="AMP").click()
    ladder.get_by_role("button", name="show it").click()
    assert violations(ladder) == [] and ladder.evaluate(fits)
    ladder.set_viewport_size({"width": 1280, "height": 720})


def test_the_readme_shows_the_pictures_that_are_made():
    """Small enough for a page; the animation has a frame for the question and for each switch."""
    readme = (climb.ROOT / "README.md").read_text(encoding="utf-8")
    names = [*pictures.PANELS, *pictures.ANIMATIONS]
    for name in names:
        assert f"docs/images/{name}" in readme
        assert (pictures.FOLDER / name).stat().st_size < 1_000_000
    for name in pictures.ANIMATIONS:
        assert Image.open(pictures.FOLDER / name).n_frames == 1 + len(pictures.CLICKS)
