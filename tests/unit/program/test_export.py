"""The script of a recipe: only the chosen branches, no perfkit, and what a stage changes in it."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import libcst as cst
import pytest

from perfkit import export, workloads
from perfkit.errors import WorkloadError
from perfkit.ladder import stages
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.ladder.presets import Sizing
from perfkit.recipe import Recipe, Value, switches
from perfkit.rules import Target

OWN = sorted(workloads.BUILT_IN.values())
EXTERNAL = "my_module:MyWorkload"
SIZES = Sizing(workers=2, batch_size=8, large_batch=16, largest_batch=32, amp="bf16", threads=1)
OFFERS = frozenset({"uint8_copy", "device_resize", "batched_fetch"})
EVERYTHING = Target("cuda", OFFERS, count=2)


def _values() -> list[tuple[str, Value]]:
    """Every switch with every value worth trying."""
    found = []
    for name, switch in switches().items():
        values = [switch.default, *switch.levels, *switch.choices, *([3] if switch.kind is int else [])]
        found += [(name, value) for value in dict.fromkeys(values)]
    return found


VALUES = _values()


def _recipe(name: str, value: Value) -> Recipe:
    return Recipe(**{"workers": 1, "compile": True, name: value})  # type: ignore[arg-type]


def _identifiers(text: str) -> set[str]:
    tree = ast.parse(text)
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def _imported(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@cache
def _written(workload: str, name: str, value: Value) -> str:
    return export.script(_recipe(name, value), workload, {})


def test_the_tests_below_go_over_every_switch() -> None:
    assert {name for name, _ in VALUES} == set(switches())
    assert len(VALUES) > 2 * len(switches())
    assert len(OWN) >= 2


@pytest.mark.parametrize("workload", OWN)
@pytest.mark.parametrize(("name", "value"), VALUES)
def test_a_script_holds_one_recipe_and_nothing_of_perfkit(workload: str, name: str, value: Value) -> None:
    text = _written(workload, name, value)

    compile(text, "train.py", "exec")
    assert "recipe" not in _identifiers(text)
    assert "perfkit" not in _imported(text)
    assert _imported(text) <= {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "PIL"}


def test_the_scripts_hold_no_undefined_name_and_no_unused_import(tmp_path: Path) -> None:
    written = 0
    for workload in [*OWN, EXTERNAL]:
        for number, (name, value) in enumerate(VALUES):
            text = _written(workload, name, value)
            (tmp_path / f"{workload.partition(':')[2]}_{number}.py").write_text(text, encoding="utf-8")
            written += 1
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E9,F63,F7,F82,F401", "."]
    done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert written == 4 * len(VALUES)


def test_another_thread_that_parses_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, calls = ast.parse, iter(range(10_000))

    def sometimes(*given: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise SystemError("AST constructor recursion depth mismatch (before=36, after=248)")
        return parse(*given, **options)

    monkeypatch.setattr(ast, "parse", sometimes)
    assert "class" in export.script(Recipe(batch_size=7, workers=3), OWN[0], {})
    assert next(calls) > 4


@pytest.mark.parametrize("workload", OWN)
def test_workload_files_import_nothing_of_perfkit(workload: str) -> None:
    module = importlib.import_module(workload.partition(":")[0])
    assert module.__file__
    assert "perfkit" not in _imported(Path(module.__file__).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [name for name in OPTIMIZATIONS if name != "baseline"])
@pytest.mark.parametrize("workload", OWN)
def test_a_stage_changes_a_little_of_the_script(name: str, workload: str) -> None:
    offers = frozenset(getattr(workloads.find(workload), "offers", ()))
    target = Target("cuda", offers, count=2)
    lower = stages.build(stages.below(name), SIZES, target)[-1].recipe
    if name == "device_prefetch":  # on the ladder its other half, pinning, is there already
        assert lower.pin_memory
    stage = stages.stage(OPTIMIZATIONS[name], lower, SIZES, target)
    before = export.script(lower, workload, {})
    after = export.script(stage.recipe, workload, {})
    changed = [line for line in export.diff(before, after).splitlines() if line[:1] in "+-"]

    if stage.reason:
        assert before == after
    else:
        brings_ranks = (
            stage.recipe.ranks > lower.ranks
        )  # and with them their meeting and their part of the data
        assert 2 < len(changed) <= (140 if brings_ranks else 62)  # the two file lines, then at least one


def test_scripts_of_one_recipe_do_not_differ() -> None:
    text = export.script(Recipe(), OWN[0], {})
    assert export.diff(text, export.script(Recipe(), OWN[0], {})) == ""


def test_options_seed_steps_and_device_are_in_the_script() -> None:
    text = export.script(Recipe(), OWN[0], {"image_size": 40}, device="cuda:1", seed=7, steps=3)
    assert "CifarResNet18(image_size=40)" in text
    assert 'torch.device("cuda:1")' in text
    assert "seed=7" in text
    assert "else 3" in text


def test_a_script_for_a_cpu_says_how_to_start_it() -> None:
    cpu, ranks, cuda = (
        ast.get_docstring(ast.parse(export.script(recipe, OWN[0], {}, device))) or ""
        for recipe, device in ((Recipe(), "cpu"), (Recipe(ranks=2), "cpu"), (Recipe(), "cuda"))
    )
    assert "`OMP_WAIT_POLICY=PASSIVE python train.py`" in cpu
    assert "`OMP_WAIT_POLICY=PASSIVE torchrun --nproc-per-node 2 train.py`" in ranks
    assert "OMP_WAIT_POLICY" not in cuda
    assert (
        export.diff(export.script(Recipe(), OWN[0], {}), export.script(Recipe(workers=1), OWN[0], {}))[:4]
        == "--- "
    )


# ---------------------------------------------------------------- a workload that is not ours


def test_an_external_workload_is_imported_and_given_the_recipe() -> None:
    text = export.script(Recipe(amp="bf16", batch_size=5), EXTERNAL, {"width": 3})

    assert "from my_module import MyWorkload" in text
    assert "RECIPE = SimpleNamespace(batch_size=5," in text
    assert "workload.dataset(RECIPE)" in text
    assert "workload.prepare(inputs, RECIPE)" in text
    assert "MyWorkload(width=3)" in text
    assert "recipe" not in _identifiers(text)
    assert "perfkit" not in _imported(text)


def test_an_external_object_is_used_as_it_is() -> None:
    text = export.script(Recipe(), "my_module:ready", {})
    assert "ready() if callable(ready) else ready" in text


def test_a_module_of_perfkit_that_is_not_there_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="no source for 'perfkit.workloads.absent'"):
        export.script(Recipe(), "perfkit.workloads.absent:Absent", {})


# ---------------------------------------------------------------- joining


def test_unused_definitions_go_with_their_decorators_and_used_ones_stay() -> None:
    text = "import os\nimport sys\n\n\n@first\n@second\ndef unused():\n    os.getcwd()\n\n\nprint(sys.argv)\n"
    assert export._drop_unused(text).split() == "import sys print(sys.argv)".split()


def test_an_import_below_a_comment_is_not_lost() -> None:
    module = cst.parse_module("import os\n\n# said about sys\nimport sys\n")
    text = export._join([module], "main()\n")
    assert "import os\nimport sys\n" in text


def test_a_comment_of_the_program_is_kept() -> None:
    assert "# every batch has the same shape" in export.script(Recipe(), OWN[0], {})
