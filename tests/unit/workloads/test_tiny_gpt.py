import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perfkit.errors import WorkloadError
from perfkit.recipe import Recipe
from perfkit.train import train
from perfkit.workloads.files import text_file
from perfkit.workloads.tiny_gpt import TinyGPT

SMALL = {"context": 16, "width": 16, "layers": 2, "heads": 2}


def losses(steps: int = 2, **switches: object) -> list[float]:
    recipe = Recipe().replace(**{"batch_size": 8, **switches})
    training = train(recipe, TinyGPT(**SMALL), torch.device("cpu"))
    return [loss.item() for loss in itertools.islice(training, steps)]


@pytest.mark.parametrize("name", ["uint8_copy", "batched_fetch", "activation_checkpointing"])
def test_a_switch_leaves_the_training_as_it_is(name: str) -> None:
    assert losses(**{name: True}) == pytest.approx(losses(), rel=1e-6)


def test_it_learns() -> None:
    first, *_, last = losses(steps=60)
    assert last < 0.8 * first


def test_a_character_sees_only_those_before_it() -> None:
    model = TinyGPT(**SMALL).model()
    text = torch.randint(256, (1, 16))
    other = text.clone()
    other[0, 9:] = 0
    torch.testing.assert_close(model(text)[:, :9], model(other)[:, :9])


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64])
def test_a_target_is_the_next_character(tmp_path: Path, kind: torch.dtype) -> None:
    (tmp_path / "own.txt").write_bytes(bytes(range(65)))
    workload = TinyGPT(**SMALL, text=str(tmp_path / "own.txt"))
    recipe = SimpleNamespace(uint8_copy=kind == torch.uint8, batched_fetch=False)
    data = workload.dataset(recipe)
    inputs, targets = data[1]
    assert inputs.dtype == targets.dtype == kind
    assert (inputs.tolist(), targets.tolist()) == ([*range(16, 32)], [*range(17, 33)])
    recipe.batched_fetch = True
    together = workload.dataset(recipe).__getitems__([*range(len(data))])
    assert len(data) == 4
    one_by_one = zip(*(data[index] for index in range(4)), strict=True)
    assert all(torch.equal(a, torch.stack(b)) for a, b in zip(together, one_by_one, strict=True))


def test_a_text_is_found_in_the_data_folder_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(text_file("texts/workbook.txt")).stat().st_size > 50_000
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path))
    (tmp_path / "own.txt").write_text("mine")
    assert text_file("own.txt") == str(tmp_path / "own.txt")
    with pytest.raises(WorkloadError, match="there is no text 'absent.txt'. Copy it from"):
        text_file("absent.txt")


def test_heads_share_the_width() -> None:
    with pytest.raises(ValueError, match="3 heads cannot share a width of 16: give a multiple of 3"):
        TinyGPT(width=16, heads=3)
