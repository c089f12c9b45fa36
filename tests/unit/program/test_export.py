"""The script of a recipe: short, without perfkit, with the losses of the measured program."""

import ast
import itertools
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from perfkit import export, workloads
from perfkit.errors import WorkloadError
from perfkit.ladder import stages
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.ladder.presets import Sizing
from perfkit.recipe import Recipe
from perfkit.rules import Target, offers
from perfkit.train import train

CPU = torch.device("cpu")
OPTIONS: dict[str, dict[str, Any]] = {
    "photos": {"image_size": 32, "count": 48},
    "cifar_resnet18": {"image_size": 40, "samples": 64},
    "tiny_gpt": {"context": 16, "width": 16, "layers": 2, "heads": 2},
}
SIZES = Sizing(workers=2, batch_size=8, large_batch=16, largest_batch=32, amp="bf16", threads=1)
SWITCHES: list[dict[str, Any]] = [
    {}, {"workers": 1, "prefetch_factor": 4}, {"uint8_copy": True}, {"device_resize": True},
    {"batched_fetch": True, "uint8_copy": True}, {"zero_grad_set_to_none": False}, {"channels_last": True},
    {"amp": "bf16"}, {"optimizer_impl": "foreach"}, {"optimizer_impl": "fused"}, {"optimizer_impl": "loop"},
    {"cpu_threads": 1}, {"accumulation": 2}, {"activation_checkpointing": True}, {"fp32_precision": "ieee"},
]  # fmt: skip


def changed(before: str, after: str) -> list[str]:
    lines = export.diff(before, after).splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize("workload", OPTIONS)
def test_the_baseline_has_at_most_sixty_lines(workload: str) -> None:
    text = export.script(Recipe(), workload, {})
    assert len(text.splitlines()) <= 60
    assert "import perfkit" not in text and "from perfkit" not in text
    assert "recipe" not in {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("workload", OPTIONS)
def test_a_script_gives_the_losses_of_the_program(
    workload: str, switches: dict[str, Any], tmp_path: Path
) -> None:
    built, options = workloads.load(workload, OPTIONS[workload]), OPTIONS[workload]
    target = Target("cpu", offers(built), convolves=workload != "tiny_gpt")
    recipe = stages.applicable(Recipe(batch_size=4, **switches), target)[0]
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    precision = torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    try:
        expected = [loss.item() for loss in itertools.islice(train(recipe, built, CPU, seed=5), 3)]
        file = tmp_path / "train.py"
        file.write_text(export.script(recipe, workload, options, seed=5))
        program = runpy.run_path(str(file))["train"]
        assert [loss.item() for loss in itertools.islice(program(CPU), 3)] == expected
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.fp32_precision = precision[0]
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = precision[1:]


@pytest.mark.parametrize("workload", OPTIONS)
def test_a_rung_of_the_ladder_changes_its_own_lines_only(workload: str) -> None:
    target = Target("cuda", offers(workloads.load(workload)), convolves=workload != "tiny_gpt")
    rungs = stages.build(LADDER, SIZES, target)
    for before, after in itertools.pairwise(rungs):
        one, other = (export.script(stage.recipe, workload, {}) for stage in (before, after))
        lines = changed(one, other)
        if after.reason:
            assert not lines
        else:
            assert 0 < len([line for line in lines if line[0] == "+"]) <= 4, (after.name, lines)


def test_the_environment_and_torchrun_stand_in_the_first_line() -> None:
    plain = export.script(Recipe(), "photos", {})
    asleep = export.script(Recipe(wait_policy="passive"), "photos", {})
    assert changed(plain, asleep) == [
        '-"""Trains Photos: python train.py [STEPS]"""',
        '+"""Trains Photos: OMP_WAIT_POLICY=PASSIVE python train.py [STEPS]"""',
    ]
    assert "torchrun --nproc-per-node 2 train.py" in export.script(Recipe(ranks=2), "photos", {})


def test_device_seed_and_steps_are_in_the_script() -> None:
    text = export.script(Recipe(), "cifar_resnet18", {}, device="cuda:1", seed=7, steps=3)
    assert 'torch.device("cuda:1")' in text and "torch.manual_seed(7)" in text and "else 3" in text


def test_every_script_compiles_and_says_what_its_switches_do() -> None:
    for name, card in OPTIMIZATIONS.items():
        for workload in OPTIONS:
            recipe = Recipe().replace(**card.changes(SIZES))
            text = export.script(recipe, workload, {})
            compile(text, "train.py", "exec")
            assert text == export.script(recipe, workload, {}), name


def test_a_workload_of_one_s_own_is_imported_and_gets_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(batch_size=8, workers=0)
    text = export.script(recipe, "tests.support.toy:Toy", {"delay_s": 0.0})
    assert "from tests.support.toy import Toy" in text and "workload = Toy(delay_s=0.0)" in text
    (tmp_path / "train.py").write_text(text)
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    program = runpy.run_path(str(tmp_path / "train.py"))["train"]
    expected = train(recipe, workloads.load("tests.support.toy:Toy"), CPU)
    assert [next(program(CPU)).item()] == [next(expected).item()]
    assert "toy" not in sys.argv


def test_a_module_of_perfkit_that_is_not_there_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="no source for"):
        export.script(Recipe(), "perfkit.workloads.absent:Absent", {})


def test_the_excerpt_is_the_program_itself() -> None:
    text = export.excerpt(export.script(Recipe(), "photos", {}))
    assert text.startswith("def train(device):") and "yield loss" in text and "__main__" not in text
