"""Arguments of a call, for any layout: the one that is set is set, and nothing else changes."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.scripts.patch_source import Refused, Source

ORDER = ("a", "b", "c")


def edited(text, name, code=""):
    source = Source("train.py", text.encode())
    (call,) = source.calls()
    if code:
        source.set_argument(call, name, code, ORDER)
    else:
        source.remove_argument(call, name)
    return source.edited().decode()


def arguments(text):
    (call,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [ast.unparse(value) for value in call.args], {k.arg: ast.unparse(k.value) for k in call.keywords}


@st.composite
def calls(draw) -> str:
    """A call in one of many layouts, with and without trailing comma, comments and packed arguments."""
    plain = draw(st.lists(st.sampled_from(["1", "x", "[1, 2]", "'ä'"]), max_size=3))
    named = draw(st.lists(st.sampled_from(["d", "e", "num"]), max_size=3, unique=True))
    parts = [*plain, *(f"{name}={draw(st.sampled_from(['0', 'y', 'y.z']))}" for name in named)]
    comma = "," if parts and draw(st.booleans()) else ""
    layout = draw(st.sampled_from(["line", "each", "hanging", "inner"]))
    if layout == "line" or not parts:
        return f"f({', '.join(parts)}{comma})  # end\n"
    if layout == "each":
        comments = [draw(st.sampled_from(["", "  # note"])) for _ in parts]
        lines = [
            f"    {part}{',' if at < len(parts) - 1 or comma else ''}{comment}\n"
            for at, (part, comment) in enumerate(zip(parts, comments, strict=True))
        ]
        return f"f(\n{''.join(lines)})\n"
    if layout == "hanging":
        joined = ",\n  ".join(parts)
        return f"f({joined}{comma})\n"
    return f"f(\n    {', '.join(parts)}{comma}\n)\n"


@given(calls(), st.sampled_from(["num", "b", "new"]))
def test_one_argument_is_set_and_the_others_stay(text, name):
    plain, named = arguments(text)
    if name == "b" and len(plain) > 1:
        plain[1] = "4"
    else:
        named[name] = "4"
    new = edited(text, name, "4")
    assert arguments(new) == (plain, named)
    assert new.count("# note") == text.count("# note")
    assert edited(new, name, "4") == new


@given(calls())
def test_a_removed_argument_is_gone_and_the_others_stay(text):
    plain, named = arguments(text)
    named.pop("num", None)
    assert arguments(edited(text, "num")) == (plain, named)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(\n    a,\n    b=1,  # why\n)\n", "f(\n    a,\n    b=1,\n    n=2,  # why\n)\n"),
        ("f(\n    a,\n    b=1  # why\n)\n", "f(\n    a,\n    b=1,\n    n=2  # why\n)\n"),
        ("f(a,\n  b)\n", "f(a,\n  b,\n  n=2)\n"),
        ("f()\n", "f(n=2)\n"),
        ("f((a), (b or c))\n", "f((a), (b or c), n=2)\n"),
    ],
)
def test_layout(before, after):
    assert edited(before, "n", "2") == after


def test_a_generator_is_refused():
    with pytest.raises(Refused, match="add n=2"):
        edited("f(x for x in y)\n", "n", "2")
