from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfkit.errors import InvalidValue, WorkloadError
from perfkit.program import export
from perfkit.program.recipe import Recipe
from perfkit.program.script import Script, is_script

CIFAR = "perfkit.workloads.cifar_resnet18:CifarResNet18"


@pytest.fixture(autouse=True)
def _modules_of_its_own() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("exported_"):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "exported_script.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_script_is_loaded_without_training(tmp_path: Path) -> None:
    recipe = Recipe(batch_size=4, workers=1, persistent_workers=True, prefetch_factor=3)
    options = {"image_size": 32, "samples": 16, "weights": "random"}
    arguments, train = list(sys.argv), write(tmp_path, export.script(recipe, CIFAR, options, seed=7))
    script = Script(train)
    assert sys.argv == arguments
    assert (script.workload.image_size, str(script.device), script.seed) == (32, "cpu", 7)
    training = script.training()
    assert training.recipe == recipe
    assert script.facts()["script"].startswith("exported_script.py, sha256 ")
    script.check_device("cpu")
    with pytest.raises(InvalidValue, match="trains on cpu, but cuda:1 is to be measured"):
        script.check_device("cuda:1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has no main, train, Training"),
        ("def main(): pass\ndef train(): pass\nclass Training: pass", "does not call train()"),
        ("raise OSError('no disk')", "cannot be loaded: OSError: no disk"),
        ("def join_ranks(): pass\ndef main(): pass\ntrain = Training = main", "several ranks"),
    ],
)
def test_what_is_not_an_exported_script_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        Script(write(tmp_path, text))
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["two words.py", "json.py"])
def test_a_file_must_be_importable_under_its_own_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(WorkloadError, match="cannot be imported under the name"):
        Script(write(tmp_path, "", name))


def test_the_name_of_a_script_ends_in_py() -> None:
    assert is_script("train.py")
    assert not is_script("amp=bf16")
