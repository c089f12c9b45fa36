"""Scripts that once failed when they were watched, each at tiny size; nothing that they see may differ."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation, ScriptFacts
from perfkit.scripts.watched import WatchedScript
from perfkit.scripts.watching import watch
from perfkit.studies.progress import Progress
from perfkit.worker.messages import Block, SyncReport, Trained

pytestmark = pytest.mark.usefixtures("no_orphans")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@contextmanager
def trained(code: str, program: str = "train.py") -> Iterator[WatchedScript]:
    """The script, warm."""
    Path("train.py").write_text(code)
    with WatchedScript(Launch(program), deadline=time.monotonic() + 120) as script:
        script.ask("train", Trained, loss_steps=2, warmup_s=0.0)
        yield script


def test_without_an_optimizer_a_step_ends_outside_of_its_backward_pass(folder):
    code = """
import torch
model = torch.nn.Linear(8, 4)
while True:
    model.zero_grad()
    loss = model(torch.randn(16, 8)).pow(2).mean()
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.01)
    loss.item()
"""
    with trained(code) as script:
        places = script.ask("syncs", SyncReport, steps=3).places
        assert [(place.where, place.count) for place in places] == [("train.py:10", 3)]
        assert script.ask("describe", ScriptFacts).step_is == "a backward pass"


EPOCHS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=8, num_workers=int(sys.argv[1]))
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    for number, (x,) in enumerate(loader):
        assert number < len(loader), "an epoch with more batches than it has"
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert number == len(loader) - 1, "an epoch with fewer batches than it has"
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_held_batch_makes_no_epoch_longer(folder, workers):
    Path("train.py").write_text(EPOCHS)
    with WatchedScript(Launch("train.py", (workers,)), deadline=time.monotonic() + 120) as script:
        script.ask("train", Trained, loss_steps=2, warmup_s=0.0)
        for _ in range(2):
            assert script.ask("ceiling", Block, samples=96).samples >= 96
            assert len(script.ask("observe", Observation, steps=8).block.step_s) >= 8


def test_a_loader_without_workers_keeps_the_arguments_that_torch_refuses(folder):
    code = """
import torch
from torch.utils.data import DataLoader, TensorDataset
try:
    DataLoader(TensorDataset(torch.randn(4, 8)), prefetch_factor=2)
except ValueError as problem:
    print("refused", flush=True)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
"""
    with trained(code) as script:
        assert script.output[0] == "refused"


def test_a_loader_of_another_library_is_watched_and_its_switches_are_refused(folder):
    code = """
import torch
from torch.utils.data import _DatasetKind, TensorDataset, dataloader

class FakeLoader:  # as fastai's, which is no DataLoader
    _IterableDataset_len_called, _auto_collation, drop_last = None, False, False
    _dataset_kind, _index_sampler, generator = _DatasetKind.Iterable, iter(lambda: 0, 1), None
    num_workers, prefetch_factor, pin_memory, pin_memory_device, timeout = 0, 2, False, "", 0
    persistent_workers, collate_fn, worker_init_fn = False, staticmethod(lambda batch: batch), None
    multiprocessing_context = None
    def __init__(self, loader): self.d, self.dataset = loader, self
    def __iter__(self): return iter(self.d)

class Loader(list):
    def __iter__(self):
        yield from dataloader._SingleProcessDataLoaderIter(FakeLoader(self.batches()))
    def batches(self): return [(torch.randn(16, 8), torch.randn(16, 4)) for _ in range(5)]

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    for number, (x, y) in enumerate(Loader()):
        assert number < 5
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    with trained(code) as script:
        facts = script.ask("describe", ScriptFacts)
        assert "a loader of its own" in facts.refused["workers"]
        assert script.ask("ceiling", Block, samples=64).samples >= 64


@pytest.mark.parametrize("absolute", [False, True])
def test_a_script_may_write_beside_itself_by_an_absolute_path(folder, absolute):
    code = """
import torch
from pathlib import Path
root = Path(__file__).resolve().parent
(root / "runs").mkdir()
torch.save({}, root / "runs" / "checkpoint.pt")
(root / "log.txt").open("a").write("more")
print((root / "log.txt").read_text(), flush=True)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
"""
    (folder / "log.txt").write_text("before, ")
    with trained(code, str(folder / "train.py") if absolute else "train.py") as script:
        assert script.output[0] == "before, more"
        assert script.ask("describe", ScriptFacts).written == []
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "train.py"]
    assert (folder / "log.txt").read_text() == "before, "


def test_what_was_measured_before_the_time_limit_is_shown(folder):
    code = """
import time, torch
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.3)
"""
    Path("train.py").write_text(code)
    started: list[WatchedScript] = []

    def tell(update):
        if update.fraction >= 0.85:  # the profile is under way
            started[0].deadline = time.monotonic()

    result, _ = watch(Launch("train.py"), steps=6, progress=Progress(tell), on_start=started.append)
    assert len(result.seen.block.step_s) >= 6 and result.syncs and result.trace is None
    assert any("time limit" in text and "a profile" in text for text in result.warnings)
