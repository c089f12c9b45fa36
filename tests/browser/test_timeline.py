"""The timeline by itself, in a page and in a frame of a notebook: search, folding, selection, gaps, lines."""

import io

import pytest
from PIL import Image, ImageStat
from playwright.sync_api import expect

from perfkit.additions.trace.timeline import PARTS, Lane, TimelineLanes, interactive
from perfkit.show import html
from tests.browser.lab import ARTEFACTS

TEXTS = ["", "train.py:7", "train.py:9", "forward", "conv", "launch", "step", "kernel_a", "kernel_b", "relu"]


def columns(*bars):
    """A row of the timeline; each bar has name, start and duration in µs, part, and perhaps a place."""
    row = []
    for name, start, duration, part, *place in bars:
        about = (TEXTS.index(name), PARTS.index(part), TEXTS.index(*place or [""]))
        row.append((1000 * start, 1000 * duration, *about))
    return list(map(list, zip(*row, strict=True)))


HOST = [
    columns(("forward", 0, 40, "annotation", "train.py:7"), ("step", 50, 10, "cpu_op", "train.py:9")),
    columns(("conv", 0, 30, "cpu_op", "train.py:7")),
    columns(("launch", 5, 10, "runtime")),
]
DEVICE = (("kernel_a", 10, 10, "kernel"), ("kernel_b", 60, 30, "kernel"))
LANES = TimelineLanes(
    start=0,
    end=100_000,
    left_out=0,
    step=0,
    steps=([0], [100_000], ["step"]),
    texts=TEXTS,
    lanes=[
        Lane(label="main", kind="thread", rows=HOST),
        Lane(label="GPU", kind="stream", rows=[columns(*DEVICE)]),
    ],
)


@pytest.fixture
def shown(page, console_errors):
    """Shows lanes in a page by itself."""

    def show(lanes):
        page.set_content(html.page("Timeline", [interactive(lanes)]))
        page.wait_for_function("() => window.pkFrames > 0")
        return page

    yield show
    assert console_errors == []


@pytest.fixture
def timeline(shown):
    return shown(LANES)


def test_the_longest_gap_is_selected_then_the_next(timeline):
    timeline.locator("#pk-timeline").press("g")
    expect(timeline.locator("#pk-timeline-event")).to_have_text(
        "Gap 1, the longest: 40.0 µs in which the device does nothing"
    )
    expect(timeline.locator("#pk-timeline-span")).to_have_text("Selected 40.0 µs:")
    expect(timeline.locator("#pk-timeline-sum")).to_contain_text("marks of the program 10.0 µs")
    timeline.get_by_role("button", name="Longest gap").click()
    expect(timeline.locator("#pk-timeline-event")).to_contain_text("10.0 µs in which the device")
    timeline.get_by_role("button", name="All").click()
    expect(timeline.locator("#pk-timeline-span")).to_have_text("In view, 100.0 µs:")


def test_search_finds_names_and_lines_of_code(timeline):
    timeline.locator("#pk-timeline").press("/")
    timeline.keyboard.type("kernel_")
    expect(timeline.locator("#pk-timeline-hits")).to_have_text("2 events, 40.0 µs in all")
    find = timeline.get_by_label("Find events")
    find.fill("conv")
    find.press("Enter")
    expect(timeline.locator("#pk-timeline-event")).to_contain_text("main · train.py:7")
    timeline.get_by_role("button", name="All of train.py:7").click()
    expect(timeline.locator("#pk-timeline-hits")).to_have_text("2 events, 40.0 µs in all")
    find.fill("nowhere")
    expect(timeline.locator("#pk-timeline-hits")).to_have_text("nothing is called that")


def test_a_lane_folds_by_its_box_and_by_a_click_on_its_name(timeline):
    canvas = timeline.locator("#pk-timeline")
    high = canvas.bounding_box()["height"]
    timeline.get_by_text("Unfolded lanes").click()
    timeline.get_by_label("main").uncheck()
    assert canvas.bounding_box()["height"] == high - 30
    canvas.click(position={"x": 20, "y": 28})
    assert canvas.bounding_box()["height"] == high
    expect(timeline.get_by_label("GPU")).to_be_disabled()


def test_a_span_is_selected_with_the_mouse_and_with_the_keyboard(timeline):
    canvas = timeline.locator("#pk-timeline")
    canvas.press("Shift+ArrowRight")
    expect(timeline.locator("#pk-timeline-span")).to_have_text("Selected 5.0 µs:")
    canvas.press("Escape")
    expect(timeline.locator("#pk-timeline-span")).to_have_text("In view, 100.0 µs:")
    box = canvas.bounding_box()
    assert box
    timeline.keyboard.down("Shift")
    timeline.mouse.move(box["x"] + 300, box["y"] + 40)
    timeline.mouse.down()
    timeline.mouse.move(box["x"] + 500, box["y"] + 40)
    timeline.mouse.up()
    timeline.keyboard.up("Shift")
    expect(timeline.locator("#pk-timeline-span")).to_contain_text("Selected")


def test_steps_are_visited_and_what_is_not_shown_is_said(shown):
    steps = ([10_000, 110_000], [100_000] * 2, ["step 1", "step 2"])
    gpu = Lane(label="GPU", kind="stream", rows=[columns(*DEVICE, ("relu", 120, 20, "kernel"))])
    window = TimelineLanes(
        start=10_000, end=210_000, left_out=1500, step=0, steps=steps, lanes=[gpu], texts=TEXTS
    )
    page = shown(window)
    canvas, said = page.locator("#pk-timeline"), page.locator("#pk-timeline-said")
    expect(said).to_contain_text("10.0 µs to 110.0 µs of 210.0 µs; 1,500 events are not here")
    canvas.press("s")
    expect(said).to_contain_text("110.0 µs to 210.0 µs")
    expect(page.locator("#pk-timeline-sum")).to_have_text("kernels 20.0 µs (20%, 1×)")
    canvas.press("0")
    expect(said).to_contain_text("10.0 µs to 210.0 µs")
    canvas.click(position={"x": 300, "y": 8})
    expect(said).to_contain_text("10.0 µs to 110.0 µs")


def test_a_frame_has_the_colours_of_the_notebook_around_it(page):
    brightness = {}
    for is_light in ("true", "false"):
        paper = "#fff" if is_light == "true" else "#111"
        body = f"<body data-jp-theme-light='{is_light}' style='background:{paper}'>"
        page.set_content(f"<!DOCTYPE html><html>{body}{html.fragment([interactive(LANES)])}")
        frame = page.frame_locator("iframe.pk-frame")
        expect(frame.locator("#pk-timeline-sum")).to_contain_text("kernels 40.0 µs")
        picture = page.locator("iframe.pk-frame").screenshot(path=ARTEFACTS / f"timeline-{is_light}.png")
        with Image.open(io.BytesIO(picture)) as image:
            brightness[is_light] = ImageStat.Stat(image.convert("L")).mean[0] / 255
            blue = (0, 114, 178)  # of kernels: the real colour in both themes
            assert blue in {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    assert brightness["true"] > 0.8
    assert brightness["false"] < 0.3
