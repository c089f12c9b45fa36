"""A switch is in effect if the built objects and an observed step say so, not if the recipe does."""

from types import SimpleNamespace

import pytest
import torch

from perfkit.recipe import Recipe, switches
from perfkit.worker import checks
from perfkit.worker.checks import View, verify
from perfkit.worker.training import Training
from tests.support.toy import Blocks

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("settings_kept")


def seen(**switches):
    return Training(Recipe(**{"batch_size": 8, **switches}), Blocks(), CPU).observed_step()[1]


def test_every_reader_tells_a_switch_that_is_on_from_one_that_is_off():
    """On a CPU, in one process; what needs a GPU is proven there."""
    states = {
        "batch_size": 16, "workers": 1, "prefetch_factor": 4, "zero_grad_set_to_none": False, "amp": "bf16",
        "cudnn_benchmark": True, "fp32_precision": "tf32", "optimizer_impl": "foreach", "accumulation": 2,
        "non_blocking": True,
    }  # fmt: skip
    view = seen(**states)
    assert torch.get_float32_matmul_precision() == "high", "it raises if the two kinds of settings differ"
    assert [proof for proof in verify(view, Recipe(**states).to_dict()) if not proof.ok] == []
    off = {name: switches()[name].default for name in states}
    assert [proof.name for proof in verify(view, off) if proof.ok] == []
    view.iterator._shutdown_workers()


def test_a_parameter_that_the_loss_does_not_use_says_nothing_of_gradients():
    used, unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    used(torch.ones(1)).sum().backward()
    assert View(model=torch.nn.Sequential(unused, used)).zero_grad_set_to_none()[0] is False


def noted(beside=True, pinned=True):
    """What an observed step would show on a GPU."""
    return {"copies_beside": beside, "batch": [SimpleNamespace(is_pinned=lambda: pinned)]}


def sides(sent, seen):
    """A batch of images as it is copied, and as the model gets it."""
    return {"batch": [torch.empty(2, 3, *sent)], "inputs": torch.empty(2, 3, *seen)}


def computed(dtype, **others):
    return {"model": torch.nn.Linear(1, 1), "outputs": torch.zeros(1, dtype=dtype), **others}


def scaler(is_on):
    return SimpleNamespace(is_enabled=lambda: is_on, get_scale=lambda: 65536.0)


EARLY = {"OMP_WAIT_POLICY": "PASSIVE", "MALLOC_TRIM_THRESHOLD_": "1"}
"""What a process is started with, as it must be read before torch is imported."""


@pytest.mark.parametrize(
    ("switch", "view", "value", "words"),
    [
        ("device_prefetch", noted(), True, "on its own stream; batches lie in page-locked memory"),
        ("device_prefetch", noted(beside=False), False, "on the stream of the kernels"),
        ("device_prefetch", noted(pinned=False), None, "in pageable memory"),
        ("device_resize", sides((64, 48), (128, 96)), True, "[64, 48] as it is copied, [128, 96]"),
        ("device_resize", sides((64, 96), (128, 32)), False, "sides of an image"),  # it has fewer pixels
        ("device_resize", sides((64, 48), (64, 32)), False, "sides of an image"),
        ("amp", computed(torch.float16, scaler=scaler(True)), "fp16", "loss scaled by 65536"),
        ("amp", computed(torch.float16, scaler=scaler(False)), None, "logits are float16"),
        ("amp", computed(torch.float32, autocast=torch.bfloat16), "bf16", "cast back from an autocast"),
        ("wait_policy", {}, "passive", "started with OMP_WAIT_POLICY=PASSIVE"),
        ("allocator", {}, "keep", "started with MALLOC_TRIM_THRESHOLD_=1"),
    ],
)
def test_what_needs_a_gpu_or_an_early_setting_is_read_from_a_step(monkeypatch, switch, view, value, words):
    monkeypatch.setattr(checks, "first_environment", lambda: EARLY)
    read, evidence = getattr(View(**view), switch)()
    assert read == value
    assert words in evidence
    (proof,) = verify(View(**view), {switch: "default"})
    assert proof.ok == (switch in ("wait_policy", "allocator")), "the environment is left as it is"
