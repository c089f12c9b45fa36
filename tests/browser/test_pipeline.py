"""The picture of a loop's two queues: its formula is what its steps settle at, and people can use it."""

import random
from pathlib import Path

import pytest
from playwright.sync_api import expect

from perfkit.additions import pages
from tests.browser.lab import violations

FILE = Path(pages.__file__).with_name("pipeline.html")
PARTS = ("fetch_s", "copy_s", "launch_s", "kernels_s")


@pytest.fixture
def picture(page, console_errors):
    """The page by itself, from its file: no server, no kernel."""
    page.goto(FILE.as_uri())
    yield page
    assert not console_errors


def settings(count):
    """Random loops, the parts in seconds a batch, some with parts that cost nothing."""
    draw = random.Random(0)
    choices = [lambda: 0.0, lambda: draw.uniform(0, 1), lambda: 10 ** draw.uniform(-4, 1)]
    return [
        {
            "workers": draw.choice((0, draw.randint(1, 16))),
            "pinned": draw.random() < 0.5,
            "second_stream": draw.random() < 0.5,
            **{part: draw.choice(choices)() for part in PARTS},
        }
        for _ in range(count)
    ]


def test_the_steps_that_are_drawn_settle_at_the_formula(picture):
    """Event by event, the loop ends where the formula does: over a whole number of rounds of the workers."""
    answers = picture.evaluate(
        """(all) => all.map((p) => {
            const span = 40 * Math.max(1, p.workers), run = model.run(p, 1000 + span + 1);
            return [(run[1000 + span].taken - run[1000].taken) / span, model.step(p)];
        })""",
        settings(1000),
    )
    settled, formula = zip(*answers, strict=True)
    assert list(settled) == pytest.approx(list(formula), rel=1e-6, abs=1e-9)


def test_the_knobs_and_examples_work_from_the_keyboard(picture):
    verdict, queues = picture.locator("#verdict"), picture.locator("#queues")
    expect(verdict).to_contain_text("data-bound")
    picture.get_by_role("button", name="8 workers").press("Enter")
    expect(verdict).to_contain_text("device-bound")
    expect(queues).to_contain_text("the workers are ahead")
    workers = picture.get_by_label("Loader workers")
    workers.press("Home")
    workers.press("ArrowRight")
    expect(workers).to_have_attribute("aria-valuetext", "1")
    expect(verdict).to_contain_text("data-bound")
    picture.get_by_role("button", name="many tiny kernels").click()
    expect(verdict).to_contain_text("host-bound")
    expect(picture.locator("#parts tr.limit")).to_contain_text("launching")
    expect(queues).to_contain_text("the device waits for the host.")
    picture.get_by_label("Streams").press("End")
    expect(picture.locator("#picture")).to_contain_text("stream 2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_and_fits(picture, scheme):
    picture.emulate_media(color_scheme=scheme)
    picture.get_by_role("button", name="pinned memory").click()
    assert violations(picture) == []
    assert picture.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert picture.evaluate("document.body.scrollHeight") <= 640, "the height of the frame in a notebook"
