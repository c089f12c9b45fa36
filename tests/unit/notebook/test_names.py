"""What a notebook calls by name."""

import subprocess
import sys

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue


def test_every_name_is_there_and_there_are_few():
    assert len(dir(pk)) <= 25
    assert all(getattr(pk, name) for name in dir(pk))


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(AttributeError, match="StagePanel"):
        pk.StagePane


def test_names_are_loaded_when_they_are_used():
    code = "import sys; from perfkit import notebook; sys.exit('ipywidgets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_recording_and_a_stage_of_it():
    runs = pk.recording("cpu-quick", "data_loading").found
    assert [run.stage for run in runs][-1] == "data_loading"
    with pytest.raises(InvalidValue, match="stage of this recording"):
        pk.recording("cpu-quick", "turbo")


def test_commands_and_code_to_read():
    assert pk.source("perfkit.workloads.photos:Photos").startswith("class Photos")
    with pytest.raises(InvalidValue):
        pk.source("perfkit.workloads.photos:Nothing")
