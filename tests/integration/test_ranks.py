"""Several ranks on one machine: they train as one would, are measured together, and end together."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.studies import compare, inspect, rungs, sources
from perfkit.studies.progress import Progress
from perfkit.studies.rungs import climb
from perfkit.trace.profile import profile

pytestmark = [pytest.mark.usefixtures("no_orphans"), pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
TOGETHER = {"ranks": 2, "cpu_threads": 1}


def measured(workload: str, *recipes: dict[str, Any], **more: Any) -> list[Run]:
    plan = sources.plan(f"tests.support.toy:{workload}", "smoke", (), device="cpu", **more)
    named = tuple((f"recipe {at}", Recipe(batch_size=8, **one)) for at, one in enumerate(recipes))
    return climb(replace(plan, recipes=named))


def test_two_ranks_take_twice_the_samples_with_every_switch_proven() -> None:
    every = {
        "accumulation": 2,
        "no_sync": True,
    }
    one, two, all_of_it = measured("Toy", {"cpu_threads": 1}, TOGETHER, TOGETHER | every)
    assert [run.status for run in (one, two, all_of_it)] == ["ok"] * 3, all_of_it.reason
    assert (one.samples_per_step, two.samples_per_step, all_of_it.samples_per_step) == (8, 16, 32)
    assert "2 ranks by gloo" in two.evidence("ranks")
    assert one.communication is None
    assert two.communication
    assert two.communication.bytes_per_step == 4 * (16 * 32 + 32 + 32 * 2 + 2)
    assert all_of_it.communication
    assert all_of_it.communication.bytes_per_step == two.communication.bytes_per_step
    assert len(two.communication.rank_compute_s) == 2
    assert two.communication.step_s > 0
    assert compare.efficiency(one, two) > 0


def test_losses_of_two_ranks_are_those_of_one_with_twice_the_batch() -> None:
    plan = sources.plan("tests.support.toy:Toy", "smoke", ["baseline"], device="cpu")
    found = inspect.parity(plan, "two ranks", Recipe(batch_size=8, **TOGETHER))
    assert found.ok, found.describe()
    assert len(found.losses["candidate"]) == len(found.losses["float32"]) == 4


def test_batch_normalisation_over_ranks_is_told_as_what_it_is() -> None:
    plan = sources.plan("tests.support.toy:Normalised", "smoke", ["baseline"], device="cpu")
    found = inspect.parity(plan, "two ranks", Recipe(batch_size=8, **TOGETHER))
    assert not found.ok
    assert "SyncBatchNorm" in found.describe()


def test_a_straggler_is_seen() -> None:
    (run,) = measured("Straggler", TOGETHER)
    assert run.communication
    assert run.communication.rank_compute_s[1] > run.communication.rank_compute_s[0] + 0.02
    assert run.communication.straggling > 1.2


def test_a_failing_rank_ends_all_and_shows_its_own_error() -> None:
    (run,) = measured("FailingRank", TOGETHER)
    assert run.status == "failed"
    assert run.reason.startswith("rank 1 of 2")
    assert "rank 1 has a broken sample" in run.reason


def test_a_rank_that_hangs_times_out() -> None:
    (run,) = measured("HangingRank", TOGETHER, timeout_s=25)
    assert run.status == "failed"
    assert "time limit" in run.reason


def test_ranks_are_cancelled_together() -> None:
    stop = threading.Event()
    plan = sources.plan("tests.support.toy:Unhurried", "smoke", (), device="cpu")
    plan = replace(plan, recipes=(("two", Recipe(batch_size=8, **TOGETHER)),))
    (run,) = climb(plan, progress=Progress(lambda now: stop.set() if now.phase == "warm-up" else None, stop))
    assert run.status == "cancelled"


def test_each_rank_writes_a_trace(tmp_path: Path) -> None:
    made = profile(
        "tests.support.toy:Toy", Recipe(batch_size=8, **TOGETHER), preset="smoke", device="cpu",
        out=tmp_path / "two.json.gz",
    )  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two.json.gz", "two.rank1.json.gz"]
    assert made.analysis.communication


def test_an_exported_script_runs_under_torchrun_with_the_losses_of_the_run() -> None:
    (run,) = measured("Toy", TOGETHER)
    text = rungs.scripts([run])[run.title]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-"]
    file = Path(os.environ["PERFKIT_DATA"]) / "train_two.py"
    file.write_text(text)
    try:
        done = subprocess.run(
            [*command[:-1], str(file), "4"], capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    finally:
        file.unlink()
    losses = [float(line.split("loss ")[1]) for line in done.stdout.splitlines() if "loss" in line]
    assert losses == run.losses[:4], done.stderr[-2000:]
