"""How a script scales: started with one rank and with two, as torchrun does, and they are compared."""

import json

import pytest

from perfkit.additions.ranks import scaling
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import RunFailed
from tests.support import scripts
from tests.support.cli import perfkit

pytestmark = [pytest.mark.usefixtures("no_orphans", "data_dir"), pytest.mark.timeout(240)]
LOOP = """
import os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))
if world > 1:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(100_000):
    for (inputs,) in DataLoader(TensorDataset(torch.randn(640, 32)), BATCH):
        model(inputs).square().mean().backward()
        time.sleep(0.02 * rank)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(scaling, "LAUNCHES", 1)
    scripts.fork(monkeypatch)
    return lambda code: (tmp_path / "train.py").write_text(code)


def test_one_rank_and_two_are_compared_and_more_are_predicted(write, tmp_path):
    """Rank 1 is late in each step; one rank makes no group of processes."""
    write(LOOP.replace("BATCH", "16"))
    files = ("--json", "scale.json", "-o", "scale.png")
    done = perfkit("scale", "train.py", "--ranks", "2,1", "--strong", "--budget", "3", *files, cwd=tmp_path)
    found = json.loads((tmp_path / "scale.json").read_text())
    one, two = found["measured"]
    assert (one["ranks"], two["ranks"], found["seen"], found["regime"]) == (1, 2, "weak", "strong")
    assert [one["batch"], two["batch"]] == pytest.approx([16, 16], rel=0.02)
    assert one["gradient_bytes"] == 0 < two["gradient_bytes"]
    assert two["parts"]["unlike"] > 0.005 > one["parts"]["unlike"] == 0
    assert [each["ranks"] for each in found["predicted"]] == [4, 8, 16]
    assert "to waiting for slower ranks" in " ".join(done.output.split())
    assert "to measure that, divide the batch size by WORLD_SIZE" in " ".join(done.output.split())
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_a_script_that_dies_with_two_ranks_is_named_with_its_line(write):
    write(LOOP.replace("BATCH", "32 // (2 - world)"))
    with pytest.raises(RunFailed, match=r"of 2 failed after 0 steps: .*ZeroDivisionError.*\(train.py:\d+\)"):
        scaling.scale(Launch("train.py"), [2, 3], budget_s=1.0)


def test_what_cannot_be_meant_is_refused_before_anything_starts(write, tmp_path):
    write("")
    for words, message in {
        ("trian.py",): "trian.py",
        ("torchrun", "train.py"): "torchrun",
        ("train.py", "--ranks", "0,2"): "--ranks was given '0,2'. Give two or more numbers from 1 on",
        ("train.py", "--ranks", "two"): "--ranks was given 'two'",
        ("train.py", "--ranks", "2"): "--ranks was given '2'",
        ("train.py", "-o", "none/plot.png"): "cannot write none/plot.png",
    }.items():
        done = perfkit("scale", *words, code=2, cwd=tmp_path)
        assert message in " ".join(done.output.split()), done.output
