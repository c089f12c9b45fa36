"""The recipe itself: JupyterLab, kernel, widget and browser work together, before anything of perfkit's."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.lab import LabPage

BUTTON = """
import ipywidgets as widgets

button = widgets.Button(description="Count")
label = widgets.HTML("<p class='said'>0 clicks</p>")
clicks = []


def count(_):
    clicks.append(1)
    label.value = f"<p class='said'>{len(clicks)} clicks</p>"


button.on_click(count)
button.add_class("scratch-button")
widgets.VBox([button, label])
"""


def test_a_button_in_a_scratch_notebook_reaches_the_kernel(lab: LabPage) -> None:
    lab.server.write_notebook("scratch.ipynb", "# %% [markdown]\n# Scratch", BUTTON)
    lab.open_notebook("scratch.ipynb")
    lab.run_all()
    button = lab.page.locator("button.scratch-button")
    said = lab.page.locator(".said")

    expect(said).to_have_text("0 clicks")
    button.click()
    expect(said).to_have_text("1 clicks")
    button.press("Enter")
    expect(said).to_have_text("2 clicks")

    assert lab.kernel_eval("len(clicks)") == 2
    lab.screenshot("smoke")


def test_an_error_in_a_cell_is_seen_and_the_kernel_restarts(lab: LabPage) -> None:
    lab.server.write_notebook("broken.ipynb", "before = 1", "1 / 0")
    lab.open_notebook("broken.ipynb")
    lab.run_all(allow_errors=True)
    assert lab.errors() == ["cell 1: ZeroDivisionError: division by zero"]
    assert lab.kernel_eval("before") == 1

    lab.restart_kernel()
    assert lab.kernel_eval("'before' in globals()") is False


def test_themes_and_axe_are_at_hand(lab: LabPage) -> None:
    lab.server.write_notebook("theme.ipynb", BUTTON)
    lab.open_notebook("theme.ipynb")
    lab.run_all()
    for theme in ("JupyterLab Dark", "JupyterLab Dark High Contrast", "JupyterLab Light"):
        lab.set_theme(theme)
        assert lab.accessibility_violations(".widget-vbox") == []
    # axe must be able to complain
    lab.page.evaluate("() => { document.querySelector('.said').innerHTML = '<img src=\"data:,\">'; }")
    assert any("image-alt" in found for found in lab.accessibility_violations(".widget-vbox"))
