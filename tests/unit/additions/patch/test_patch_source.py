"""Arguments of a call, for any layout: the one that is set is set, and nothing else changes."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.additions.patch.source import Refused, SourceFile
from perfkit.additions.scripts.messages import Frame


def added(text):
    source = SourceFile("train.py", text.encode())
    end = ast.parse(text).body[0].value
    call = source.call_at(Frame("train.py", 1, end.end_lineno, 0, end.end_col_offset))
    source.set_arguments(call, "n=2")
    return source.edited().decode()


@st.composite
def calls(draw):
    """A call in one of many layouts, with and without trailing comma and comments."""
    plain = draw(st.lists(st.sampled_from(["1", "x", "[1, 2]", "'ä'"]), max_size=3))
    named = draw(st.lists(st.sampled_from(["d", "e", "num"]), max_size=3, unique=True))
    parts = [*plain, *(f"{name}={draw(st.sampled_from(['0', 'y.z', '(y)']))}" for name in named)]
    comma = "," if parts and draw(st.booleans()) else ""
    separator = draw(st.sampled_from([", ", ",\n    ", ",  # note\n    "]))
    start, end = draw(st.sampled_from([("", ""), ("\n    ", "\n"), ("\n    ", "  # last\n")]))
    return f"f({start}{separator.join(parts)}{comma}{end})  # end\n"


@given(calls())
def test_one_argument_is_added_and_the_others_stay(text):
    call, new = (ast.parse(part).body[0].value for part in (text, added(text)))
    assert ast.unparse(new) == ast.unparse(call)[:-1] + (", " * bool(call.args + call.keywords)) + "n=2)"
    assert added(text).count("#") == text.count("#")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("f(x for x in y)\n", "not be valid Python"),
        ("f((a or b))\n", "not be valid Python"),
    ],
)
def test_what_cannot_be_added_is_refused(text, reason):
    with pytest.raises(Refused) as refusal:
        added(text)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("data", [b"def f(:\n", "x = 'ä'\n".encode("latin-1")])
def test_what_is_no_python_in_utf_8(data):
    with pytest.raises(Refused, match="train.py cannot be read as Python in UTF-8"):
        SourceFile("train.py", data).add_after_imports("torch.set_num_threads(1)")


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nfrom os import path\n#HERE\ntrain()\nimport matplotlib\n",
        "import torch.nn as nn\nnn.Linear(1, 1)\nimport torch\n#HERE\ntrain()\n",
        "'''About.'''\nfrom __future__ import annotations\nimport os, torch.nn\n#HERE\nif x:\n    import y\n",
    ],
)
def test_a_line_is_below_the_import_of_torch_and_above_the_training(text):
    source = SourceFile("train.py", text.replace("#HERE\n", "").encode())
    source.add_after_imports("torch.set_num_threads(1)")
    assert source.edited().decode() == text.replace("#HERE", "torch.set_num_threads(1)")


@pytest.mark.parametrize("text", ["train()\n", "import torch; train()\n", "from torch import nn\n"])
def test_a_line_that_has_no_such_place_is_refused(text):
    source = SourceFile("train.py", text.encode())
    with pytest.raises(Refused):
        source.add_after_imports("torch.set_num_threads(1)")
