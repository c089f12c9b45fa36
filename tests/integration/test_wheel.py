"""Installed from a wheel, without a checkout and without Jupyter: what ships is there, and data is the user's."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.support import environments
from tests.support.cli import ROOT

JUPYTER = (
    "IPython",
    "ipython",
    "ipywidgets",
    "anywidget",
    "jupyter",
    "ipykernel",
    "matplotlib",
    "notebook",
    "traitlets",
)
FACTS = """
import json, sys
import perfkit, perfkit.notebook as pk
from perfkit import machine
from perfkit.additions import puzzles
from perfkit.additions.trace.table import Trace
from perfkit.results import recordings
from perfkit.workloads.files import text_file
Trace("recorded:photos-baseline")
text_file("texts/workbook.txt")
try:
    pk.StagePanel
except perfkit.PerfkitError as problem:
    said = str(problem)
print(json.dumps({
    "from": perfkit.__file__,
    "data": str(machine.data_folder()),
    "checkout": machine.checkout(),
    "recordings": sorted(recordings.available()),
    "pages": [(machine.shipped("recordings") / name).is_file() for name in ("climb.html", "lanes/sim-v100-data_loading.json")],
    "puzzles": (puzzles.folder() / "checks" / "loader.py").is_file(),
    "panel": said,
    "torch": "torch" in sys.modules,
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Runs commands of an environment that has perfkit's wheel, in a folder that has nothing but a clone's."""
    wheels, home = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("home")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels]
    subprocess.run([*build, environments.copy_of_source(tmp_path_factory.mktemp("source"))], check=True)
    python = environments.make(tmp_path_factory.mktemp("environment"), JUPYTER)
    environments.install(python, *wheels.glob("perfkit-*.whl"))
    cwd = tmp_path_factory.mktemp("work")
    (cwd / "perfkit" / "perfkit").mkdir(parents=True)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PERFKIT_DATA", "PYTHONPATH")
    }
    environment |= {"HOME": str(home), "XDG_DATA_HOME": str(home / "data")}

    def run(*command):
        program = [python.with_name(command[0]), *command[1:]]
        return subprocess.run(program, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    run.cwd, run.home = cwd, home
    return run


def test_what_ships_is_in_the_wheel_and_nothing_is_written_beside_it(installed):
    done = installed("python", "-c", FACTS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "site-packages" in found["from"], "a folder `perfkit` where Python starts hides nothing"
    assert found["data"] == str(installed.home / "data" / "perfkit")
    assert found["checkout"] is None
    assert found["pages"] == [True, True]
    assert found["recordings"] == ["cpu-quick", "sim-v100"] and found["puzzles"]
    assert "pip install jupyterlab ipywidgets" in found["panel"]
    assert not found["torch"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["show", "recorded:cpu-quick"], "data loading"),
        (["trace", "recorded:photos-baseline"], "Diagnosis"),
        (["export", "--stage", "data_loading", "--workload", "photos"], "num_workers=1"),
        (["show", "recorded:cpu-quick", "--html", "page.html"], "--html needs matplotlib"),
    ],
)
def test_commands_work_without_a_checkout_and_without_jupyter(installed, command, words):
    done = installed("perfkit", *command)
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in installed.cwd.iterdir()] == ["perfkit"]


@pytest.mark.usefixtures("no_orphans")
def test_a_script_is_watched_without_a_checkout_and_without_jupyter(installed):
    script = shutil.copy(ROOT / "data" / "scripts" / "plain_loop.py", installed.home)
    done = installed("perfkit", "watch", script, "--budget", "5", "--", "--images", "32")
    assert done.returncode == 0, done.stderr
    assert "samples/s" in done.stdout
