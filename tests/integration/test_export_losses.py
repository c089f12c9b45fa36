"""The exported script of a recipe gives the losses of the training program, to the last digit; and what is
declared `bitwise` changes none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from perfkit import export, workloads
from perfkit.ladder import stages
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.ladder.presets import Sizing
from perfkit.old_train import train
from perfkit.recipe import Recipe
from perfkit.rules import Target
from perfkit.worker import parity
from tests.support import scripts

CIFAR = workloads.reference("cifar_resnet18")
PHOTOS = workloads.reference("photos")
GPT = workloads.reference("tiny_gpt")
SMALL = {"image_size": 40, "samples": 64, "weights": "random"}
STEPS = 3

RECIPES: dict[str, dict[str, Any]] = {
    "baseline": {},
    "workers": {"workers": 2, "prefetch_factor": 4},
    "strict float32": {"fp32_precision": "ieee"},
    "uint8": {"uint8_copy": True},
    "uint8 and resize": {"uint8_copy": True, "device_resize": True, "zero_grad_set_to_none": False},
    "channels_last": {"channels_last": True},
    "bf16": {"amp": "bf16", "channels_last": True},
    "foreach": {"optimizer_impl": "foreach"},
    "fused": {"optimizer_impl": "fused", "zero_grad_set_to_none": False},
    "batched fetch": {"batched_fetch": True, "workers": 1},
    "one thread": {"cpu_threads": 1},
    "accumulation": {"accumulation": 2, "batch_size": 4},
}


def losses_here(recipe: Recipe, workload: str, options: dict[str, Any]) -> list[float]:
    threads = torch.get_num_threads()
    try:
        with parity.fp32_precision_kept():
            return train(workloads.load(workload, options), recipe, torch.device("cpu"), STEPS)
    finally:
        torch.set_num_threads(threads)


def losses_of_script(recipe: Recipe, workload: str, options: dict[str, Any], folder: Path) -> list[float]:
    text = export.script(recipe, workload, options, steps=STEPS)
    assert "from perfkit" not in text
    assert "import perfkit" not in text
    (folder / "train.py").write_text(text)
    return [float(line.rpartition(" ")[2]) for line in scripts.run(folder / "train.py").splitlines()]


@pytest.mark.parametrize("name", RECIPES)
def test_the_script_gives_the_losses_of_the_training_program(name: str, tmp_path: Path) -> None:
    recipe = Recipe(**{"batch_size": 8, **RECIPES[name]})
    assert losses_of_script(recipe, CIFAR, SMALL, tmp_path) == losses_here(recipe, CIFAR, SMALL)


@pytest.mark.parametrize("name", ["baseline", "workers", "uint8"])
def test_it_does_for_photos_with_their_random_augmentation(name: str, tmp_path: Path) -> None:
    recipe = Recipe(**{"batch_size": 8, **RECIPES[name]})
    options = {"image_size": 32, "count": 48}
    assert losses_of_script(recipe, PHOTOS, options, tmp_path) == losses_here(recipe, PHOTOS, options)


def test_it_does_for_a_transformer_on_a_text(tmp_path: Path) -> None:
    recipe = Recipe(batch_size=8, uint8_copy=True, batched_fetch=True, workers=1, amp="bf16")
    text = Path(__file__).parents[2] / "data/texts/workbook.txt"  # the script stands in a folder of its own
    options = {"context": 16, "width": 16, "layers": 2, "heads": 2, "text": str(text)}
    assert losses_of_script(recipe, GPT, options, tmp_path) == losses_here(recipe, GPT, options)


EVERYTHING = Target("cpu", frozenset({"uint8_copy", "device_resize", "batched_fetch"}))
SIZES = Sizing(workers=1, batch_size=8, large_batch=16, largest_batch=16, amp="bf16", threads=1)
# What needs several ranks is trained in several processes: tests/integration/test_ranks.py.
ALONE = [name for name, rung in OPTIMIZATIONS.items() if "ranks" not in rung.changes(SIZES)]
QUICK_TO_TEST = [name for name in ALONE if name not in ("baseline", "compile", "max_autotune")]


@pytest.fixture(scope="module")
def baseline() -> list[float]:
    return losses_here(Recipe(batch_size=8), CIFAR, SMALL)


@pytest.mark.parametrize("name", QUICK_TO_TEST)
def test_an_optimization_is_as_exact_as_it_is_declared(name: str, baseline: list[float]) -> None:
    rung = OPTIMIZATIONS[name]
    stage = stages.stage(rung, Recipe(batch_size=8), SIZES, EVERYTHING)
    if stage.reason:
        assert any(word in stage.reason for word in ("CUDA", "accelerator", "on a CPU"))
        return
    losses = losses_here(stage.recipe, CIFAR, SMALL)
    if rung.exactness == "bitwise":
        assert losses == baseline
    elif rung.exactness == "tolerance" and stage.recipe.batch_size == 8:
        assert losses == pytest.approx(baseline, rel=0.03)
    elif name != "amp":  # which also raises the batch
        assert losses != baseline
