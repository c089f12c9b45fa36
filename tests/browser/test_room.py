"""A learner in a workshop: joins the room once, and shares a prediction and its result by a button."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.lab import LabPage, setup_in
from tests.browser.test_panels import status
from tests.unit.room.conftest import TOKEN, Room, open_room, room  # noqa: F401 - fixtures

pytestmark = pytest.mark.usefixtures("no_orphans")


def test_a_prediction_and_its_result_are_shared_by_a_button(lab: LabPage, room: Room, data_dir: Path) -> None:  # noqa: F811
    lab.server.write_notebook(
        "room.ipynb",
        f"{setup_in(data_dir)}pk.join('{room.url}/?token={TOKEN}', name='Ann')",
        "panel = pk.StagePanel('data_loading', device='recorded:cpu-quick')\npanel",
    )
    lab.open_notebook("room.ipynb")
    lab.run_cell(0)
    expect(lab.page.locator(".jp-RenderedMarkdown").first).to_contain_text("You are Ann in the room at")
    lab.run_cell(1)
    panel = lab.page.locator(".pk-panel")
    panel.locator(".pk-predict input").fill("1.5")
    panel.locator("button.pk-guess").click()
    expect(panel.locator(".pk-told")).to_contain_text("The article")
    panel.locator("button.pk-room").click()
    status(panel, "shared with the room")
    (entry,) = room.board.entries
    assert (entry.name, entry.prediction, entry.ratio) == ("Ann", 1.5, None)
    panel.locator("button.pk-run").click()
    expect(panel.locator(".pk-results")).to_contain_text("You predicted")
    status(panel, "done")
    panel.locator("button.pk-room").click()
    status(panel, "shared with the room")
    (entry,) = room.board.entries
    assert entry.ratio is not None
    assert entry.machine
    lab.screenshot("room")
