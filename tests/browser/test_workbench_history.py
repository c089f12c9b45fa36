"""The workbench with 200 runs, and its queue: by keyboard, after a restart, in every theme, at 1280×720."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from perfkit.results import recordings
from perfkit.results.store import RunStore
from tests.browser.lab import SETUP, LabPage, setup_in

pytestmark = pytest.mark.usefixtures("no_orphans")

DONE = 90_000
THEMES = ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast")
TOY = f"{SETUP}bench = pk.Workbench('tests.support.toy:Toy')\nbench"
SLOW = f"{SETUP}bench = pk.Workbench('tests.support.toy:Slow')\nbench"
NOTE = "at night, door closed"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with 200 stored runs like those of a recording, measured a minute apart."""
    folder = tmp_path_factory.mktemp("filled")
    store = RunStore(folder / "runs" / "runs.sqlite")
    measured = [run for run in recordings.find("cpu-quick").runs if run.status == "ok"][:7]
    for at in range(200):
        run, session = measured[at % 7], at // 7
        pairings = [
            msgspec.structs.replace(pairing, against=f"{pairing.against}-{session}")
            for pairing in run.pairings
        ]
        raw = msgspec.structs.replace(
            run.raw, block_samples_per_s=[(1 + at / 1000) * rate for rate in run.raw.block_samples_per_s]
        )
        created = f"2026-11-{2 + at // 60:02d}T10:{at % 60:02d}:00+00:00"
        named = {"id": f"{run.id}-{session}", "session": f"s{session}", "created": created, "preset": "smoke"}
        store.add(msgspec.structs.replace(run, pairings=pairings, raw=raw, **named))
    return folder


@pytest.fixture
def two_hundred(filled: Path, data_dir: Path) -> str:
    """A cell with a workbench on a copy of that folder, which is this process's own too."""
    shutil.copytree(filled, data_dir, dirs_exist_ok=True)
    return f"{setup_in(data_dir)}bench = pk.Workbench('photos', device='cpu')\nbench"


def opened(lab: LabPage, cell: str, *more: str) -> Locator:
    lab.server.write_notebook("bench.ipynb", cell, *more)
    lab.open_notebook("bench.ipynb")
    lab.run_cell(0)
    panel = lab.page.locator(".pk-panel").first
    expect(panel.locator(".pk-runs table")).to_be_visible(timeout=DONE)
    expect(panel.locator(".pk-n-a").first).to_be_visible(timeout=DONE)  # what the workload offers is known
    return panel


def keys(page: Page, *names: str) -> None:
    for name in names:
        page.keyboard.press(name)


def cell_of(panel: Locator, row: int, column: str) -> Locator:
    return panel.locator(".pk-runs tbody tr").nth(row).locator(f".pk-col-{column}")


def test_two_hundred_runs_by_keyboard_alone(lab: LabPage, two_hundred: str) -> None:
    panel, page = opened(lab, two_hundred), lab.page
    count, rows = panel.locator(".pk-runs-count"), panel.locator(".pk-runs tbody tr")
    expect(count).to_have_text(re.compile("^200 runs"))
    expect(rows).to_have_count(10)
    search = panel.get_by_label("Filter")
    search.focus()
    page.keyboard.type("bf16 2026-11-03")
    expect(count).to_have_text(re.compile("^(8|9) of 200 runs"))
    search.fill("")
    expect(count).to_have_text(re.compile("^200 runs"))

    search.press("ArrowDown")  # into the grid: the name of the first row
    expect(cell_of(panel, 0, "name")).to_be_focused()
    keys(page, "Enter")
    page.keyboard.type("the quiet one")
    keys(page, "Enter")
    expect(cell_of(panel, 0, "name")).to_have_text("the quiet one")
    expect(cell_of(panel, 0, "name")).to_be_focused()
    keys(page, "ArrowRight", "F2")
    page.keyboard.type(NOTE)
    keys(page, "Enter")
    newest = lab.kernel_eval("next(iter(bench.history.entries)).id")

    def written() -> tuple[str, str]:
        line = next(line for line in RunStore().history() if line.id == newest)
        return line.name, line.note

    lab.eventually(lambda: written() == ("the quiet one", NOTE))
    keys(page, "ArrowDown", "F2")
    page.keyboard.type("forget this")
    keys(page, "Escape")
    expect(cell_of(panel, 1, "note")).to_have_text("")


