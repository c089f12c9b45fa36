"""The README's pictures, drawn from a recorded ladder. Each carries what it shows, in words, in its file."""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from perfkit.results.recordings import load
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.show import figures

if TYPE_CHECKING:
    from tests.browser.lab import LabPage

VIEW = "throughput"
IN_WORKBENCH = 3
"""The first stages of the ladder that were measured; more would not fit."""
_CELL = "from perfkit import notebook as pk\n\nbench = pk.Workbench('photos')\nbench"
_SIZE = {"width": 1280, "height": 1380}


def throughput(recording: Path, out: Path, dark: bool) -> None:
    """The ladder's bars, for a light or a dark page."""
    runs = load(recording).runs
    _save(figures.view(VIEW, runs).png(dark), words(runs), recording, out)


def words(runs: Sequence[Run]) -> str:
    """What the picture of the ladder shows, with every number that is in it."""
    return figures.view(VIEW, runs).alt


def source(recording: Path) -> str:
    """The recording that a picture was drawn from."""
    return f"{recording.name} sha256:{hashlib.sha256(recording.read_bytes()).hexdigest()}"


def _save(png: bytes, text: str, recording: Path, out: Path) -> None:
    about = PngInfo()
    about.add_itxt("Description", text)
    about.add_itxt("Source", source(recording))
    with Image.open(io.BytesIO(png)) as picture:
        # 256 colours are enough for bars and text, and a third of the bytes.
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(out, pnginfo=about, optimize=True)


def in_workbench(runs: Sequence[Run]) -> list[Run]:
    """The runs of a ladder that the picture of the workbench shows."""
    return [run for run in runs if run.status == "ok"][:IN_WORKBENCH]


def workbench(recording: Path, out: Path) -> None:
    """The workbench in JupyterLab with the recorded runs in its list; nothing is measured."""
    # With what the browser tests need, which others who read a picture may lack.
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import CHROMIUMS, FLAGS
    from tests.browser.lab import LabPage, LabServer

    shown = in_workbench(load(recording).runs)
    for run in shown:
        RunStore().add(run)
    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    with tempfile.TemporaryDirectory(prefix="perfkit-lab-") as home, sync_playwright() as playwright:
        server = LabServer(Path(home))
        try:
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            page = browser.new_page(viewport=_SIZE, reduced_motion="reduce", locale="en-US")
            _open(LabPage(page, server), shown)
            _save(page.screenshot(), words(shown), recording, out)
            browser.close()
        finally:
            server.stop()


def _open(lab: LabPage, shown: Sequence[Run]) -> None:
    """The workbench, with the controls of the last run; returns once nothing changes any more."""
    from playwright.sync_api import expect

    lab.server.write_notebook("workbench.ipynb", _CELL)
    lab.open_notebook("workbench.ipynb")
    lab.run_cell(0)
    page = lab.page
    pinned = page.locator(".pk-switch-pin_memory input")  # disabled once the workload has been read
    expect(pinned).to_be_disabled(timeout=180_000)
    page.get_by_text("Use its switches").click()
    expect(page.locator(".pk-switch-workers input")).to_have_value(str(shown[-1].recipe["workers"]))
    expect(page.locator(".pk-plot svg").first).to_contain_text(shown[-1].title)
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )
