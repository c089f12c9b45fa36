"""Answers to puzzles in a process of their own: right ones, crashes, loops without end."""

import re

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from perfkit.process.child import call
from perfkit.puzzles import capstone
from perfkit.puzzles import panel as tasks

RIGHT = """
def endless(length, generator):
    while True:
        yield from torch.randperm(length, generator=generator).tolist()
"""

pytestmark = pytest.mark.usefixtures("no_orphans")


def test_a_right_answer_shows_its_proof():
    verdict = pk.puzzle("infinite_sampler").check(RIGHT)
    assert verdict.right
    assert "five epochs" in repr(verdict)
    assert "<b>✓ Right.</b>" in verdict._repr_html_()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("while True:\n        pass", "is there a loop without end?"),
        ("__import__('os')._exit(3)", "ended the process"),
        ("yield 1 < lenght", "`yield 1 < lenght` raised NameError"),
        ("return [] +", "Python cannot read line 2"),
    ],
)
def test_an_answer_that_fails_leaves_one_sentence(body, says, monkeypatch):
    if "while" in body:
        monkeypatch.setattr(tasks, "LIMIT_S", 4.0)
    verdict = pk.puzzle("infinite_sampler").check(f"def endless(length, generator):\n    {body}")
    assert not verdict.right
    assert says in verdict.sentence
    assert "1 < lenght" not in verdict._repr_html_()


def test_the_slow_script_of_the_capstone_has_no_lever_in_effect():
    source = capstone.slow_script().read_text().replace("count=512", "count=64")
    assert set(call("perfkit.puzzles.judge:levers", source).values()) == {False}


def test_what_is_no_answer_is_refused():
    with pytest.raises(InvalidValue, match="Did you mean 'loader'"):
        pk.puzzle("loadr")
    one = pk.puzzle("loader")
    for given in ((), (3,), (len,)):
        with pytest.raises(InvalidValue, match="check"):
            one.check(*given)


def test_a_puzzle_shows_its_hints_folded():
    one = pk.puzzle("loader")
    assert one._repr_markdown_().count("<details>") == 3
    assert "`loader`" in pk.puzzles().data


def test_a_mystery_is_a_file_to_edit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "the device is idle" in repr(pk.mystery("gpu_waits"))
    file = tmp_path / "my_gpu_waits.py"
    script = file.read_text()
    assert isinstance(pk.mystery("gpu_waits"), tasks.Puzzle)
    file.write_text(script.replace("log.debug(", "(lambda _: None)("))
    assert "the host waits 32 times" in repr(pk.mystery("gpu_waits"))
    file.write_text(re.sub("log.debug.*", "", script))
    assert getattr(pk.mystery("gpu_waits"), "right", False)
    with pytest.raises(InvalidValue, match="unknown mystery 'loader'"):
        pk.mystery("loader")