def test_runs_are_ticked_compared_and_sorted_by_keyboard_alone(lab: LabPage, two_hundred: str) -> None:
    panel, page = opened(lab, two_hundred), lab.page
    count = panel.locator(".pk-runs-count")
    panel.get_by_role("button", name="Untick all").press("Enter")
    expect(count).to_have_text("200 runs, 0 ticked")
    cell_of(panel, 0, "name").focus()
    keys(page, " ", "PageDown")
    expect(panel.locator(".pk-runs-pages")).to_contain_text("2 / 20")
    keys(page, " ")
    expect(count).to_have_text("200 runs, 2 ticked")
    expect(panel.locator(".pk-results")).to_contain_text("against", timeout=DONE)
    expect(panel.locator(".pk-results")).to_contain_text("from 2 sessions, not interleaved")

    keys(page, "PageUp", "ArrowUp", "Home", "ArrowUp")  # to the headings, wherever it was
    panel.get_by_role("button", name="samples/s").press("Enter")
    rates = [float(one) for one in lab.kernel_eval("[row['rate_value'] for row in bench.history.grid.rows]")]
    expect(cell_of(panel, 0, "rate")).to_contain_text(f"{max(rates):.0f}")
    panel.get_by_role("button", name="samples/s").press("Enter")
    expect(cell_of(panel, 0, "rate")).to_contain_text(f"{min(rates):.0f}"[:2])
    assert lab.kernel_eval("'untouched'") == "untouched", "no key reached the notebook"
    assert lab.page.evaluate("() => jupyterapp.shell.currentWidget.content.widgets.length") == 1


def test_runs_are_used_shared_and_deleted(lab: LabPage, two_hundred: str) -> None:
    panel, page = opened(lab, two_hundred), lab.page
    count = panel.locator(".pk-runs-count")
    panel.get_by_role("button", name="Untick all").click()
    panel.get_by_label("Filter").fill("compile on")
    expect(count).to_have_text(re.compile(r"^\d+ of 200 runs, 0 ticked"))  # the first row is another one now
    cell_of(panel, 0, "ticked").locator("input").click()
    expect(count).to_have_text(re.compile("1 ticked"))
    panel.locator("button.pk-use").click()
    expect(panel.locator(".pk-switch-compile input")).to_be_checked()
    run_id = lab.kernel_eval("bench.history.grid.ticked[0]")
    panel.locator("button.pk-share").click()
    with page.expect_download() as download:
        panel.locator("a.pk-download[download='perfkit-runs.json']").click()  # not the link before it
    recording = json.loads(download.value.path().read_text())
    assert [run["id"] for run in recording["runs"]] == [run_id]
    panel.locator("button.pk-delete").click()
    expect(panel.locator(".pk-runs-count")).to_contain_text("of 199 runs, 0 ticked")
    assert run_id not in {entry.id for entry in RunStore().history()}


def test_the_history_in_every_theme_without_sideways_scrolling(lab: LabPage, two_hundred: str) -> None:
    newest = RunStore().history()[0]
    RunStore().mark(newest.id, name="the quiet one", note=NOTE)
    panel = opened(lab, two_hundred)
    wide = """e => [...e.querySelectorAll('*')].filter(x => getComputedStyle(x).overflowX === 'auto'
        && x.clientWidth > 0 && x.scrollWidth > x.clientWidth + 1).map(x => x.className)"""
    small = """e => [...e.querySelectorAll('*')].filter(x => x.innerText?.trim()
        && parseFloat(getComputedStyle(x).fontSize) < 12).map(x => x.className)"""
    expect(panel.locator(".pk-plot svg").first).to_be_visible(timeout=DONE)
    for theme in THEMES:
        lab.set_theme(theme)
        panel.locator(".pk-runs").scroll_into_view_if_needed()
        lab.page.locator(".pk-runs").evaluate("e => e.scrollIntoView({block: 'center'})")
        assert lab.accessibility_violations(".pk-runs") == []
        lab.screenshot(f"history-{theme.replace(' ', '-').lower()}")
    assert panel.locator(".pk-runs").evaluate(wide) == []
    assert panel.locator(".pk-runs").evaluate(small) == []
    table, box = panel.locator(".pk-runs table").bounding_box(), panel.bounding_box()
    assert table and box and table["width"] <= box["width"]


