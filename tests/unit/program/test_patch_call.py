"""Arguments of a call, for any layout: the one that is set is set, and nothing else changes."""

import ast

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.scripts.patch_call import with_argument, without_argument

ORDER = ("a", "b", "c")


def edited(text: str, edit) -> str:
    module = cst.parse_module(text)
    (call,) = [node for node in _nodes(module) if isinstance(node, cst.Call)]
    return module.deep_replace(call, edit(call)).code


def _nodes(node):
    yield node
    for child in node.children:
        yield from _nodes(child)


def arguments(text: str) -> tuple[list[str], dict[str, str]]:
    (call,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [ast.unparse(one) for one in call.args], {one.arg: ast.unparse(one.value) for one in call.keywords}


@st.composite
def calls(draw) -> str:
    """A call in one of many layouts, with and without trailing comma, comments and packed arguments."""
    plain = draw(st.lists(st.sampled_from(["1", "x", "[1, 2]", "'ä'"]), max_size=3))
    named = draw(st.lists(st.sampled_from(["d", "e", "num"]), max_size=3, unique=True))
    parts = [*plain, *(f"{name}={draw(st.sampled_from(['0', 'y', 'y.z']))}" for name in named)]
    parts += ["**more"] if draw(st.booleans()) else []
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
    new = edited(text, lambda call: with_argument(call, name, "4", ORDER))
    plain, named = arguments(text)
    if name == "b" and len(plain) > 1:
        plain[1] = "4"
    else:
        named[name] = "4"
    assert arguments(new) == (plain, named)
    assert new.count("# note") == text.count("# note")
    again = edited(new, lambda call: with_argument(call, name, "4", ORDER))
    assert again == new


@given(calls())
def test_a_removed_argument_is_gone_and_the_others_stay(text):
    plain, named = arguments(text)
    named.pop("num", None)
    assert arguments(edited(text, lambda call: without_argument(call, "num"))) == (plain, named)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(\n    a,\n    b=1,  # why\n)\n", "f(\n    a,\n    b=1,  # why\n    n=2,\n)\n"),
        ("f(\n    a,\n    b=1  # why\n)\n", "f(\n    a,\n    b=1,  # why\n    n=2\n)\n"),
        ("f(a,\n  b)\n", "f(a,\n  b,\n  n=2)\n"),
        ("f(x for x in y)\n", "f((x for x in y), n=2)\n"),
        ("f(a, **{'n': 1})\n", 'f(a, **{"n": 2})\n'),
    ],
)
def test_layout(before, after):
    assert edited(before, lambda call: with_argument(call, "n", "2", packed="**" in before)) == after
