"""What a watched process is told."""

import json

import msgspec
import pytest

from perfkit.additions.scripts.script import Script
from perfkit.additions.shared.settings import Settings
from tests.support.settings import settings


def told(**changes):
    """Settings as a process reads them."""
    return Settings(**json.loads(settings().to_json()) | changes)


def test_a_script_is_told_what_was_sent():
    sent = settings(loaders=[("train.py", 4, 0)], toggles={"compile": True, "workers": 2})
    assert Script(Settings(**json.loads(sent.to_json())), None).settings == sent


@pytest.mark.parametrize(
    "wrong", [{"seed": "0"}, {"loaders": [["train.py", 4]]}, {"toggles": {"compile": 0.5}}]
)
def test_a_setting_of_another_type_is_refused_before_anything_is_watched(wrong):
    with pytest.raises(msgspec.ValidationError):
        Script(told(**wrong), None)


@pytest.mark.parametrize("wrong", [{"sede": 0}, {"everywhere": True}])
def test_a_name_that_is_not_known_is_refused(wrong):
    with pytest.raises(TypeError, match=next(iter(wrong))):
        told(**wrong)


def test_a_python_that_a_script_starts_is_watched_only_if_it_may_be_a_rank():
    alone = settings(watcher="module:Watcher")
    assert not alone.handed_on().watcher and alone.handed_on().scratch == alone.scratch
    assert settings(watcher="module:Watcher", address="/tmp/ranks").handed_on().watcher
