"""The panels in JupyterLab, driven as a person does: on what the page shows, never on sleeps."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageStat
from playwright.sync_api import Locator, expect

from tests.browser.lab import REPO, SETUP, LabPage, setup_in

pytestmark = pytest.mark.usefixtures("no_orphans")

THEMES = ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast")
TOY = "'tests.support.toy:Toy'"
SLOW = "'tests.support.toy:Slow'"
DONE = 90_000
RUNS = re.compile("building|first step|warm-up|measuring|settling")


def stage(lab: LabPage, workload: str = TOY, *more: str, data: Path | None = None) -> Locator:
    """A notebook with one stage panel, run and with its diff read; in an empty folder it finds no results."""
    first = setup_in(data) if data else SETUP
    cell = f"{first}panel = pk.StagePanel('data_loading', workload={workload})\npanel"
    lab.server.write_notebook("panel.ipynb", cell, *more)
    lab.open_notebook("panel.ipynb")
    lab.run_cell(0)
    panel = lab.page.locator(".pk-panel")
    expect(panel.locator(".pk-switch-workers input")).to_have_value("1", timeout=DONE)
    return panel


def status(panel: Locator, text: str | re.Pattern[str]) -> None:
    expect(panel.locator(".pk-status")).to_have_text(text, timeout=DONE)


def test_a_stage_from_click_to_result_while_other_cells_run(lab: LabPage, data_dir: Path) -> None:
    panel = stage(lab, TOY, "[6 * 7, panel._job.busy]", data=data_dir)
    panel.get_by_text("What changes in the script").click()
    expect(panel.locator(".pk-diff pre").first).to_contain_text("num_workers=1")
    panel.locator(".pk-predict input").fill("1.5")
    panel.locator(".pk-sure select").select_option("70%")
    panel.locator("button.pk-guess").click()
    expect(panel.locator(".pk-told")).to_contain_text("The article")
    panel.locator("button.pk-run").click()
    expect(panel.locator(".pk-status")).not_to_have_text("ready", timeout=DONE)
    expect(panel.locator("button.pk-run")).to_be_disabled()
    lab.run_cell(1)
    assert lab.kernel_eval("_") == [42, True], "a cell runs beside the measuring"
    status(panel, "done")
    expect(panel.locator(".pk-plot svg").first).to_be_visible()
    expect(panel.locator(".pk-results table").first).to_contain_text("data loading")
    expect(panel.locator(".pk-results")).to_contain_text("You predicted")
    assert lab.kernel_eval("[run.status for run in panel.runs]") == ["ok", "ok"]
    panel.scroll_into_view_if_needed()
    lab.screenshot("stage-panel")
    lab.run_cell(0)  # the cell again: one panel, the last results in it
    expect(lab.page.locator(".pk-panel")).to_have_count(1)
    status(panel, re.compile("results of"))
    expect(panel.locator(".pk-predict input")).to_have_value("1.5")  # kept with its result: not asked again
    expect(panel.locator(".pk-results")).to_contain_text("Measured earlier")
    expect(panel.locator(".pk-plot svg").first).to_be_visible()


@pytest.mark.timeout(600)
def test_the_panels_of_chapters_1_to_7_take_turns_and_end(lab: LabPage) -> None:
    chapters = [file.read_text() for file in sorted((REPO / "notebooks" / "src").glob("0[1-7]_*.py"))]
    names = [re.findall(r'StagePanel\("(\w+)"', text)[0] for text in chapters]
    assert len(names) == 7
    cell = f"{SETUP}panels = [pk.StagePanel(name, workload={TOY}) for name in {names}]\ndisplay(*panels)"
    lab.server.write_notebook("seven.ipynb", cell)
    lab.open_notebook("seven.ipynb")
    lab.run_cell(0)
    panels = [lab.page.locator(".pk-panel").nth(at) for at in range(7)]
    for panel in panels:
        panel.locator("button.pk-run").click()
    expect(lab.page.locator(".pk-status", has_text="waiting: another run uses cpu").first).to_be_visible()
    for at, panel in enumerate(panels):
        expect(panel.locator(".pk-status")).to_have_text("done", timeout=4 * DONE)
        expect(panel.locator(".pk-results table").first).to_be_visible()
        ends = lab.kernel_eval(f"[(run.status, run.reason) for run in panels[{at}].runs]")
        assert {status for status, _ in ends} <= {"ok", "not_applicable"}
        assert all(reason for status, reason in ends if status != "ok")
        expect(panel.locator(".pk-plot svg").first).to_be_visible()
    panels[-1].scroll_into_view_if_needed()
    lab.screenshot("seven-panels")


def test_cancel_leaves_a_panel_that_runs_again(lab: LabPage, no_orphans: Callable[[], None]) -> None:
    panel = stage(lab, SLOW)
    panel.locator("button.pk-run").click()
    status(panel, RUNS)
    panel.locator("button.pk-cancel").click()
    status(panel, "stopped")
    expect(panel.locator(".pk-error")).to_contain_text("stopped")
    no_orphans()
    expect(panel.locator("button.pk-run")).to_be_enabled()
    panel.locator("button.pk-run").click()
    status(panel, RUNS)
    panel.locator("button.pk-cancel").click()
    status(panel, "stopped")


def test_the_stop_button_ends_a_cell_that_measures(lab: LabPage, no_orphans: Callable[[], None]) -> None:
    panel = stage(lab, SLOW, "panel.run()", "'usable'")
    lab.start_cell(1)
    status(panel, RUNS)
    lab.interrupt()
    status(panel, "stopped")
    lab.run_cell(2)
    assert lab.kernel_eval("_") == "usable"
    assert lab.errors() == []
    no_orphans()


def test_a_restarted_kernel_leaves_no_process_and_the_cell_makes_a_new_panel(
    lab: LabPage, no_orphans: Callable[[], None]
) -> None:
    panel = stage(lab, SLOW)
    panel.locator("button.pk-run").click()
    status(panel, RUNS)
    lab.restart_kernel()
    no_orphans()
    lab.run_cell(0)
    expect(panel.locator("button.pk-run")).to_be_enabled()
    status(panel, "ready")
    expect(panel.locator(".pk-switch-workers input")).to_have_value("1", timeout=DONE)  # nothing is starting


def test_an_error_stands_in_the_panel(lab: LabPage) -> None:
    panel = stage(lab, "'tests.support.toy:NaNLoss'")
    panel.locator("button.pk-run").click()
    status(panel, "stopped")
    expect(panel.locator(".pk-error")).to_contain_text("the loss became")
    assert lab.errors() == []


def brightness(place: Locator) -> float:
    """Mean of what is seen there, 0 for black to 1 for white."""
    with Image.open(io.BytesIO(place.screenshot())) as picture:
        return float(ImageStat.Stat(picture.convert("L")).mean[0]) / 255


def timeline_zooms_and_follows_the_theme(lab: LabPage, panel: Locator) -> None:
    frame = panel.frame_locator(".pk-profiled iframe")
    said = frame.locator("#pk-timeline-said")
    whole = said.inner_text()
    frame.locator("#pk-timeline").press("ArrowUp")
    expect(said).not_to_have_text(whole)
    whole_frame = panel.locator(".pk-profiled iframe")
    lab.eventually(lambda: brightness(whole_frame) > 0.7)
    lab.set_theme("JupyterLab Dark")
    lab.eventually(lambda: brightness(whole_frame) < 0.4)  # it is drawn again in a frame of its own
    lab.screenshot("timeline-dark")


def chips_by_keyboard(panel: Locator) -> None:
    workers, kept = (panel.locator(f".pk-switch-{name} input") for name in ("workers", "prefetch_factor"))
    expect(kept).to_be_hidden()
    workers.press("ArrowUp")
    expect(kept).to_be_visible()
    chip = panel.get_by_role("button", name="Loader workers: 1")
    chip.press("Enter")
    expect(chip).to_be_hidden()
    expect(panel.get_by_role("button", name="The baseline")).to_be_focused()
    expect(workers).to_have_value("0")
    expect(panel.get_by_role("button", name="zero_grad to None: off")).to_be_visible()


def test_the_workbench_from_toggle_to_script_by_keyboard(lab: LabPage) -> None:
    lab.server.write_notebook("bench.ipynb", f"{SETUP}bench = pk.Workbench({TOY})\nbench")
    lab.open_notebook("bench.ipynb")
    lab.run_cell(0)
    panel = lab.page.locator(".pk-panel")
    pinned = panel.locator(".pk-switch-pin_memory input")
    expect(pinned).to_be_hidden(timeout=DONE)  # the machine that tests has no GPU, or Toy is on the CPU
    expect(panel.locator(".pk-n-a", has_text="needs a CUDA device").first).to_be_visible()
    panel.locator(".pk-switch-zero_grad_set_to_none input").press("Space")
    lab.eventually(lambda: lab.kernel_eval("bench.controls.recipe.zero_grad_set_to_none") is False)
    chips_by_keyboard(panel)
    panel.get_by_placeholder("of the next run").fill("mine")
    panel.get_by_placeholder("of the next run").press("Tab")
    panel.locator("button.pk-run").press("Enter")
    status(panel, "done")
    expect(panel.locator(".pk-history")).to_contain_text("mine")
    expect(panel.locator(".pk-plot svg").first).to_be_visible()
    panel.locator("button.pk-export").click()
    expect(panel.locator(".pk-script pre")).to_contain_text("zero_grad_set_to_none=False")
    lab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.locator("button.pk-copy").click()
    expect(panel.locator("button.pk-copy")).to_have_text("Copied")
    assert "import torch" in lab.page.evaluate("() => navigator.clipboard.readText()")
    with lab.page.expect_download() as saved:
        panel.locator("a.pk-download", has_text="train.py").click()
    assert "import torch" in saved.value.path().read_text()
    panel.locator("button.pk-make-report").click()
    with lab.page.expect_download() as saved:
        panel.locator("a.pk-download", has_text="report").click()
    assert "<svg" in saved.value.path().read_text()
    panel.locator("button.pk-profile").click()
    expect(panel.locator(".pk-profiled iframe")).to_be_visible(timeout=DONE)
    timeline_zooms_and_follows_the_theme(lab, panel)
    panel.get_by_role("button", name="The baseline").click()
    expect(panel.locator(".pk-switch-zero_grad_set_to_none input")).to_be_checked()
    lab.eventually(lambda: lab.kernel_eval("bench.controls.recipe.zero_grad_set_to_none") is True)
    lab.screenshot("workbench")


def test_one_s_own_module_beside_the_notebook(lab: LabPage) -> None:
    module = (REPO / "tests" / "support" / "toy.py").read_text()
    (lab.server.root / "my_training.py").write_text(module)
    cell = "panel = pk.StagePanel('batch_size', workload='my_training:Toy')\npanel"
    lab.server.write_notebook("own.ipynb", f"from perfkit import notebook as pk\n{cell}")
    lab.open_notebook("own.ipynb")
    lab.run_cell(0)
    panel = lab.page.locator(".pk-panel")
    panel.locator("button.pk-run").click()
    status(panel, "done")
    assert lab.kernel_eval("panel.runs[-1].workload") == "my_training:Toy"


def test_nothing_is_wrong_for_axe_in_any_theme_and_nothing_scrolls_sideways(lab: LabPage) -> None:
    more = f"bench = pk.Workbench({TOY})\nbench"
    panel = stage(lab, TOY, more, "pk.projector()", "# %% [markdown]\nProse", "pk.projector(False)")
    panel.locator("button.pk-run").click()
    status(panel, "done")
    lab.run_cell(1)
    expect(lab.page.locator(".pk-panel")).to_have_count(2)
    for theme in THEMES:
        lab.set_theme(theme)
        assert lab.accessibility_violations(".pk-panel") == []
        lab.screenshot(f"panel-{theme.replace(' ', '-').lower()}")
    wide = """e => [...e.querySelectorAll(':not(svg *)')].filter(x =>
        getComputedStyle(x).overflowX !== 'visible' && x.scrollWidth > x.clientWidth + 1
        && x.clientWidth > 0 && !x.matches('input, select, .widget-readout')
        || x.getBoundingClientRect().right > e.getBoundingClientRect().right && !x.closest('.wide')
        ).map(x => x.tagName + '.' + x.className)"""
    lab.command("filebrowser:activate")
    prose = "() => parseFloat(getComputedStyle(document.querySelector('.jp-RenderedMarkdown p')).fontSize)"
    usual = lab.page.evaluate(prose)
    for cell, size in ((2, "projector"), (4, "usual")):
        lab.run_cell(cell)
        large = size == "projector"
        lab.eventually(lambda large=large: (lab.page.evaluate(prose) > 1.3 * usual) == large)
        for at in range(2):
            assert lab.page.locator(".pk-panel").nth(at).evaluate(wide) == []
        assert lab.accessibility_violations(".pk-panel") == []
        lab.page.locator(".pk-panel").nth(1).scroll_into_view_if_needed()
        lab.screenshot(f"workbench-{size}")


@pytest.mark.parametrize("way", ["button", "cell"])
def test_results_are_there_once_with_a_kernel_and_without(lab: LabPage, way: str) -> None:
    panel = stage(lab, TOY, "panel.run()")
    panel.locator("button.pk-run").click() if way == "button" else lab.run_cell(1)
    still, picture = lab.page.locator(".pk-still"), lab.page.locator(".jp-RenderedImage img")
    expect(still.last).to_contain_text("data loading", timeout=DONE)
    expect(picture).to_have_count(1)
    expect(panel.locator("table", has_text="data loading").first).to_be_visible()
    expect(still).to_be_hidden()
    expect(picture).to_be_hidden()
    lab.command("docmanager:save")
    file = lab.server.root / "panel.ipynb"
    saved = json.loads(file.read_text())
    assert "widgets" not in saved["metadata"]
    widget, image, words = [output["data"] for output in saved["cells"][0]["outputs"]]
    assert "run this cell" in "".join(widget["text/plain"])
    assert "image/png" in image
    assert "data loading" in "".join(words["text/plain"])
    saved["cells"][0]["source"] = "other code is not trusted"
    (lab.server.root / "cloned.ipynb").write_text(json.dumps(saved))
    lab.server.start_anew()
    for name in ("panel.ipynb", "cloned.ipynb"):
        lab.page.goto(f"{lab.server.url}doc/tree/{name}?reset&kernel=none")
        expect(picture).to_be_visible(timeout=DONE)
        expect(lab.page.locator("table", has_text="data loading").first).to_be_visible()
        lab.screenshot(f"still-{name.partition('.')[0]}")


def test_a_recording_is_chosen_and_played_by_keyboard(lab: LabPage) -> None:
    cell = f"{SETUP}panel = pk.StagePanel('data_loading', device='cpu')\npanel"
    lab.server.write_notebook("recorded.ipynb", cell, "pk.StagePanel('amp')", "panel.table()")
    lab.open_notebook("recorded.ipynb")
    lab.run_cell(0)
    panel = lab.page.locator(".pk-panel").first
    expect(panel.get_by_role("button", name="✓ this machine")).to_be_visible()
    panel.get_by_role("button", name="recorded").press("Enter")
    panel.get_by_role("button", name="cpu-quick").press("Enter")
    expect(panel.get_by_role("button", name="✓ cpu-quick")).to_be_visible()
    expect(panel.locator(".pk-where-note")).to_contain_text(re.compile(r"Recorded 20\d\d-.* Run plays it"))
    expect(panel.locator(".pk-switch-workers input")).to_have_value("1", timeout=DONE)
    panel.locator("button.pk-run").press("Enter")
    status(panel, "done")
    expect(panel.locator(".pk-results")).to_contain_text("Nothing was measured now")
    expect(panel.locator(".pk-plot svg").first).to_be_visible()
    lab.run_cell(2)
    lab.run_cell(1)  # the choice is the session's
    other = lab.page.locator(".pk-panel").nth(1)
    expect(other.get_by_role("button", name="✓ recorded")).to_be_visible()
    assert lab.errors() == []
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        lab.set_theme(theme)
        panel.scroll_into_view_if_needed()
        lab.screenshot(f"chooser-{theme.split()[1].lower()}")
