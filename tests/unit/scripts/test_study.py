"""Scripts as a source of runs: their own settings, and whether two runs of one train the same."""

from pathlib import Path

import pytest

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.scripts import study
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import ScriptFacts
from perfkit.worker.messages import DeviceFacts


def run(losses: list[float], workers: int = 0, **more) -> Run:
    recipe = Recipe(workers=workers).to_dict()
    return Run(
        id=str(workers), session="s", created="", stage="s", workload="t.py", device="cpu", recipe=recipe,
        losses=losses, **more,
    )  # fmt: skip


def test_a_script_keeps_what_it_sets_by_itself():
    facts = ScriptFacts(
        device="cpu", facts=DeviceFacts(threads=2, torch="2"), loader="Photos",
        settings={"batch_size": 100_000, "workers": 2, "prefetch_factor": 2, "amp": "bf16"},
        refused={"compile": "the script does already", "prefetch_factor": "acts with workers only"},
    )  # fmt: skip
    target = study.target(facts)
    assert target.own == {"workers": 2, "prefetch_factor": 2, "amp": "bf16"}, "no value that is not allowed"
    assert target.refused == {"compile": "the script does already"}


def test_equal_losses_prove_the_same_training():
    plain = run([2.0, 1.0])
    assert study.losses(plain, run([2.0, 1.0], workers=2)).ok
    assert not study.losses(plain, run([2.0, 1.1], workers=2)).ok
    assert study.losses(plain, run([2.0, 1.1], workers=2, facts={"data": study.RANDOM_DATA})).ok


def test_both_sides_of_a_comparison_are_checked_before_anything_starts(tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text("")
    a, b = (str(tmp_path / name / "train.py") for name in "ab")
    plan, first, second = study.sides(None, [a, b, "--lr"], False, [], "smoke", 0)
    assert (plan.workload, plan.preset.loss_steps) == ("train.py", study.LOSSES)
    assert (first.title, second.title) == (a, b)
    plan, first, second = study.sides(a, [], False, ["workers=2"], "smoke", 0)
    assert (first.title, second.changes) == ("as it is", {"workers": 2})
    for program, named, settings, message in (
        (a, [], [], "nothing to compare"),
        (None, [a, "amp"], [], "one side is a script"),
        (None, [a, b], ["workers=2"], "--set goes with --script"),
        (None, [a, "absent.py"], [], "no script"),
    ):
        with pytest.raises(InvalidValue, match=message):
            study.sides(program, named, False, settings, "smoke", 0)
    assert Launch(a).name == "train.py"
