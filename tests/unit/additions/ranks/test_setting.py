"""Hooks for gradients: set where torch takes them, and said to be refused where it does not."""

from types import SimpleNamespace

import pytest
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from perfkit.additions.ranks.setting import Setting, buckets_of, join


class Model:
    """As much of a `DistributedDataParallel` as is read; `refuses`: what torch says to a hook."""

    bucket_bytes_cap = 25 << 20
    find_unused_parameters = gradient_as_bucket_view = static_graph = broadcast_buffers = False

    def __init__(self, refuses=None):
        self._refuses, self._comm_hooks = refuses, []

    def register_comm_hook(self, state, hook):
        if self._refuses:
            raise self._refuses
        self._comm_hooks.append((hook, state))


def made(model, **wanted):
    """What is known of a model once it was made with these switches."""
    setting = Setting.__new__(Setting)
    script = SimpleNamespace(backwards=0, toggles={}, note_call=lambda role: None)
    setting._script, setting._wanted = script, wanted
    setting._ddps, setting._buckets, setting._refused = [], 1, ""
    setting._unsent, setting._were_sent = 0, True
    setting._make(lambda self: None, model)
    (proof,) = setting.proofs()
    return proof


@pytest.mark.parametrize(("value", "hook"), [("bf16", "bf16_compress_hook"), ("fp16", "fp16_compress_hook")])
def test_a_hook_for_gradients_is_read_from_the_model(value, hook):
    model = Model()
    proof = made(model, gradients=value)
    assert (proof.name, proof.ok) == ("gradients", True)
    assert proof.evidence == f"the model's hook for its gradients is {hook}"
    assert model._comm_hooks == [(getattr(default_hooks, hook), None)]


@pytest.mark.parametrize("kind", [TypeError, RuntimeError])
def test_a_hook_that_torch_refuses_is_not_in_effect_and_the_script_goes_on(kind):
    proof = made(Model(kind("BF16 hook required NCCL 2.10+\nmore")), gradients="bf16")
    assert not proof.ok
    assert proof.evidence == "torch refuses it: BF16 hook required NCCL 2.10+"


def test_a_hook_of_the_script_s_own_is_not_the_default_one():
    model = Model()
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    proof = made(model, gradients="default")
    assert (proof.ok, proof.evidence) == (False, "the model's hook for its gradients is allreduce_hook")
    assert made(Model(), gradients="default").ok


def test_buckets_are_those_that_torch_has_put_together_last():
    assert buckets_of({"bucket_sizes": "8, 4"}) == [8, 4]
    assert buckets_of({"bucket_sizes": "8, 4", "rebuilt_bucket_sizes": "12"}) == [12]
    assert buckets_of({}) == []


def test_a_rank_that_nobody_listens_to_trains_on_and_notes_nothing(tmp_path, capsys):
    trains, notes = SimpleNamespace(), SimpleNamespace(steps=[])
    script = SimpleNamespace(settings={"address": str(tmp_path / "ranks")}, parts=[trains, notes])
    assert join(script, [notes]) is None
    assert script.parts == [trains]
    assert "nobody listens here" in capsys.readouterr().err
