"""A switch is in effect if the built objects and an observed step say so, not if the recipe does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfkit.recipe import Recipe, switches
from perfkit.worker.checks import READERS, View, verify
from perfkit.worker.observe import observe_step
from perfkit.worker.session import wanted
from perfkit.worker.training import Training
from tests.support.toy import Blocks

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _settings_kept() -> Iterator[None]:
    parts: Any = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [part.fp32_precision for part in parts]
    yield
    for part, precision in zip(parts, before, strict=True):
        part.fp32_precision = precision
    torch.backends.cudnn.benchmark = False


def seen(**switches: Any) -> View:
    training = Training(Recipe(**{"batch_size": 8, **switches}), Blocks(), CPU)
    training.step()
    return observe_step(training)


def test_every_switch_has_a_reader() -> None:
    assert set(READERS) >= set(switches())


def test_every_reader_tells_a_switch_that_is_on_from_one_that_is_off() -> None:
    """On a CPU, in one process; what needs a GPU or ranks is proven there."""
    states: dict[str, Any] = {
        "batch_size": 16, "workers": 1, "prefetch_factor": 4, "zero_grad_set_to_none": False, "amp": "bf16",
        "cudnn_benchmark": True, "fp32_precision": "tf32", "optimizer_impl": "foreach", "accumulation": 2,
        "activation_checkpointing": True, "non_blocking": True,
    }  # fmt: skip
    view = seen(**states)
    assert [proof for proof in verify(view, wanted(Recipe(**states))) if not proof["ok"]] == []
    off = {name: switches()[name].default for name in states}
    assert [proof["switch"] for proof in verify(view, off) if proof["ok"]] == []


@pytest.mark.parametrize("precision", ["default", "tf32", "ieee"])
def test_the_precision_of_float32_is_read_back(precision: str) -> None:
    value, evidence = READERS["fp32_precision"](seen(fp32_precision=precision))
    assert value == precision
    assert ("convolutions in full precision" in evidence) is (precision == "ieee")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({}, "on a stream of its own, from pinned memory"),
        ({"copy_streams": [0]}, "on the stream of the kernels"),
        ({"copy_streams": []}, "on the stream of the kernels"),
        ({"batch": [SimpleNamespace(is_pinned=lambda: False)]}, "from pageable memory"),
    ],
)
def test_device_prefetch_is_a_second_stream_and_pinned_memory(fault: dict[str, Any], words: str) -> None:
    """Without a GPU: what `observe_step` would have noted on one."""
    pinned = [SimpleNamespace(is_pinned=lambda: True)]
    noted = {"prefetches": True, "copy_streams": [7], "compute_stream": 0, "batch": pinned}
    value, evidence = READERS["device_prefetch"](View(CPU, **{**noted, **fault}))
    assert value is (None if fault else True)
    assert words in evidence


def test_fp16_without_a_scaler_is_not_what_the_switch_means() -> None:
    model, half = torch.nn.Linear(1, 1), torch.zeros(1, dtype=torch.float16)
    for on in (True, False):
        scaler = SimpleNamespace(is_enabled=lambda on=on: on, get_scale=lambda: 65536.0)
        assert READERS["amp"](View(CPU, model=model, outputs=half, scaler=scaler))[0] == (
            "fp16" if on else None
        )


def test_an_output_that_is_cast_back_shows_the_autocast_around_the_model() -> None:
    view = View(CPU, model=torch.nn.Linear(1, 1), outputs=torch.zeros(1), autocast=torch.bfloat16)
    assert READERS["amp"](view) == ("bf16", "logits are float32, cast back from an autocast to bfloat16")


def test_what_was_set_before_torch_was_imported_is_read_where_it_was_set() -> None:
    code = (
        "import torch; from perfkit.worker.checks import READERS, View;"
        "print([READERS[name](View(torch.device('cpu')))[0] for name in ('wait_policy', 'allocator')])"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MALLOC_"))}
    set_early = {"OMP_WAIT_POLICY": "PASSIVE", "MALLOC_TRIM_THRESHOLD_": "1"}
    for variables, expected in ((set_early, "['passive', 'keep']"), ({}, "['default', 'default']")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            env={**plain, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert done.stdout.strip() == expected


def test_switches_without_effect_beside_others_need_no_proof() -> None:
    assert "prefetch_factor" not in wanted(Recipe(prefetch_factor=4))
    assert "prefetch_factor" in wanted(Recipe(prefetch_factor=4, workers=1))


def test_what_a_recipe_leaves_to_the_environment_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfkit.worker.checks.first_environment", lambda: {"OMP_WAIT_POLICY": "PASSIVE"})
    (proof,) = verify(View(CPU), {"wait_policy": "default"})
    assert (proof["ok"], proof["evidence"]) == (True, "started with OMP_WAIT_POLICY=PASSIVE")
    monkeypatch.setattr("perfkit.worker.checks.first_environment", dict)
    assert not verify(View(CPU), {"wait_policy": "passive"})[0]["ok"]