def test_recipes_queue_are_moved_and_removed_and_cancel_ends_one(lab: LabPage) -> None:
    panel, page = opened(lab, SLOW), lab.page
    run, name = panel.locator("button.pk-run"), panel.get_by_placeholder("of the next run")
    for title in ("first", "second", "third", "fourth"):
        name.fill(title)
        name.press("Tab")
        run.press("Enter")
        expect(name).to_have_value("")
        expect(run).to_have_text("Add to queue")
    queued = panel.locator(".pk-queued:visible")
    expect(queued).to_have_text(
        [re.compile(r"1\. second"), re.compile(r"2\. third"), re.compile(r"3\. fourth")]
    )
    panel.get_by_title("Measure fourth earlier").press("Enter")
    keys(page, "Enter")  # the focus goes along
    for text in ("1. fourth", "2. second", "3. third"):
        expect(queued.filter(has_text=text)).to_be_visible()
    tops = [queued.filter(has_text=f"{at}. ").bounding_box() for at in (1, 2, 3)]
    assert [box["y"] for box in tops if box] == sorted(box["y"] for box in tops if box)
    panel.get_by_title("Do not measure third").press("Enter")
    expect(queued).to_have_count(2)
    lab.page.locator(".pk-queue").scroll_into_view_if_needed()
    lab.screenshot("queue")
    assert lab.accessibility_violations(".pk-queue") == []
    panel.locator("button.pk-cancel").press("Enter")
    expect(queued).to_have_count(1, timeout=DONE)
    expect(queued).to_contain_text("second")
    lab.eventually(lambda: lab.kernel_eval("getattr(bench._now, 'name', '')") == "fourth")
    # The kernel's restart ends the run, and nothing of the queue is left.
    lab.restart_kernel()
    lab.run_cell(0)
    panel = lab.page.locator(".pk-panel").first
    expect(panel.locator(".pk-n-a").first).to_be_visible(timeout=DONE)
    expect(panel.locator(".pk-queued:visible")).to_have_count(0)
    expect(panel.locator("button.pk-run")).to_have_text("Run")
    assert lab.kernel_eval("bench._job.busy") is False


def test_the_next_in_the_queue_survives_an_error_and_says_what_it_came_from(lab: LabPage) -> None:
    panel = opened(lab, TOY)
    run, name, workload = (
        panel.locator("button.pk-run"),
        panel.get_by_placeholder("of the next run"),
        panel.get_by_label("Workload"),
    )
    for title, module in (
        ("fine", "tests.support.toy:Toy"),
        ("broken", "nowhere:None"),
        ("again", "tests.support.toy:Toy"),
    ):
        while (
            lab.kernel_eval("bench._asked[0]") != module
        ):  # what is typed while a panel is redrawn may be lost
            workload.fill(module)
            workload.press("Tab")
        name.fill(title)
        name.press("Tab")
        run.press("Enter")
        expect(name).to_have_value("")
    expect(panel.locator(".pk-runs tbody")).to_contain_text("again", timeout=DONE)
    expect(panel.locator(".pk-queue")).to_contain_text("broken: ")
    fine, again = (
        lab.kernel_eval(f"next(row for row in bench.history.grid.rows if row['name'] == {title!r})")
        for title in ("fine", "again")
    )
    assert again["since"] == "fine" and again["changes"] == [] and fine["since"] == "baseline"
    assert all(row["rate_value"] for row in (fine, again))
