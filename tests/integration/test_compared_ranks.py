"""Two launches of several ranks are compared: interleaved, over all ranks, with switches proved on each."""

import time

import pytest

from perfkit.additions.ranks import started
from perfkit.additions.ranks.command import RANKS
from perfkit.additions.ranks.launch import launch_of
from perfkit.additions.ranks.started import ComparedRanks
from perfkit.additions.referee.behaviour import BEHAVIOUR, WITNESS
from perfkit.additions.referee.command import PART
from perfkit.additions.referee.match import Terms, compare_whole
from perfkit.errors import PerfkitError
from perfkit.studies.sources import Progress
from tests.support import scripts
from tests.support.ranks import FORKED

pytestmark = [pytest.mark.usefixtures("no_orphans"), pytest.mark.timeout(240)]
ACCUMULATES = """
model = DistributedDataParallel(nn.Linear(300, 300), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(100_000):
    optimizer.zero_grad()
    for micro in range(4):
        (model(torch.randn(4, 300, generator=rows)).square().mean() / 4).backward()
    optimizer.step()
"""
NO_SYNC = ACCUMULATES.replace(
    "        (model",
    "        model.require_backward_grad_sync = micro == 3\n        (model",
)
EVALUATES = """
model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(STEPS):
    loss = model(torch.randn(8, 64, generator=rows)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        if rank == 0:
            model.eval()
            with torch.no_grad():
                model(torch.randn(8, 64))
            model.train()
        dist.barrier()
dist.destroy_process_group()
"""
LOADS_SLOWLY = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.3)
        return torch.ones(64)

model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for rows in torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1, timeout=1):
    model(rows).square().mean().backward()
    optimizer.step()
"""
GIVES_UP = FORKED.replace("import os,", "import datetime, os,").replace(
    'dist.init_process_group("gloo")',
    'dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))',
)
MEETS = """
model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
"""
ALONE = """
import torch
from torch import nn

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
"""
LAUNCHED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
rows = torch.Generator().manual_seed(dist.get_rank())
"""
TORCHRUN = ["torchrun", "--nproc-per-node", "2"]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes scripts into the folder in which they are started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def write(start=FORKED, **codes):
        if start in (FORKED, GIVES_UP):  # else a launcher starts them
            scripts.fork(monkeypatch)
        for name, code in codes.items():
            (tmp_path / f"{name}.py").write_text(start + code)

    return write


def judged(words, settings=(), whole=False):
    match = RANKS.match(words, settings, Terms(seed=2**32 - 1))  # NumPy's largest: each rank has its own
    if whole:
        found = compare_whole(match, Progress())
    else:
        found = match._replace(plan=match.plan.until(4.0, 0.5, PART)).compare(Progress())
    return found.comparison, found.verdict(0.5)


def test_gradients_that_are_sent_once_train_the_same_over_all_ranks(write):
    write(old=ACCUMULATES, new=NO_SYNC)
    result, verdict = judged(["old.py", "new.py", "python"])
    assert (result.a.title, result.b.title) == ("old.py", "new.py")
    assert verdict.observed["a"].trained[-1] == 2 * 4 * 4, "samples of both ranks"
    assert verdict.losses.ok, verdict.losses.evidence
    assert verdict.outcome in ("faster", "slower", "not faster", "undecided"), verdict.reason


def test_switches_are_set_from_outside_and_proved_on_every_rank(write):
    write(LAUNCHED, train=ACCUMULATES)
    wanted = ["find_unused_parameters=off", "bucket_mb=1", "no_sync=on", "omp_threads=1", "static_graph=off"]
    result, verdict = judged([*TORCHRUN, "train.py"], wanted)
    proofs = {proof.name: proof for proof in result.b.mechanism}
    assert set(proofs) == {each.partition("=")[0] for each in wanted}
    assert all(proof.ok and "on all 2 ranks" in proof.evidence for proof in proofs.values()), proofs
    assert verdict.losses.ok, verdict.losses.evidence


def test_a_launcher_of_one_rank_is_compared_though_its_script_makes_no_group(write, monkeypatch):
    monkeypatch.setattr(started.LIMIT, "start_s", 20.0)
    scripts.fork(monkeypatch)
    write("", train=ALONE)
    command = ["torchrun", "--nproc-per-node", "1", "train.py"]
    with ComparedRanks(launch_of(command, {"omp_threads": 1}), observers=[WITNESS]).start() as side:
        told = side.train(loss_steps=2, warmup_s=0.1)
        assert [(proof.name, proof.ok) for proof in told.mechanisms] == [("omp_threads", True)]
        assert side.slice(samples=16, seconds=0.0).samples_per_s > 0
        seen = side.ask(BEHAVIOUR)
    assert set(seen.trained) == {8} and len(told.losses) >= 2


def test_a_switch_that_cannot_act_is_not_measured(write):
    write(train=EVALUATES.replace("STEPS", "100_000"))
    with pytest.raises(PerfkitError, match=r"no_sync \(rank 0: 0 of \d+ backward passes sent nothing\)"):
        judged(["python", "train.py"], ["no_sync=on"])


def test_runs_to_their_end_are_compared_though_one_rank_evaluates_alone(write):
    write(old=EVALUATES.replace("STEPS", "60"), new=EVALUATES.replace("STEPS", "60"))
    _, verdict = judged(["old.py", "new.py", "python"], whole=True)
    assert verdict.outcome in ("slower", "not faster", "faster"), verdict.reason
    assert verdict.observed["a"].evaluations
    assert verdict.observed["a"].run_steps == 60


def test_a_rank_that_raises_is_named(write):
    write(
        old=ACCUMULATES,
        new=ACCUMULATES.replace("optimizer.step()", "optimizer.step(); 1 / (4 - step * rank)"),
    )
    with pytest.raises(PerfkitError, match=r"new.py failed on rank 1 of 2: .*ZeroDivisionError"):
        judged(["old.py", "new.py", "python"])


def test_a_loader_does_not_give_up_while_its_rank_is_suspended(write):
    """Rank 0 has ended its step when a side is suspended; the other ranks may be waiting for a batch."""
    write(train=LOADS_SLOWLY)
    with ComparedRanks(launch_of(["python", "train.py"])).start() as side:
        told = side.train(loss_steps=2, warmup_s=0.1)
        side.suspend()
        time.sleep(2.0)
        side.resume()
        assert side.slice(samples=8, seconds=0.0).samples_per_s > 0
    assert "DataLoader(timeout=1) is ignored: ranks are suspended, too" in told.facts.values()


def test_an_exchange_does_not_give_up_while_its_ranks_are_suspended(write):
    """Rank 0 has ended its step when a side is suspended; the others wait for it in the next exchange."""
    write(GIVES_UP, train=MEETS)
    with ComparedRanks(launch_of(["python", "train.py"])).start() as side:
        told = side.train(loss_steps=2, warmup_s=0.1)
        side.suspend()
        time.sleep(4.0)
        side.resume()
        assert side.slice(samples=64, seconds=0.0).samples_per_s > 0
    assert "init_process_group(timeout=0:00:02) is ignored: ranks are suspended, too" in told.facts.values()


@pytest.mark.parametrize("world", ["1", None])
def test_a_single_rank_that_makes_no_group_is_compared_as_one(write, monkeypatch, world):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world:
        monkeypatch.setenv("WORLD_SIZE", world)
    write("", train=ALONE)
    scripts.fork(monkeypatch)
    with ComparedRanks(launch_of(["python", "train.py"])).start() as side:
        side.train(loss_steps=2, warmup_s=0.1)
        assert side.slice(samples=8, seconds=0.0).samples_per_s > 0
