from __future__ import annotations

import pytest

from perfkit.fold import fold
from perfkit.recipe import Recipe, Value


def _fold(text: str, **values: Value) -> str:
    return fold(text, Recipe(**values), external=False).code  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = recipe.workers\n", "x = 4\n"),
        ("x = self.recipe.amp\n", 'x = "bf16"\n'),
        ("x = 1 if recipe.workers > 0 else 2\n", "x = 1\n"),
        ("x = recipe.workers >= 4 and f()\n", "x = f()\n"),
        ("x = recipe.workers < 4 or f()\n", "x = f()\n"),
        ("x = not recipe.compile\n", "x = True\n"),
        ('x = recipe.amp in ("bf16", "fp16")\n', "x = True\n"),
        ("for _ in range(recipe.accumulation - 1):\n    f()\ng()\n", "g()\n"),
        ("if recipe.compile:\n    f()\ng()\n", "g()\n"),
        ("if recipe.compile:\n    f()\nelse:\n    # why\n    g()\n", "# why\ng()\n"),
        ('if recipe.amp == "off":\n    f()\nelif recipe.amp == "bf16":\n    g()\nelse:\n    h()\n', "g()\n"),
        ('if recipe.amp == "off":\n    f()\nelif recipe.amp == "fp16":\n    g()\nelse:\n    h()\n', "h()\n"),
        ('if recipe.amp == "off":\n    f()\nelif recipe.amp == "fp16":\n    g()\nh()\n', "h()\n"),
        ('if x:\n    f()\nelif recipe.amp == "bf16":\n    g()\n', "if x:\n    f()\nelse:\n    g()\n"),
        ("if x:\n    f()\nelif recipe.compile:\n    g()\n", "if x:\n    f()\n"),
        (
            "def f(a, recipe):\n    if recipe.workers:\n        return a\n    return 0\n",
            "def f(a):\n    return a\n",
        ),
        ("f(a, recipe)\n", "f(a)\n"),
        ("f(recipe=recipe)\n", "f()\n"),
    ],
)
def test_what_the_recipe_decides_is_folded(before: str, after: str) -> None:
    assert _fold(before, workers=4, amp="bf16") == after


@pytest.mark.parametrize(
    "text",
    [
        "x = recipe.no_such_switch\n",
        "x = other.workers\n",
        "if x:\n    f()\nelif y:\n    g()\nelse:\n    h()\n",
        "x = a and b\n",
        "x = 0 < 4 < 2\n",
        "for _ in range(3):\n    f()\n",
        "x = -1  # kept\n",
    ],
)
def test_what_it_does_not_decide_stays(text: str) -> None:
    assert _fold(text) == text


def test_only_a_foreign_workload_gets_the_recipe_as_an_object() -> None:
    text = "data = workload.dataset(recipe)\nloader = make_loader(workload, recipe)\n"
    assert (
        fold(text, Recipe(), external=False).code
        == "data = workload.dataset()\nloader = make_loader(workload)\n"
    )
    assert "workload.dataset(RECIPE)" in fold(text, Recipe(), external=True).code
