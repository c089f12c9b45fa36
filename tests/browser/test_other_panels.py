"""The panels of the chapters after the seventh, and what a chapter without a GPU offers."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import SETUP, LabPage

pytestmark = pytest.mark.usefixtures("no_orphans")

DONE = 90_000
TOY = "'tests.support.toy:Toy'"
SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.001)
        return super().__getitem__(index)

if __name__ == "__main__":
    data = Slow(torch.randn(256, 3, 8, 8), torch.randint(4, (256,)))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(100_000):
        for x, y in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""
SMALLEST = """e => Math.min(...[...e.querySelectorAll(':not(svg *, style, script)')].filter(x =>
    [...x.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && x.getClientRects().length
    ).map(x => parseFloat(getComputedStyle(x).fontSize)))"""
"""Pixels of the smallest text that is seen."""


def opened(lab: LabPage, *cells: str) -> Locator:
    lab.server.write_notebook("other.ipynb", SETUP + cells[0], *cells[1:])
    lab.open_notebook("other.ipynb")
    lab.run_cell(0)
    return lab.page.locator(".pk-panel").first


def done(panel: Locator) -> None:
    expect(panel.locator(".pk-status")).to_have_text("done", timeout=DONE)


def is_readable(lab: LabPage, panel: Locator, picture: str) -> None:
    assert panel.evaluate(SMALLEST) >= 12
    assert lab.accessibility_violations(".pk-panel") == []
    panel.scroll_into_view_if_needed()
    lab.screenshot(picture)


def test_a_ladder(lab: LabPage) -> None:
    names = ["batch_size", "data_loading"]
    cell = f"panel = pk.LadderPanel({names}, workload={TOY})\npanel"
    panel = opened(lab, cell)
    panel.locator("button.pk-run").click()
    expect(panel.locator(".pk-live table")).to_contain_text("batch size", timeout=DONE)
    done(panel)
    expect(panel.locator(".pk-plot svg").first).to_be_visible()
    for stage in ("baseline", "batch size", "data loading"):
        expect(panel.locator(".pk-results table").first).to_contain_text(stage)
    panel.get_by_role("button", name="Losses").click()
    expect(panel.locator(".pk-plot svg").nth(1)).to_be_visible()
    is_readable(lab, panel, "ladder-panel")


def test_a_script_is_watched_toggled_and_patched(lab: LabPage) -> None:
    (lab.server.root / "train.py").write_text(SCRIPT)
    panel = opened(lab, "panel = pk.script_panel('train.py', preset='smoke')\npanel")
    panel.locator("button.pk-watch").click()
    expect(panel.locator("progress")).not_to_have_attribute("value", "0.000", timeout=DONE)
    done(panel)
    expect(panel.locator(".pk-profiled")).to_contain_text("samples/s")
    expect(panel.locator(".pk-profiled iframe")).to_be_visible()
    expect(panel.locator(".pk-n-a", has_text="GPU").first).to_be_visible()
    panel.locator(".pk-apply button", has_text="Try Loader workers").click()
    expect(panel.locator(".pk-chip", has_text="Loader workers")).to_be_visible()
    panel.locator("button.pk-run").click()
    expect(panel.locator(".pk-history table")).to_contain_text("workers=1", timeout=DONE)
    done(panel)
    expect(panel.locator(".pk-plot svg").first).to_be_visible()
    panel.get_by_role("button", name="Patch").click()
    expect(panel.locator(".pk-diff pre")).to_contain_text("num_workers=1", timeout=DONE)
    done(panel)
    assert (lab.server.root / "train.py").read_text() == SCRIPT
    is_readable(lab, panel, "script-panel")


def test_without_a_gpu_a_chapter_offers_a_simulated_one(lab: LabPage) -> None:
    panel = opened(lab, f"panel = pk.StagePanel('pinning', workload={TOY}, device='cpu')\npanel")
    panel.locator("button.pk-offer", has_text="Simulate a V100").click(timeout=DONE)
    expect(panel.get_by_role("button", name="✓ simulated GPU")).to_be_visible()
    expect(panel.locator(".pk-switch-pin_memory input")).to_be_checked(timeout=DONE)
    panel.locator("button.pk-run").click()
    done(panel)
    expect(panel.locator(".pk-results")).to_contain_text("simulated")
    expect(panel.locator(".pk-plot svg").first).to_contain_text("copies")
    is_readable(lab, panel, "simulated-panel")
