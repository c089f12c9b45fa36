"""From a suggestion to lines of code: every switch that a diagnosis may name exists, and has an edit."""

from __future__ import annotations

import ast
import inspect

from perfkit.recipe import Recipe, switches
from perfkit.studies.edits import edits, following
from perfkit.trace import diagnosis


def finding(*names: str) -> diagnosis.Bottleneck:
    return diagnosis.Bottleneck(
        bottleneck="x", message="x", exposed_us=1.0, share_of_step=0.5, gain_at_most=2.0, evidence={},
        try_next=list(names),
    )  # fmt: skip


def test_the_edit_is_the_diff_of_the_first_suggestion_of_each() -> None:
    found = edits([finding("workers", "compile"), finding("workers"), finding()], Recipe(), "cuda")
    ((heading, diff),) = found
    assert heading == "--set workers=1"
    assert "+        num_workers=1," in diff


def test_every_suggestion_of_a_diagnosis_is_a_switch_with_another_value() -> None:
    tree = ast.parse(inspect.getsource(diagnosis))
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List) and node.elts]
    texts = [str(e.value) for node in lists for e in node.elts if isinstance(e, ast.Constant)]
    assert len(texts) > 20
    assert [name for name in texts if name not in switches()] == []
    free = [name for name in texts if switches()[name].levels]
    assert [name for name in free if following(Recipe(), name) == Recipe()] == []
