from pathlib import Path

import pytest

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.scripts import study as script
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import ScriptFacts
from perfkit.worker.messages import DeviceFacts

FACTS = ScriptFacts(
    device="cpu", facts=DeviceFacts(threads=2, torch="2"), loader="Photos",
    settings={"batch_size": 100_000, "workers": 2, "prefetch_factor": 2, "amp": "bf16"},
    refused={"compile": "the script compiles the model already", "prefetch_factor": "acts with workers only"},
)  # fmt: skip


def run(**values) -> Run:
    recipe = Recipe(**values.pop("recipe", {})).to_dict()
    given = {"session": "s", "created": "", "stage": "s", "workload": "t.py", "device": "cpu"}
    return Run(id=str(id(recipe)), recipe=recipe, **given, **values)


def test_a_script_keeps_what_it_sets_by_itself():
    target = script.target(FACTS)
    assert target.own == {"workers": 2, "prefetch_factor": 2, "amp": "bf16"}, "no value that is not allowed"
    assert target.refused == {"compile": "the script compiles the model already"}


def test_without_a_loader_its_switches_stay_refused():
    target = script.target(ScriptFacts(device="cpu", facts=FACTS.facts, refused={"prefetch_factor": "no"}))
    assert target.refused == {"prefetch_factor": "no"}


def test_equal_losses_prove_the_same_training():
    plain, same = run(losses=[2.0, 1.0]), run(losses=[2.0, 1.0], recipe={"workers": 2})
    assert script.losses(plain, same).ok
    assert not script.losses(plain, run(losses=[2.0, 1.1], recipe={"workers": 2})).ok
    drawn = run(losses=[2.0, 1.1], recipe={"workers": 2}, facts={"data": script.RANDOM_DATA})
    assert script.losses(plain, drawn).ok


def test_a_script_is_known_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("x")
    (tmp_path / "train.py").write_text("x")
    file, module = Launch("train.py", folder=tmp_path), Launch("pkg.train", module=True, folder=tmp_path)
    assert file.name == "train.py" and module.name == "pkg.train"
    assert file.digest() == module.digest() != ""
    assert Launch("torchrun", ("train.py",), folder=tmp_path).digest() == ""
    plan = script.script_plan(file, "smoke")
    assert plan.workload == "train.py" and plan.preset.loss_steps == script.LOSSES
    with pytest.raises(InvalidValue, match="no script"):
        script.script_plan(Launch("absent.py", folder=tmp_path))
