"""The README's pictures, light and dark: a panel in JupyterLab, the page "Climb it yourself" as an animation.

`python -m docs.pictures`, with which `make recordings` ends. The panel plays the recording `cpu-quick`,
and says so; the page says what it shows.
"""

import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from docs.climb import PAGE, ROOT
from docs.colours import reduced
from tests.browser.lab import LabPage, LabServer

FOLDER = ROOT / "docs" / "images"
PANELS = {"panel.png": "JupyterLab Light", "panel-dark.png": "JupyterLab Dark"}
ANIMATIONS = {"climb.gif": "light", "climb-dark.gif": "dark"}
"""Files, and what they are seen in."""
CELL = """\
from perfkit import notebook as pk
pk.use("recorded:cpu-quick")
pk.StagePanel("data_loading")"""
MARGIN = 60  # pixels at the left of a cell's output, for its number
CLICKS = ((0, 1), (3, 1), (4, 1), (2, 1), (1, 1), (5, 1))
"""Switch and level, by their numbers, in the order in which they are turned."""
FRAME_MS, LAST_MS = 1400, 4000
COLOURS = 128


def write(folder: Path) -> list[str]:
    """Writes them into a folder; returns their names."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        with _lab(browser) as lab:
            for name, theme in PANELS.items():
                _small(_panel(lab, theme)).save(folder / name, optimize=True)
        for name, scheme in ANIMATIONS.items():
            first, *others = [_small(picture) for picture in _climbed(browser, scheme)]
            times = [*[FRAME_MS] * len(others), LAST_MS]
            first.save(folder / name, save_all=True, append_images=others, duration=times, loop=0)
    return [*PANELS, *ANIMATIONS]


@contextlib.contextmanager
def _lab(browser: Browser) -> Iterator[LabPage]:
    """JupyterLab with a notebook of one cell."""
    with tempfile.TemporaryDirectory(prefix="perfkit-pictures-") as home:
        server = LabServer(Path(home))
        try:
            server.write_notebook("panel.ipynb", CELL)
            size = {"width": 1000, "height": 1000}
            yield LabPage(browser.new_page(viewport=size, reduced_motion="reduce"), server)
        finally:
            server.stop()


def _panel(lab: LabPage, theme: str) -> bytes:
    """A panel with a guess and its result."""
    page: Page = lab.page
    lab.open_notebook("panel.ipynb")
    lab.set_theme(theme)
    lab.run_cell(0)
    panel, output = page.locator(".pk-panel").first, page.locator(".jp-CodeCell .jp-Cell-outputArea").first
    guess = panel.locator(".pk-guess input")
    guess.fill("1.5")
    guess.press("Enter")
    panel.locator("button.pk-run").click()
    expect(page.locator(".jp-CodeCell .pk-doc svg").first).to_be_visible()
    box = output.bounding_box()
    assert box
    return page.screenshot(clip={**box, "x": box["x"] + MARGIN, "width": box["width"] - MARGIN})


def _climbed(browser: Browser, scheme: str) -> Iterator[bytes]:
    """The page with the question, and after each switch."""
    page = browser.new_page(viewport={"width": 900, "height": 600}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(PAGE.as_uri())
    yield page.screenshot()
    page.get_by_role("button", name="no guess").click()
    for switch, level in CLICKS:
        page.locator(f"input[name=knob{switch}]").nth(level).check()
        yield page.screenshot()


def _small(picture: bytes) -> Image.Image:
    return reduced(Image.open(io.BytesIO(picture)).convert("RGB"), COLOURS)


def main() -> None:
    """Writes them into docs/images/."""
    FOLDER.mkdir(exist_ok=True)
    for name in write(FOLDER):
        sys.stdout.write(f"wrote {name}: {(FOLDER / name).stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
