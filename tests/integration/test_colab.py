"""Where perfkit is a guest: the versions of Colab, its missing packages, one notebook without a repository."""

import json
import os
import subprocess

import pytest

from tests.support import colab, environments
from tests.support.cli import ROOT

PANELS = """
import json, sys, warnings
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
with warnings.catch_warnings(record=True) as caught, capture_output() as output:
    warnings.simplefilter("always")
    shell.run_cell("from perfkit import notebook as pk").raise_error()
    for cell in %r:
        shell.run_cell(cell, store_history=True).raise_error()
import IPython, ipywidgets, psutil
print(json.dumps({
    "versions": [IPython.__version__, ipywidgets.__version__, psutil.__version__],
    "shown": [[*one.data] for one in output.outputs],
    "figure": output.outputs[-1].data["text/html"][:60],
    "warned": [str(one.message) for one in caught if "/perfkit/" in one.filename],
}))
"""
CELLS = [
    "pk.StagePanel('data_loading')",
    "pk.LadderPanel(['data_loading', 'amp'])",
    "pk.Workbench()",
    f"pk.script_panel({str(ROOT / 'data/scripts/plain_loop.py')!r})",
    "pk.recording('cpu-quick')",
    "display(pk.recording('cpu-quick').plot('throughput'))",
]
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment like Colab's, with what the guarded cell adds to it."""
    colab.require()
    python = colab.environment(tmp_path_factory.mktemp("colab"))
    environments.install(python, "msgspec", "nvidia-ml-py", wheels=colab.WHEELS)
    return python


def test_panels_and_figures_display_with_the_versions_of_colab(python, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [python, "-c", PANELS % CELLS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"] == ["7.34.0", "7.7.1", "5.9.5"]
    assert sum(VIEW in kinds for kinds in found["shown"]) == 4
    assert found["figure"].startswith('<img alt="')
    assert found["warned"] == []
