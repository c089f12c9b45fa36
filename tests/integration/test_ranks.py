"""Several ranks on one machine: they train as one would, and are measured together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.additions.parity import study
from perfkit.additions.ranks import scaling
from perfkit.additions.trace.profile import profile
from perfkit.recipe import Recipe
from perfkit.studies import rungs, sources
from perfkit.studies.climb import climb

pytestmark = [pytest.mark.usefixtures("no_orphans"), pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
TOGETHER = {"ranks": 2, "cpu_threads": 1}


def measured(workload, *recipes):
    plan = sources.plan(f"tests.support.toy:{workload}", "smoke", (), device="cpu")
    named = tuple((f"recipe {at}", Recipe(batch_size=8, **one)) for at, one in enumerate(recipes))
    return climb(plan.trying(recipes=named))


def test_two_ranks_take_twice_the_samples_with_every_switch_proven():
    one, two, merged = runs = measured("Toy", {"cpu_threads": 1}, TOGETHER, TOGETHER | {"accumulation": 2})
    assert [(run.status, run.samples_per_step) for run in runs] == [("ok", 8), ("ok", 16), ("ok", 32)]
    assert "2 ranks by gloo" in {proof.name: proof.evidence for proof in two.mechanism}["ranks"]
    assert one.communication is None
    accumulated = {proof.name: proof for proof in merged.mechanism}["accumulation"]
    assert accumulated.ok and "averaged over the ranks: 1x" in accumulated.evidence
    for run in (two, merged):
        assert run.communication.bytes_per_step == 4 * (16 * 32 + 32 + 32 * 2 + 2)
        assert len(run.communication.rank_compute_s) == 2
        assert run.communication.step_s > 0
    assert scaling.efficiency(one, two) > 0


@pytest.mark.parametrize("workload", ["Toy", "Blocks"])
def test_losses_of_two_ranks_are_those_of_one_with_twice_the_batch(workload):
    """Not with batch normalisation (`Blocks`), which is told as what it is."""
    plan = sources.plan(f"tests.support.toy:{workload}", "smoke", ["baseline"], device="cpu")
    result = study.parity(plan, "two ranks", Recipe(batch_size=8, **TOGETHER))
    assert len(result.losses["candidate"]) == len(result.losses["float32"]) == 4
    assert (result.ok, "SyncBatchNorm" in result.describe()) == (workload == "Toy", workload != "Toy")


def test_a_straggler_is_seen():
    (run,) = measured("Straggler", TOGETHER)
    assert run.communication.rank_compute_s[1] > run.communication.rank_compute_s[0] + 0.02
    assert scaling.straggling(run.communication) > 1.2


def test_each_rank_writes_a_trace(tmp_path):
    recipe, out = Recipe(batch_size=8, **TOGETHER), tmp_path / "two.json.gz"
    made = profile("tests.support.toy:Toy", recipe, preset="smoke", device="cpu", out=out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two.json.gz", "two.rank1.json.gz"]
    assert made.analysis.communication


def test_an_exported_script_runs_under_torchrun_with_the_losses_of_the_run(tmp_path):
    (run,) = measured("Toy", TOGETHER | {"accumulation": 2})
    file = tmp_path / "train_two.py"
    file.write_text(rungs.script(run))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    how = {"capture_output": True, "text": True, "timeout": 120, "env": environment}
    done = subprocess.run([*launcher, str(file), "4"], check=False, **how)
    losses = [float(line.split("loss ")[1]) for line in done.stdout.splitlines() if "loss" in line]
    assert losses == run.losses[:4], done.stderr[-2000:]
