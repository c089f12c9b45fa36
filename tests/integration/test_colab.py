"""Where perfkit is a guest: the versions of Colab, its missing packages, one notebook without a repository."""

import json
import os
import subprocess

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from docs import elsewhere
from tests.support import colab, environments, zygotes
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
    "pk.drill(1)",
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
    assert sum(VIEW in kinds for kinds in found["shown"]) == 5
    assert found["figure"].startswith('<img alt="')
    assert found["warned"] == []


# ---------------------------------------------------------------- one notebook, and nothing else

ADDRESS = "someone/perfkit"
SAY = "import torch, perfkit; print(torch.__version__, perfkit.__file__)"


@pytest.fixture(scope="module")
def guest(tmp_path_factory):
    """Runs a notebook in a kernel of a new environment like Colab's, in an empty folder with its own home."""
    colab.require()
    home = tmp_path_factory.mktemp("home")
    python = colab.environment(tmp_path_factory.mktemp("colab"))
    kernel = home / "kernels" / "colab" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": command, "display_name": "Colab", "language": "python"}))
    variables = {
        **os.environ,
        **environments.offline(colab.WHEELS),
        **redirected(repository(tmp_path_factory.mktemp("repository"))),
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        **zygotes.SET,
    }
    for name in ("PERFKIT_DATA", "PYTHONPATH"):
        variables.pop(name, None)
    folder = tmp_path_factory.mktemp("content")

    def execute(notebook):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JUPYTER_PATH", str(home))
            where = {"metadata": {"path": str(folder)}}
            client = NotebookClient(notebook, kernel_name="colab", timeout=400, resources=where)
            client.execute(env=variables)

    return execute


def repository(folder):
    """A repository of git with the source as it is here."""
    environments.copy_of_source(folder)
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def redirected(folder):
    """The variables with which git finds a repository of GitHub in a folder."""
    key = f"url.file://{folder}.insteadOf"
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": key,
        "GIT_CONFIG_VALUE_0": f"https://github.com/{ADDRESS}",
    }


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.timeout(600)
def test_a_notebook_alone_fetches_perfkit_and_runs_and_runs_again_after_a_restart(guest):
    """The first time the guarded cell installs perfkit; a new kernel finds it, and the cell does nothing."""
    notebook = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    elsewhere.prepare(notebook, "00_start_here.ipynb", ADDRESS)
    measures = next(at for at, cell in enumerate(notebook.cells) if ".run()" in cell.source)
    notebook.cells[measures + 1 :] = [nbformat.v4.new_code_cell(SAY)]  # the rest runs in every environment
    said = []
    for _ in range(2):
        guest(notebook)
        shown = [str(cell.get("outputs", "")) for cell in notebook.cells]
        assert not any("Traceback" in text for text in shown)
        assert "samples/s" in shown[measures]
        said.append(notebook.cells[-1].outputs[0].text.split())
    version, place = said[0]
    assert said[1] == said[0]
    assert version == torch.__version__, "torch is as it was"
    assert "site-packages" in place
    assert not notebook.cells[1].outputs, "the second time the cell does nothing"


def test_the_guarded_cell_leaves_no_trace_without_an_address():
    notebook = nbformat.read(ROOT / "notebooks" / "01_baseline.ipynb", as_version=4)
    elsewhere.prepare(notebook, "01_baseline.ipynb", "")
    before = nbformat.writes(notebook)
    for _ in range(2):
        elsewhere.prepare(notebook, "01_baseline.ipynb", ADDRESS)
    badges, guarded, title = notebook.cells[:3]
    assert f"{ADDRESS}/blob/main/notebooks/01_baseline.ipynb" in badges.source
    assert f"git+https://github.com/{ADDRESS}" in guarded.source and title.source.startswith("# ")
    assert notebook.metadata.colab.gpuType == "T4"
    nbformat.validate(notebook)
    elsewhere.prepare(notebook, "01_baseline.ipynb", "")
    assert nbformat.writes(notebook) == before
