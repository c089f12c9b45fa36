"""The panels in JupyterLab, driven as a person does: on what the page shows, never on sleeps."""

import re

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import ARTEFACTS, setup_in, violations

pytestmark = pytest.mark.usefixtures("no_orphans")

THEMES = ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast")
TOY = "'tests.support.toy:Toy'"
SLOW = f"{TOY}, options={{'delay_s': 3600}}"
DONE = 150_000
STAGE = f"panel = pk.StagePanel('data_loading', workload={TOY})\npanel"
MANY = """
from msgspec.structs import replace
from perfkit.results.store import RunStore
from tests.unit.show.fake_runs import session
for number in range(100):
    for run in session()[:2]:
        RunStore().add(replace(run, id=f"{run.id}-{number}", session=f"s{number}"))
pk.Workbench(workload=session()[0].workload)
"""


def opened(lab, data, first, *more):
    """A notebook whose first cell has run, with an empty store; the panel in it."""
    lab.server.write_notebook("panel.ipynb", setup_in(data) + first, *more)
    lab.open_notebook("panel.ipynb")
    lab.run_cell(0)
    return lab.page.locator(".pk-panel").first


def status(panel, text):
    expect(panel.locator(".pk-status")).to_have_text(text, timeout=DONE)


def result(lab, cell=0):
    """What a cell shows of a result, above its details."""
    return lab.page.locator(".jp-CodeCell").nth(cell).locator(".pk-doc").first


def test_a_stage_from_guess_to_result_while_other_cells_run(lab, data_dir):
    panel = opened(lab, data_dir, STAGE, "[6 * 7, panel.is_busy]")
    expect(panel.locator(".pk-switch-workers input")).to_have_value("1", timeout=DONE)
    panel.locator(".pk-guess input").fill("1.5")
    panel.locator(".pk-guess input").press("Enter")
    panel.locator("button.pk-run").press("Enter")
    expect(panel.locator(".pk-status")).not_to_have_text("ready", timeout=DONE)
    expect(panel.locator("button.pk-run")).to_be_disabled()
    lab.run_cell(1)
    assert lab.kernel_eval("_") == [42, True], "a cell runs beside the measuring"
    status(panel, "done")
    expect(result(lab).locator("svg").first).to_be_visible()
    for answer in ("Why: waiting for data", "Parity: on equal batches", "Your guess: 1.50×"):
        expect(result(lab)).to_contain_text(answer)
    top, end = panel.bounding_box(), result(lab).locator("ul").first.bounding_box()
    assert end["y"] + end["height"] - top["y"] < 620, "from question to answer on a screen of 1280 × 800"
    assert lab.kernel_eval("[run.status for run in panel.runs]") == ["ok", "ok"]
    rounds = "[len(run.raw.block_samples_per_s) for run in panel.runs]"
    before = lab.kernel_eval(rounds)
    panel.locator("button.pk-continue").press("Enter")  # three rounds of the preset smoke decide nothing
    expect(panel.locator("button.pk-run")).to_be_disabled()
    status(panel, "done")
    assert lab.kernel_eval(rounds) == [2 * count for count in before], "its rounds are added to those before"
    panel.locator("button.pk-keep").press("Enter")
    expect(panel.locator(".pk-climb")).to_contain_text("The climb so far: data loading")
    for theme in THEMES:
        lab.set_theme(theme)
        assert violations(lab.page, ".pk-panel") == []
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert lab.page.evaluate(wide) <= 0, "nothing scrolls sideways"
    lab.run_cell(0)  # the cell again: one panel, the stored results in it, without asking for the guess again
    expect(lab.page.locator(".pk-panel")).to_have_count(1)
    expect(panel.locator(".pk-status")).to_contain_text("measured earlier", timeout=DONE)


def test_a_result_of_a_cell_stands_below_it_and_is_saved_once(lab, data_dir):
    panel = opened(lab, data_dir, STAGE, "panel.run()")
    lab.run_cell(1)
    status(panel, "done")
    expect(result(lab, 1).locator("svg").first).to_be_visible()
    expect(result(lab, 0)).to_have_count(0)
    lab.command("docmanager:save")
    saved = nbformat.read(lab.server.root / "panel.ipynb", as_version=4)
    outputs = [output.get("data", {}) for cell in saved.cells for output in cell.outputs]
    shown = [str(data.get("text/html", "")) for data in outputs]
    assert sum("<svg" in text for text in shown) == 1


def test_the_kernel_s_stop_button_ends_run_all(lab, data_dir, no_orphans):
    panel = opened(lab, data_dir, STAGE.replace(TOY, SLOW), "panel.run()", "after = True")
    lab.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    panel = lab.page.locator(".pk-panel").first
    status(panel, re.compile("measuring|warm-up|first step|building"))
    lab.command("notebook:interrupt-kernel")
    expect(lab.page.locator(".jp-CodeCell").nth(1)).to_contain_text("KeyboardInterrupt")
    waiting = lab.page.locator(".jp-CodeCell").nth(2).locator(".jp-InputPrompt")
    expect(waiting).not_to_contain_text("*")  # the kernel refuses what was sent together with the one before
    assert lab.kernel_eval("'after' in globals()") is False


