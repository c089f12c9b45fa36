"""A JupyterLab server of its own and a page in it, driven by its states; the fixtures are in conftest.py."""

import ast
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
from axe_playwright_python.sync_playwright import Axe

from tests.support import forks, zygotes

REPO = Path(__file__).parents[2]
ARTEFACTS = Path(__file__).parent / "artefacts"

# No news prompt, no autosave under the test's feet, no completer requests beside the kernel's own work.
QUIET = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": QUIET,
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
    "@jupyterlab/completer-extension/manager": {"autoCompletion": False},
}
# Runs a server without a parser of URLs for events that nobody sends: making it takes a core 2 s.
LIGHTER = """
import runpy, sys
sys.modules["rfc3987_syntax"] = None
runpy.run_module("{}", run_name="__main__", alter_sys=True)
"""


def violations(page, selector=None):
    """What axe-core finds wrong in a page or in the elements that match, one line a rule and element."""
    rules = Axe().run(page, selector).response["violations"]
    return [f"{rule['id']}: {rule['help']}: {node['html'][:150]}" for rule in rules for node in rule["nodes"]]


def setup_in(data):
    """The first lines of a notebook whose results are in a folder of its own."""
    path = f"import os, sys\nsys.path.insert(0, {str(REPO)!r})\nos.environ['PERFKIT_DATA'] = {str(data)!r}\n"
    forking = "from perfkit.process import zygote\nfrom tests.support.zygotes import forking\nzygote.subprocess = forking()\n"
    return f"{path}{forking}from perfkit import notebook as pk\n"


class LabServer:
    """JupyterLab (or `notebook`: Notebook 7) with a copy of `notebooks/`; it keeps everything in `home`."""

    def __init__(self, home, module="jupyterlab"):
        self._module = module
        self.root = home / "root"
        self.root.mkdir(parents=True)
        if (notebooks := REPO / "notebooks").is_dir():
            ignore = shutil.ignore_patterns("src", ".*")
            shutil.copytree(notebooks, self.root, ignore=ignore, dirs_exist_ok=True)
        self._settings = home / "settings"
        for name, values in SETTINGS.items():
            file = self._settings / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))
        page = home / "config" / "labconfig" / "page_config.json"
        page.parent.mkdir(parents=True)
        page.write_text('{"buildCheck": false}')  # else every page has the server start node
        self._runtime = home / "runtime"
        self._log_path = home / "lab.log"
        with self._log_path.open("w") as log:
            to = {"stdout": log, "stderr": log, "start_new_session": True}
            self._process = subprocess.Popen(self._command(), env=self._environment(home), **to)
        self.url = self._wait_until_up(timeout_s=90)

    def _command(self):
        app = {"jupyterlab": "LabApp", "notebook": "JupyterNotebookApp"}[self._module]
        with socket.socket() as probe:  # should another take the port meanwhile, the server tries the next
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return [
            *(sys.executable, "-c", LIGHTER.format(self._module), "--no-browser", "--allow-root"),
            *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", f"--ServerApp.root_dir={self.root}"),
            *("--IdentityProvider.token=", "--ServerApp.password="),
            "--ServerApp.disable_check_xsrf=True",  # so that a test can ask the REST interface without a page
            f"--{app}.expose_app_in_browser=True",
            "--KernelManager.shutdown_wait_time=2",
        ]

    @staticmethod
    def _environment(home):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
        folders = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "share",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        # A kernelspec in the private data folder, should a test write one, wins over the environment's.
        places = {name: str(home / folder) for name, folder in folders.items()}
        own = {"JUPYTER_PREFER_ENV_PATH": "0", forks.ADDRESS: forks.start(**zygotes.SET), **zygotes.SET}
        return kept | places | own

    def _wait_until_up(self, timeout_s):
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and self._process.poll() is None:
            for file in self._runtime.glob("jpserver-*.json"):
                try:
                    url = json.loads(file.read_text())["url"]
                    with urllib.request.urlopen(f"{url}api/status", timeout=5):
                        return url
                except (OSError, ValueError):  # half written, or not listening yet
                    continue
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"JupyterLab did not come up; its log:\n{self._log_path.read_text()[-3000:]}")

    def write_notebook(self, name, *cells):
        """Make a notebook of code cells."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        code = [nbformat.v4.new_code_cell(cell) for cell in cells]
        notebook = nbformat.v4.new_notebook(cells=code, metadata={"kernelspec": kernel})
        nbformat.write(notebook, self.root / name)

    def start_anew(self):
        """End every kernel and forget settings made by hand (the theme), so that tests share neither."""
        for session in json.loads(self._rest("GET", "api/sessions")):
            self._rest("DELETE", f"api/sessions/{session['id']}")
        for file in self._settings.rglob("*.jupyterlab-settings"):
            if str(file.relative_to(self._settings).with_suffix("")) not in SETTINGS:
                file.unlink()

    def _rest(self, method, path):
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return bytes(reply.read())

    def stop(self):
        """End the server; it ends its kernels."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


