"""The picture of a loop's two queues: its model is perfkit's, and people can use it in every theme."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import asdict, replace
from playwright.sync_api import Page, expect

from perfkit.show import html
from tests.browser.lab import ARTEFACTS, LabPage

FILE = Path(html.__file__).with_name("pipeline.html")
PARTS = ("fetch_s", "copy_s", "launch_s", "kernels_s")


class Pipeline(Struct, frozen=True, kw_only=True):
    """A loop that feeds an accelerator, and the step that it settles into; the parts in seconds a batch.

    Two queues connect three stages: batches wait for the host, kernels wait for the device.
    `show/pipeline.html` is the same model in JavaScript.
    """

    fetch_s: float
    """Of one core."""
    workers: int
    """0: the host fetches."""
    copy_s: float
    launch_s: float = 0.0
    """In which the host launches the kernels of a step; 0 if `kernels_s` was measured with it."""
    kernels_s: float
    pinned: bool = True
    """The batch is in page-locked memory, and its copy does not block the host."""
    second_stream: bool = False
    """The copy has a stream of its own. On one stream it queues behind the kernels."""

    @property
    def device_s(self) -> float:
        """Copy and kernels of a step."""
        copy, kernels = self.copy_s, self.kernels_s
        return max(copy, kernels) if self.second_stream else copy + kernels

    @property
    def step_s(self) -> float:
        """The step once the queues are steady: the longest of what goes on at the same time."""
        host = self.launch_s if self.workers else self.launch_s + self.fetch_s
        if self.pinned:
            step = max(host, self.device_s)
        elif self.second_stream:
            step = max(host + self.copy_s, self.kernels_s)
        else:  # the host waits for the kernels before the copy, and for the copy
            step = max(host, self.kernels_s) + self.copy_s
        return max(step, self.fetch_s / self.workers) if self.workers else step

    def bound(self, part: str) -> float:
        """How many times as fast it would be if one part took no time: `fetch_s`, `copy_s` and so on."""
        return self.step_s / (replace(self, **{part: 0.0}).step_s or math.inf)


@pytest.fixture
def picture(page: Page, console_errors: list[str]) -> Iterator[Page]:
    """The page by itself, from its file: no server, no kernel."""
    page.goto(FILE.as_uri())
    yield page
    assert not console_errors


def settings(count: int) -> list[Pipeline]:
    """Random ones, some with parts that cost nothing."""
    draw = random.Random(0)
    times = [lambda: draw.choice((0.0, draw.uniform(0, 1), 10 ** draw.uniform(-4, 1)))] * len(PARTS)
    return [
        Pipeline(
            workers=draw.choice((0, draw.randint(1, 16))), pinned=draw.random() < 0.5,
            second_stream=draw.random() < 0.5,
            **{name: one() for name, one in zip(PARTS, times, strict=True)},
        )
        for _ in range(count)
    ]  # fmt: skip


def test_the_picture_computes_what_perfkit_predicts(picture: Page) -> None:
    pipelines = settings(1000)
    shown = picture.evaluate(
        "([all, parts]) => all.map((p) => [model.step(p), ...parts.map((part) => model.bound(p, part))])",
        [[asdict(one) for one in pipelines], PARTS],
    )
    predicted = [[one.step_s, *(one.bound(part) for part in PARTS)] for one in pipelines]
    assert shown == pytest.approx([pytest.approx(row) for row in predicted])
    assert len({max(PARTS, key=one.bound) for one in pipelines}) == len(PARTS), "each part limits some"


def test_the_steps_that_are_drawn_settle_at_the_predicted_time(picture: Page) -> None:
    """Event by event, the loop ends where the formula does: over a whole number of rounds of the workers."""
    pipelines = settings(1000)
    settled = picture.evaluate(
        """(all) => all.map((p) => {
            const span = 40 * Math.max(1, p.workers), run = model.run(p, 1000 + span + 1);
            return (run[1000 + span].taken - run[1000].taken) / span;
        })""",
        [asdict(one) for one in pipelines],
    )
    assert settled == pytest.approx([one.step_s for one in pipelines], rel=1e-6, abs=1e-9)


def test_the_knobs_and_examples_work_from_the_keyboard(picture: Page) -> None:
    verdict = picture.locator("#verdict")
    expect(verdict).to_contain_text("data-bound")
    picture.get_by_role("button", name="8 workers").press("Enter")
    expect(verdict).to_contain_text("device-bound")
    expect(picture.locator("#queues")).to_contain_text("the workers are ahead")
    expect(picture.locator("#queues")).to_contain_text("the host waits for the copy")
    workers = picture.get_by_label("Loader workers")
    workers.press("Home")
    workers.press("ArrowRight")
    expect(workers).to_have_attribute("aria-valuetext", "1")
    expect(verdict).to_contain_text("data-bound")
    picture.get_by_role("button", name="many tiny kernels").click()
    expect(verdict).to_contain_text("host-bound")
    expect(picture.locator("#parts tr.limit")).to_contain_text("launching")
    expect(picture.locator("#queues")).to_contain_text("the device waits for the host.")
    picture.get_by_role("button", name="too few workers").click()
    expect(picture.locator("#queues")).to_contain_text("the device waits for the host, which waits for data")
    picture.get_by_role("button", name="pinned memory").press("Space")
    picture.get_by_label("Streams").press("End")
    expect(picture.locator("#picture")).to_contain_text("stream 2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_and_fits(picture: Page, scheme: Any) -> None:
    picture.emulate_media(color_scheme=scheme)
    picture.get_by_role("button", name="pinned memory").click()
    assert LabPage(picture, None).accessibility_violations("body") == []  # type: ignore[arg-type]
    assert picture.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert picture.evaluate("document.body.scrollHeight") <= 640, "the height of the frame in a notebook"
    ARTEFACTS.mkdir(exist_ok=True)
    picture.screenshot(path=ARTEFACTS / f"pipeline-{scheme}.png")


def test_a_notebook_shows_the_same_page_in_a_frame(page: Page, console_errors: list[str]) -> None:
    page.set_content(html.pipeline())
    frame = page.frame_locator("iframe")
    frame.get_by_role("button", name="second stream").click()
    expect(frame.locator("#verdict")).to_contain_text("samples/s")
    assert not console_errors
