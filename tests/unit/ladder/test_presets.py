from __future__ import annotations

import pytest

from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder.presets import PRESETS
from perfkit.rules import Target


@pytest.mark.parametrize(("device", "name"), [("cuda", "paper"), ("mps", "quick"), ("cpu", "quick")])
def test_only_cuda_gets_the_articles_size_unasked(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERFKIT_PRESET")
    assert presets.preset(device=device).name == name
    assert presets.preset("smoke", device).name == "smoke"
    monkeypatch.setenv("PERFKIT_PRESET", "paper")
    assert presets.preset(device=device).name == "paper"


def test_an_unknown_preset_is_one_clear_message() -> None:
    with pytest.raises(InvalidValue, match="unknown preset 'quik'. Did you mean 'quick'"):
        presets.preset("quik")


def test_a_cpu_shares_its_cores_between_model_and_loader() -> None:
    quick = PRESETS["quick"]
    cpu, cuda = (presets.sizing(quick, Target(device), cores=8) for device in ("cpu", "cuda"))
    assert (cpu.workers, cpu.threads) == (4, 4)
    assert (cuda.workers, cuda.threads) == (8, 8)
    assert presets.sizing(quick, Target("cuda"), cores=64).workers == 16, "a longer queue needs longer blocks"
    one_core = presets.sizing(quick, Target("cpu"), cores=1)
    assert (one_core.workers, one_core.threads) == (1, 1)
    assert presets.sizing(quick, Target("cuda", bf16=False), cores=8).amp == "fp16"
