"""Scripts as a source of runs: their own settings, and whether two runs of one train the same."""

from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.scripts import study
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
