"""A test of the tests: those that ask what the machine can do pass on one that can do nothing."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from perfkit import machine
from tests.support.cli import ROOT

ASKING = (
    "tests/contract/test_diffs.py",
    "tests/unit/ladder",
    "tests/unit/program/test_rules.py",
)
"""Where most of what is asked of a machine is decided. `make bare` runs all unit and contract tests so."""
WAITS = """
import subprocess, pytest

@pytest.fixture
def started():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()

def test_it(started):
    print("started", started.pid, flush=True)
    started.wait()
"""


def test_no_test_of_this_folder_sees_the_machine_that_runs_it():
    assert machine.facts()["id"] in ("fake", "bare")


@pytest.mark.integration
def test_what_asks_the_machine_passes_where_it_has_nothing():
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *ASKING)
    bare = os.environ | {"PERFKIT_TEST_MACHINE": "bare"}
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.integration
def test_a_test_run_that_is_ended_ends_what_it_has_started(tmp_path):
    (tmp_path / "test_waits.py").write_text(WAITS)
    command = (sys.executable, "-m", "pytest", "-s", "-p", "tests.conftest", tmp_path)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        said = next(line for line in run.stdout if "started" in line)
        run.send_signal(signal.SIGTERM)
        assert "KeyboardInterrupt" in run.stdout.read()
    assert not psutil.pid_exists(int(said.split()[-1]))
