"""What people take home runs: every snippet of the cheat sheet and of the cards, on the CPU."""

import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from PIL import Image
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

from perfkit.additions.puzzles.judge import bench

pytestmark = pytest.mark.usefixtures("settings_kept")

ROOT = Path(__file__).parents[2]
SHEET = (ROOT / "docs" / "cheat_sheet.md").read_text(encoding="utf-8")
CARDS = sorted((ROOT / "perfkit" / "ladder" / "cards").glob("*.md"))


def snippets(text):
    """The Python blocks of a text in Markdown."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


IMPORTS, *BLOCKS = snippets(SHEET)
FOR_RANKS = [block for block in BLOCKS if "DistributedDataParallel(" in block or "no_sync" in block]
FOR_ONE = [block for block in BLOCKS if block not in FOR_RANKS]
OF_CARDS = [(card.stem, code) for card in CARDS for code in snippets(card.read_text(encoding="utf-8"))]


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What a snippet takes for granted: a data set, a model, a batch, an optimizer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    Image.new("RGB", (500, 375)).save("photo.jpg")
    torch.manual_seed(0)
    images, labels = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8), torch.arange(16) % 4
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    floats = images.float() / 255
    scope = {
        "dataset": TensorDataset(floats, labels),
        "batch_size": 1,
        "loader": [(floats, labels)] * 8,
        "model": model,
        "criterion": nn.CrossEntropyLoss(),
        "loss_function": nn.CrossEntropyLoss(),
        "scaler": torch.amp.GradScaler("cpu"),
        "parameters": model.parameters(),
        "functional": nn.functional,
        "cores": 2,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "device": torch.device("cpu"),
        "images": floats,
        "labels": labels,
        "inputs": floats,
        "targets": labels,
        "mean": torch.zeros(3, 1, 1),
        "std": torch.ones(3, 1, 1),
        "total": torch.zeros(()),
        "loss": torch.ones((), requires_grad=True).sum(),
        "mask": labels > 1,
        "x": labels,
        "path": "photo.jpg",
        "train_step": lambda batch: model(batch[0]).sum().backward(),
        "epochs": 2,
        "parts": [(floats, labels)] * 3,
        "nn": nn,
    }
    exec(IMPORTS, scope)
    scope["DistributedDataParallel"] = lambda module: module  # several ranks: the fixture below
    scope["DistributedSampler"] = lambda dataset: None
    return scope


@pytest.fixture
def one_rank(names, tmp_path, monkeypatch):
    """The environment that torchrun makes for one rank, without a GPU."""
    start, device = distributed.init_process_group, torch.device
    here = dict.fromkeys(("LOCAL_RANK", "RANK"), "0") | {"WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in here.items():
        monkeypatch.setenv(name, value)

    def gloo(backend):
        assert backend == "nccl"
        start("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

    monkeypatch.setattr(distributed, "init_process_group", gloo)
    names["torch"] = mock.Mock(wraps=torch, device=lambda kind, index: device("cpu"), cuda=torch.cuda)
    names["DistributedSampler"] = DistributedSampler
    names["DistributedDataParallel"] = lambda module, device_ids: DistributedDataParallel(module)
    yield names
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.parametrize("block", FOR_ONE)
def test_a_snippet_of_the_cheat_sheet_runs(block, names):
    exec(block, names)


@pytest.mark.parametrize(("card", "code"), OF_CARDS, ids=[name for name, _ in OF_CARDS])
def test_the_code_of_a_card_runs(card, code, names):
    exec(code, names)
    if card == "device_prefetch":
        batches = [(torch.full((4, 3), float(number)), torch.arange(4)) for number in range(5)]
        assert copied_ahead(names["ahead"], batches) == [batch[0].shape for batch in batches]


def copied_ahead(ahead, batches):
    """The shapes of the inputs that come from a prefetcher, on a simulated GPU that sees what it reads."""
    with bench().SimulatedGpu() as gpu:
        seen = []
        for inputs, _ in ahead(batches, gpu.device):
            assert gpu.is_protected(inputs)
            inputs.relu()
            seen.append(inputs.shape)
            assert len(seen) <= len(batches), "the loader has begun again"
    assert gpu.unsafe == 0 and 0 not in {stream for *_, stream in gpu.copies}
    return seen


def test_the_snippets_for_several_gpus_train_every_sample_and_average_once(one_rank):
    start, accumulate = FOR_RANKS
    orders = []
    one_rank["DistributedSampler"] = Orders(one_rank["DistributedSampler"], orders)
    exec(start, one_rank)
    first, second = orders
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second, "set_epoch gives each epoch a new order"
    model, averaged = one_rank["model"], []

    def average(_, bucket):
        averaged.append(bucket)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    average.__annotations__.clear()  # DDP compares annotations with types of its own
    model.register_comm_hook(None, average)
    exec(accumulate, one_rank)
    assert len(averaged) == 1


class Orders:
    """Makes samplers, and notes the orders that they give."""

    def __init__(self, kind, orders):
        self.kind, self.orders = kind, orders

    def __call__(self, *args, **options):
        sampler = self.kind(*args, **options)
        orders, iterate = self.orders, type(sampler).__iter__

        class Noted(type(sampler)):
            def __iter__(self):
                orders.append(list(iterate(self)))
                return iter(orders[-1])

        sampler.__class__ = Noted
        return sampler
