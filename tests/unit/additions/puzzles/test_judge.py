"""The judge: it leaves its process as it was, and quotes the line that fails."""

import sys

import pytest
import torch

from perfkit.additions.puzzles import judge
from perfkit.errors import InvalidValue

CHECKS = "from judged import double, proof\nassert double(2) == 4\nproof('2 became 4')"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("def double(x):\n    return 2 * x", None),
        ("def double(x):\n    return 2 / 0", "`return 2 / 0` raised ZeroDivisionError"),
        ("def double(x:", "Python cannot read line 2"),
        ("def triple(x):\n    return 3 * x", "Define `double`"),
        ("def double():\n    return 4", "compare its parameters"),
        ("def double(x):\n    return x * SCALE", "a check sees imports, functions, classes, and constants"),
        ("import sys\nsys.exit(0)", "`sys.exit(0)` raised SystemExit"),
    ],
)
def test_an_answer_is_right_or_gets_one_sentence(answer, words, capsys):
    threads = torch.get_num_threads()
    verdict = judge.judge(CHECKS, f"print('much')\n{answer}")
    assert verdict.right == (words is None) and (words or "Right") in verdict.sentence
    assert verdict.proofs == ([] if words else ["2 became 4"])
    assert torch.get_num_threads() == threads
    assert capsys.readouterr().out == "" and sys.stdout is not None


def test_the_names_of_an_answer_are_those_that_it_defines_itself():
    names = judge.names_of("import torch\nimport json\nWIDTH = 4\ndef double(x):\n    return 2 * x")
    assert {*names} == {"json", "WIDTH", "double"}
    assert {*judge.names_of("torch = 3")} == {"torch"}, "one that hides a name of the prelude"


def test_a_script_without_main_has_no_levers():
    with pytest.raises(InvalidValue, match="no main"):
        judge.levers("WIDTH = 4")
