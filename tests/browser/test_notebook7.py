"""The panels in Notebook 7."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.lab import LabServer, setup_in
from tests.browser.test_panels import DONE, STAGE, TOY, result, status

pytestmark = pytest.mark.usefixtures("no_orphans")


@pytest.fixture(scope="module")
def lab_server(chromium, tmp_path_factory):
    """Notebook 7 in the place of JupyterLab, whose own server it would change."""
    server = LabServer(tmp_path_factory.mktemp("notebook"), "notebook")
    yield server
    server.stop()


def test_a_panel_and_the_history_work_in_notebook_7(lab, console_errors, data_dir):
    # A folder of its own: stored results would be shown to the next test that opens this panel.
    first = setup_in(data_dir)
    lab.server.write_notebook("seven.ipynb", f"{first}{STAGE}", f"pk.Workbench(workload={TOY})")
    lab.open_notebook("seven.ipynb", at="notebooks/{}")
    lab.run_cell(0)
    panel = lab.page.locator(".pk-panel").first
    expect(panel.locator(".pk-switch-workers input")).to_have_value("1", timeout=DONE)
    panel.locator("button.pk-run").click()
    status(panel, "done")
    expect(result(lab).locator("svg").first).to_be_visible()
    lab.run_cell(1)
    history = lab.page.locator(".pk-history").last
    expect(history.locator("tbody tr").first).to_be_visible(timeout=DONE)
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert lab.page.evaluate(wide) <= 0, "no sideways scrolling"
    # Notebook's own: it loads the settings of an extension that only JupyterLab has.
    own = re.compile(r"reading 'schema'\).*notebook_core", re.DOTALL)
    console_errors[:] = [error for error in console_errors if not own.search(error)]
