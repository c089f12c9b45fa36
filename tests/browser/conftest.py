"""Fixtures of the browser tests: one JupyterLab and one Chromium a session, a page and kernel a test."""

import re
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.lab import LabPage, LabServer

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--no-sandbox",  # as root, as in most containers, Chromium has no sandbox
    "--disable-dev-shm-usage",  # a container's /dev/shm is too small for it
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    # Nothing outside this machine is reachable, so that a page that needs the network fails here.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
# JupyterLab's own noise: pattern → why it isn't ours. Anything else on the console fails the test.
NOISE = {r"^Could not restore the debugger state: Canceled future": "it asks a kernel that restarts"}

PATIENCE_MS = 60_000
"""For what takes no time on an idle machine; tests run beside each other."""

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def chromium():
    """The system's Chromium, headless."""
    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if path is None:
        pytest.skip(f"no Chromium on this machine; looked for {', '.join(CHROMIUMS)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab_server(chromium, tmp_path_factory):
    """JupyterLab with private folders, on a copy of the notebooks."""
    server = LabServer(tmp_path_factory.mktemp("lab"))
    yield server
    server.stop()


@pytest.fixture
def console_errors():
    """What the page has complained of so far. A test that provokes an error takes it out of this list."""
    return []


@pytest.fixture(scope="session")
def browsing(chromium):
    """What all pages share: JupyterLab's scripts, which are fetched and compiled once. No animations."""
    context = chromium.new_context(
        viewport={"width": 1280, "height": 720},
        reduced_motion="reduce",
        color_scheme="null",  # otherwise frames are not told theirs
        locale="en-US",
        accept_downloads=True,
    )
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def page(browsing, console_errors):
    """A page of 1280×720; complaints on its console go to `console_errors`."""
    page = browsing.new_page()

    def on_console(message):
        text = f"{message.text} ({message.location.get('url', '')})"
        if message.type == "error" and not any(re.search(pattern, text) for pattern in NOISE):
            console_errors.append(text)

    page.on("console", on_console)
    page.on("pageerror", lambda error: console_errors.append(f"uncaught: {error.stack or error}"))
    yield page
    page.close()


@pytest.fixture
def lab(page, lab_server, console_errors):
    """A page in JupyterLab; `lab.open_notebook(...)` comes next. Console errors fail the test at its end."""
    yield LabPage(page, lab_server)
    page.close()
    lab_server.start_anew()
    assert not console_errors, "on the browser's console:\n" + "\n".join(console_errors)
