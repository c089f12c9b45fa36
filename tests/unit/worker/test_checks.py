"""A switch is in effect if the built objects and an observed step say so, not if the recipe does."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from perfkit.recipe import Recipe, switches
from perfkit.worker import checks, parity
from perfkit.worker.checks import READERS, View, verify
from perfkit.worker.session import wanted
from perfkit.worker.training import Training, observe_step
from tests.support.toy import Blocks

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _settings_kept():
    with parity._settings_kept():
        yield


def seen(**switches):
    return observe_step(Training(Recipe(**{"batch_size": 8, **switches}), Blocks(), CPU))


def test_every_reader_tells_a_switch_that_is_on_from_one_that_is_off():
    """On a CPU, in one process; what needs a GPU or ranks is proven there."""
    assert set(READERS) >= set(switches())
    states = {
        "batch_size": 16,
        "workers": 1,
        "prefetch_factor": 4,
        "zero_grad_set_to_none": False,
        "amp": "bf16",
        "cudnn_benchmark": True,
        "fp32_precision": "tf32",
        "optimizer_impl": "foreach",
        "accumulation": 2,
        "activation_checkpointing": True,
        "non_blocking": True,
    }
    view = seen(**states)
    assert [proof for proof in verify(view, wanted(Recipe(**states))) if not proof.ok] == []
    off = {name: switches()[name].default for name in states}
    assert [proof.switch for proof in verify(view, off) if proof.ok] == []


@pytest.mark.parametrize("precision", ["default", "tf32", "ieee"])
def test_the_precision_of_float32_is_read_back(precision):
    value, evidence = READERS["fp32_precision"](seen(fp32_precision=precision))
    assert (value, f"convolutions: {precision}" in evidence) == (precision, precision != "default")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({}, "on a stream of its own; batches lie in page-locked memory"),
        ({"copy_streams": [0]}, "on the stream of the kernels"),
        ({"batch": [SimpleNamespace(is_pinned=lambda: False)]}, "in pageable memory"),
    ],
)
def test_device_prefetch_is_a_second_stream_and_pinned_memory(fault, words):
    """Without a GPU: what `observe_step` would have noted on one."""
    pinned = [SimpleNamespace(is_pinned=lambda: True)]
    noted = {"copy_streams": [7], "compute_stream": 0, "batch": pinned}
    value, evidence = READERS["device_prefetch"](View(CPU, **{**noted, **fault}))
    assert (value is True, words in evidence) == (not fault, True)


def test_fp16_without_a_scaler_is_not_what_the_switch_means():
    model, half = torch.nn.Linear(1, 1), torch.zeros(1, dtype=torch.float16)
    for on in (True, False):
        scaler = SimpleNamespace(is_enabled=lambda on=on: on, get_scale=lambda: 65536.0)
        value, _ = READERS["amp"](View(CPU, model=model, outputs=half, scaler=scaler))
        assert value == ("fp16" if on else None)


def test_an_output_that_is_cast_back_shows_the_autocast_around_the_model():
    view = View(CPU, model=torch.nn.Linear(1, 1), outputs=torch.zeros(1), autocast=torch.bfloat16)
    assert READERS["amp"](view) == ("bf16", "logits are float32, cast back from an autocast to bfloat16")


def test_what_was_set_before_torch_was_imported_is_read_where_it_was_set():
    code = (
        "from perfkit.worker.checks import *;"
        "print([READERS[name](View(torch.device('cpu')))[0] for name in ('wait_policy', 'allocator')])"
    )
    early = {"OMP_WAIT_POLICY": "PASSIVE", "MALLOC_TRIM_THRESHOLD_": "1"}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True, env=os.environ | early) == "['passive', 'keep']\n"


def test_switches_without_effect_beside_others_need_no_proof():
    assert "prefetch_factor" not in wanted(Recipe(prefetch_factor=4))
    assert "prefetch_factor" in wanted(Recipe(prefetch_factor=4, workers=1))


def test_what_a_recipe_leaves_to_the_environment_is_as_it_is(monkeypatch):
    monkeypatch.setattr(checks, "first_environment", lambda: {"OMP_WAIT_POLICY": "PASSIVE"})
    (proof,) = verify(View(CPU), {"wait_policy": "default"})
    assert (proof.ok, proof.evidence) == (True, "started with OMP_WAIT_POLICY=PASSIVE")
    monkeypatch.setattr(checks, "first_environment", dict)
    assert not verify(View(CPU), {"wait_policy": "passive"})[0].ok
