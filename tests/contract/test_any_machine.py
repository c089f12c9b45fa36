"""A test of the tests: those that ask what the machine can do pass on one that can do nothing."""

import os
import subprocess
import sys

import pytest

from perfkit import machine
from tests.support.cli import ROOT

ASKING = (
    "tests/contract/test_diffs.py",
    "tests/unit/ladder",
    "tests/unit/program/test_rules.py",
)
"""Where most of what is asked of a machine is decided. `make bare` runs all unit and contract tests so."""


def test_no_test_of_this_folder_sees_the_machine_that_runs_it():
    assert machine.facts()["id"] in ("fake", "bare")


@pytest.mark.integration
def test_what_asks_the_machine_passes_where_it_has_nothing():
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *ASKING)
    bare = os.environ | {"PERFKIT_TEST_MACHINE": "bare"}
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
