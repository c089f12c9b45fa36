"""What a notebook calls by name."""

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue


def test_every_name_is_there_and_an_unknown_one_says_which_there_are():
    assert len(dir(pk)) <= 25
    assert all(getattr(pk, name) for name in dir(pk))
    with pytest.raises(AttributeError, match="StagePanel"):
        pk.StagePane


def test_a_recording_and_a_stage_of_it():
    assert [run.stage for run in pk.recording("cpu-quick", "data_loading").found][-1] == "data_loading"
    with pytest.raises(InvalidValue, match="unknown stage 'turbo'"):
        pk.recording("cpu-quick", "turbo")


def test_commands_and_code_to_read():
    assert pk.source("perfkit.workloads.photos:Photos").startswith("class Photos")
    with pytest.raises(InvalidValue):
        pk.source("perfkit.workloads.photos:Nothing")