def test_the_workbench_by_keyboard(lab, data_dir):
    bench = opened(lab, data_dir, f"bench = pk.Workbench(workload={TOY}, preset='smoke')\nbench", MANY)
    rows = bench.locator(".pk-history tbody tr")
    status(bench, "ready")
    expect(bench.locator(".pk-n-a summary")).to_contain_text("cannot act here")
    workers = bench.locator(".pk-switch-workers input")
    workers.fill("1")
    workers.press("Tab")
    expect(bench.locator(".pk-switch-workers.pk-changed")).to_be_visible()
    bench.locator("button.pk-run").press("Enter")
    status(bench, "done")
    expect(rows).to_have_count(2)
    expect(result(lab)).to_contain_text("First losses: the same")
    bench.locator("button.pk-export").press("Enter")
    expect(bench.locator(".pk-script pre")).to_contain_text("num_workers=1")
    lab.page.evaluate("() => { delete Navigator.prototype.clipboard; }")  # as on a page over plain http
    bench.locator(".pk-script button").press("Enter")
    expect(bench.locator(".pk-script button")).to_have_text("Copied")
    bench.locator("button.pk-delete").press("Enter")
    expect(rows).to_have_count(0)
    bench.locator("button.pk-undo").press("Enter")
    expect(rows).to_have_count(2)
    assert violations(lab.page, ".pk-panel") == []
    lab.run_cell(1)
    history = lab.page.locator(".pk-history").last
    rows = history.locator("tbody tr:not([hidden])")
    expect(rows).to_have_count(200, timeout=DONE)
    history.locator("th button", has_text="samples/s").press("Enter")
    expect(history.locator("th[aria-sort=descending]")).to_contain_text("samples/s")
    for last in ("–", "–"):  # what has no ratio comes last, whichever is first
        history.locator("th button", has_text="× baseline").press("Enter")
        expect(rows.first.locator(".pk-ratio")).not_to_have_text(last)
        expect(rows.last.locator(".pk-ratio")).to_have_text(last)
    history.locator("input[type=search]").fill("data loading")
    expect(rows).to_have_count(100)
    for at in range(2):
        rows.nth(at).locator("input").press("Space")
    expect(result(lab, 1)).to_contain_text("not all measured together", timeout=DONE)


def test_a_panel_in_an_output_widget_or_a_tab_shows_its_result(lab, data_dir):
    boxes = (
        "import ipywidgets\nout = ipywidgets.Output()\ndisplay(out)\n"
        f"with out:\n    display(pk.StagePanel('data_loading', workload={TOY}))"
    )
    tab = f"ipywidgets.Tab([pk.StagePanel('batch_size', workload={TOY}).widget], titles=['one'])"
    panel = opened(lab, data_dir, boxes, tab)
    panel.locator("button.pk-run").press("Enter")
    status(panel, "done")
    expect(panel.locator(".pk-result svg").first).to_be_visible()
    lab.run_cell(1)
    panel = lab.page.locator(".pk-panel").nth(1)
    panel.locator("button.pk-run").press("Enter")
    expect(panel.locator(".pk-switch-batch_size input")).to_be_disabled()
    status(panel, "done")
    expect(panel.locator(".pk-result svg").first).to_be_visible()
    for theme in THEMES:
        lab.set_theme(theme)
        assert violations(lab.page, ".pk-panel") == []
        ARTEFACTS.mkdir(exist_ok=True)
        lab.page.screenshot(path=ARTEFACTS / f"tab-{theme}.png")


# ---------------------------------------------------------------- drills: here, as they have one server with the panels


def test_a_drill_by_keyboard_from_the_question_to_the_score(lab, data_dir, tmp_path):
    lab.server.write_notebook("drill.ipynb", setup_in(data_dir) + "card = pk.drill(3)\ncard", "pk.drills()")
    lab.open_notebook("drill.ipynb")
    lab.run_cell(0)
    drill = lab.page.locator(".pk-drill").first
    expect(drill.locator("svg").first).to_be_visible()
    drill.get_by_role("button", name="the data").press("Enter")
    expect(drill.get_by_role("button", name="✓ the data")).to_be_visible()
    drill.get_by_role("button", name="Show the answer").press("Enter")
    expect(drill.get_by_role("alert")).to_contain_text("Not answered yet: 2.")
    drill.get_by_role("button", name="8 workers").press("Space")
    slider = drill.get_by_role("slider")
    before = float(slider.input_value())
    with lab.busy_kernel(tmp_path):  # then the page keeps what the slider says, and sends it after the click
        for _ in range(7):
            slider.press("ArrowLeft")
        moved = float(slider.input_value())
        assert moved == pytest.approx(before - 0.7)
        expect(drill.locator(".pk-bound input")).to_have_value(f"{moved:g}")
        drill.get_by_role("button", name="Show the answer").press("Enter")
    expect(drill.locator(".pk-result svg")).to_be_visible()
    expect(drill.locator(".pk-result")).to_contain_text("3 of 3 points")
    assert lab.kernel_eval("card.bound.value") == pytest.approx(moved)
    for theme in THEMES:
        lab.set_theme(theme)
        assert violations(lab.page, ".pk-drill") == []
    lab.page.set_viewport_size({"width": 380, "height": 800})
    wide = "card => card.scrollWidth - card.clientWidth"
    expect(drill).to_be_visible()
    assert drill.evaluate(wide) <= 0, "only the pictures scroll sideways"
    lab.run_cell(1)
    expect(lab.page.locator(".jp-CodeCell").nth(1)).to_contain_text("3 of 3 points; 1 of 8 drills answered")
