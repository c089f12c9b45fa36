"""Seeded faults: each makes a GPU's host wait, and each is found on a CPU, with its line."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import perfkit
from perfkit.worker import syncs

X = torch.arange(6.0)


def _bool(x: torch.Tensor) -> None:
    if x.sum() > 100:
        raise RuntimeError


def _mask(x: torch.Tensor) -> Any:
    return x[x > 2]


def _set(x: torch.Tensor) -> None:
    x = x.clone()
    x[x > 2] = torch.ones(3)


FAULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: torch.masked_select(x, x > 1),
    "unique": lambda x: x.unique(),
    "boolean index": _mask,
    "boolean assignment": _set,
    "a branch": _bool,
    "printed": lambda x: f"{x.sum()}",
    "equal": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found_at_its_line(fault: str) -> None:
    with perfkit.detect_syncs() as found:
        FAULTS[fault](X)
    assert found.places, fault
    assert all(place.where.startswith("test_syncs.py:") for place in found.sorted())
    assert all(place.fix for place in found.sorted())


def test_a_clean_step_has_none() -> None:
    model, target = torch.nn.Linear(6, 2), torch.zeros(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    with perfkit.assert_no_sync():
        for _ in range(3):
            loss = torch.nn.functional.mse_loss(model(X), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.where(X > 2, X, -X)


def test_the_detector_does_not_wait_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """To format a tensor is to read it: on a GPU that waits for it."""
    monkeypatch.setattr(torch._tensor_str, "_str", lambda *_, **__: pytest.fail("a tensor was read"))
    with perfkit.detect_syncs():
        torch.zeros(6).copy_(X).to(X)


def test_the_cost_of_a_place_is_that_of_its_call_not_of_finding_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = syncs._caller
    monkeypatch.setattr(syncs, "_caller", lambda device: (time.sleep(0.2), plain(device))[1])
    with perfkit.detect_syncs() as found:
        X.sum().item()
    assert 0 < found.sorted()[0].seconds < 0.1


def test_figures_are_per_step() -> None:
    with perfkit.detect_syncs(steps=4) as found:
        for _ in range(4):
            for _ in range(2):
                X.sum().item()
    (place,) = found.sorted()
    assert (place.count, place.bytes) == (8, 32)
    assert "2 a step, 8 B" in found.table()


def test_what_the_loader_does_on_the_host_is_no_sync() -> None:
    class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(float(torch.arange(4)[index].item()))

    with perfkit.assert_no_sync():
        list(torch.utils.data.DataLoader(Data(), batch_size=2))


def test_the_assertion_lists_the_places_and_allows_what_it_is_told() -> None:
    def twice() -> None:
        with perfkit.assert_no_sync():
            X.sum().item()
            X.mean().item()

    with pytest.raises(AssertionError, match=r"2 copies or waits.*\n.*test_syncs.py:\d+  item"):
        twice()
    with perfkit.assert_no_sync(allow=1):
        X.sum().item()


def test_the_article_s_case_a_size_that_travels() -> None:
    """shape → slice → crop: the size is computed on the device, read by the host, used to crop."""
    image = torch.randn(1, 3, 8, 8)

    def crop(image: torch.Tensor) -> torch.Tensor:
        size = torch.tensor(image.shape[2:]).sub(2)  # on the device, where the article's framework put it
        return image[:, :, : int(size[0]), : int(size[1])]

    with perfkit.detect_syncs(steps=10) as found:
        for _ in range(10):
            crop(image)
    assert sum(place.count for place in found.sorted()) == 20
    with perfkit.assert_no_sync():
        image[:, :, : image.shape[2] - 2, : image.shape[3] - 2]


@pytest.mark.parametrize(
    ("memory", "asynchronous", "fix"),
    [("pageable", True, "pin it"), ("pinned", False, "non_blocking"), ("pinned", True, "overlaps")],
)
def test_copies_to_a_device_are_judged_by_their_memory(memory: str, asynchronous: bool, fix: str) -> None:
    """With stand-ins: no GPU is needed to judge what a copy from pageable or pinned memory means."""

    class Fake:
        nbytes = 24
        device = torch.device("cpu")

        def is_pinned(self) -> bool:
            return memory == "pinned"

    class Result:
        device = torch.device("cuda")

    source: Any = Fake()
    result: Any = Result()
    place = syncs._copy("to", (source,), {"non_blocking": asynchronous}, source, result, "cuda")
    assert place
    assert (place.kind, place.memory, place.bytes) == ("host to device", memory, 24)
    assert fix in place.fix