class LabPage:
    """One browser page on one notebook. `page` is playwright's; wait with `expect(...)`, never sleep."""

    def __init__(self, page, server):
        self.page = page
        self.server = server

    # Each script runs with `app` (JupyterLab), `panel` (the current notebook) and `arg`; it must end in time.
    def _js(self, body, arg=None, timeout_s=60):
        script = f"""async ([arg, limit]) => {{
            const app = window.jupyterapp, panel = app.shell.currentWidget;
            const late = new Promise((_, no) =>
                setTimeout(() => no(new Error(`not done in ${{limit}} s`)), limit * 1000));
            return await Promise.race([late, (async () => {{ {body} }})()]);
        }}"""
        return self.page.evaluate(script, [arg, timeout_s])

    def open_notebook(self, name, timeout_s=90, at="doc/tree/{}?reset"):
        """Open a notebook alone, with an idle kernel, at its address in JupyterLab or another one."""
        self.page.goto(f"{self.server.url}{at.format(name)}", timeout=timeout_s * 1000)
        self.page.wait_for_function(
            """name => {
                const panel = window.jupyterapp?.shell?.currentWidget;
                return panel?.context?.path === name && panel.context.isReady && panel.sessionContext?.isReady
                    && panel.sessionContext.session?.kernel?.status === 'idle';
            }""",
            arg=name,
            timeout=timeout_s * 1000,
        )
        self._wait_for_splash()

    def command(self, name, args=None, timeout_s=60):
        """Run a command of JupyterLab and wait for its end."""
        self._js("await app.commands.execute(arg[0], arg[1]);", [name, args or {}], timeout_s)

    def run_cell(self, index, timeout_s=120):
        """Run one cell, counted from 0, to its end."""
        self._js("panel.content.activeCellIndex = arg; panel.content.deselectAll();", index)
        self.command("notebook:run-cell", timeout_s=timeout_s)

    def kernel_eval(self, expression, timeout_s=60):
        """The value of a Python expression in the kernel, by way of JSON; waits for a cell that runs."""
        answer = self._js(
            """const kernel = panel.sessionContext.session.kernel;
            const future = kernel.requestExecute(
                {code: '', store_history: false, user_expressions: {value: arg}});
            return (await future.done).content.user_expressions.value;""",
            f"__import__('json').dumps({expression})",
            timeout_s,
        )
        if answer["status"] != "ok":
            raise AssertionError(f"kernel_eval({expression!r}): {answer['ename']}: {answer['evalue']}")
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    @contextlib.contextmanager
    def busy_kernel(self, folder):
        """While it is active, the kernel runs code, as in a cell; `folder` is an empty one."""
        end = folder / "end"
        code = f"import pathlib, time\nwhile not pathlib.Path({str(end)!r}).exists():\n    time.sleep(0.02)"
        self._js("panel.sessionContext.session.kernel.requestExecute({code: arg});", code)
        try:
            yield
        finally:
            end.touch()

    def set_theme(self, name):
        """`JupyterLab Light`, `JupyterLab Dark` or `JupyterLab Dark High Contrast`."""
        self._wait_for_splash()
        self.command("apputils:change-theme", {"theme": name})
        light = "false" if "Dark" in name else "true"
        body = f'body[data-jp-theme-name="{name}"][data-jp-theme-light="{light}"]'
        self.page.wait_for_selector(body, state="attached")
        self._wait_for_splash()

    def _wait_for_splash(self):
        """Until the splash is gone: when a second comes within its 0.2 s of fading, JupyterLab 4.6 throws."""
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")
