"""Seeded faults: each makes a GPU's host wait, and each is found on a CPU, with its line."""

import warnings
from types import SimpleNamespace

import pytest
import torch

import perfkit
from perfkit.worker import syncs

X = torch.arange(6.0)


def _assigned(x):
    x = x.clone()
    x[x > 2] = torch.ones(3)


FAULTS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: torch.masked_select(x, x > 1),
    "unique": lambda x: x.unique(),
    "boolean index": lambda x: x[x > 2],
    "boolean assignment": _assigned,
    "the article's case": lambda x: x[: int(torch.tensor(x.shape).sub(2)[0])],
    "a branch": lambda x: 1 if x.sum() > 100 else 0,
    "printed": lambda x: f"{x.sum()}",
    "equal": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found_at_its_line(fault):
    with perfkit.detect_syncs() as detected:
        FAULTS[fault](X)
    assert detected and sum(place.count for place in detected) <= 2
    assert all(place.where.startswith("test_syncs.py:") and place.fix for place in detected)


def test_a_clean_step_has_none_and_neither_has_a_loader():
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.tensor(float(torch.arange(4)[index].item()))

    model, target = torch.nn.Linear(6, 2), torch.zeros(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    with perfkit.detect_syncs() as detected:
        list(torch.utils.data.DataLoader(Data(), batch_size=2))
        for _ in range(3):
            loss = torch.nn.functional.mse_loss(model(X), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.where(X > 2, X, -X)
    assert not detected


def test_the_detector_does_not_wait_itself(monkeypatch):
    """To format a tensor is to read it: on a GPU that waits for it."""
    monkeypatch.setattr(torch._tensor_str, "_str", lambda *_, **__: pytest.fail("a tensor was read"))
    with perfkit.detect_syncs():
        torch.zeros(6).copy_(X).to(X)


def test_what_only_the_driver_notices_is_listed_with_its_line(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with perfkit.detect_syncs() as detected:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    (place,) = detected
    assert place.where.startswith("test_syncs.py:")
    assert (place.kind, place.count, modes) == ("wait", 2, ["warn", 0])


@pytest.mark.parametrize(
    ("pinned", "asynchronous", "fix"),
    [(False, True, "pin it"), (True, False, "non_blocking"), (True, True, "overlaps")],
)
def test_copies_to_a_device_are_judged_by_their_memory(pinned, asynchronous, fix):
    """With stand-ins: no GPU is needed to judge what a copy from pageable or pinned memory means."""
    source = SimpleNamespace(device=torch.device("cpu"), is_pinned=lambda: pinned)
    result = SimpleNamespace(device=torch.device("cuda"))
    call = syncs.Call("to", (source,), {"non_blocking": asynchronous}, result)
    kind, judgement = syncs._copy(call, on_gpu=True)
    assert kind == "host to device"
    assert fix in judgement


def test_a_scaler_that_reads_whether_gradients_overflowed_is_told_apart_from_a_read_of_the_script():
    model = torch.nn.Linear(6, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu")
    scaler.scale(model(X).sum()).backward()
    with perfkit.detect_syncs() as detected:
        scaler.step(optimizer)
    assert "item" in {place.call for place in detected}
    assert {place.fix for place in detected} == {syncs.SCALER_REMEDY}
