"""A drill in JupyterLab: by keyboard, in every theme, and on a narrow page."""

import pytest
from playwright.sync_api import expect

from tests.browser.lab import setup_in, violations
from tests.browser.test_panels import THEMES

pytestmark = pytest.mark.usefixtures("no_orphans")


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
