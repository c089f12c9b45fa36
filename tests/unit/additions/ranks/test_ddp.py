"""Models in `DistributedDataParallel`: hooks that are set, or refused; what torch times of their exchange."""

from types import SimpleNamespace

import pytest
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from perfkit.additions.ranks.ddp import NEVER, DdpExchange, DdpRecord, Setting, StepExchange, buckets_of
from perfkit.additions.ranks.messages import LIMIT
from perfkit.worker.checks import View


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
    script = SimpleNamespace(updates=SimpleNamespace(backwards=0), toggles={}, view=View)
    setting._script, setting._switches = script, wanted
    setting._ddps, setting._buckets, setting._refusal = [], 1, ""
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


# ---------------------------------------------------------------- what torch times

MS = 1_000_000
END = "backward_comm_time_end"


class Timed:
    """A model that torch times; only some passes on a device: in between it tells what it told before."""

    static_graph = False
    bucket_bytes_cap = 25 << 20

    def __init__(self, device, told, sends=True, unused=0):
        self.device_type, self._told, self.require_forward_param_sync = device, iter(told), sends
        self.logger = SimpleNamespace(
            set_runtime_stats_and_log=lambda: None, _get_ddp_logging_data=self._logging_data
        )
        self.module = SimpleNamespace(named_buffers=list, parameters=list, named_parameters=list)
        self.modules = list
        self._unused = iter([unused] if isinstance(unused, int) else unused)
        self.rates = []

    def _logging_data(self):
        about = {"backward_compute_comm_overlap_time": 2 * MS, "backward_comm_time": 9 * MS}
        about |= {"find_unused_parameters": 1, "unused_parameter_size": next(self._unused, 0)}
        return SimpleNamespace(ints_map=about | {END: next(self._told)}, strs_map={})


def exchange_of(model, steps=0):
    """The exchange of a model, whose last pass ended at 1, after so many steps."""
    script = SimpleNamespace(steps=SimpleNamespace(count=steps))
    exchange = DdpExchange(script, None)
    exchange.models[model] = DdpRecord("train.py:1", SimpleNamespace(ints_map={}, strs_map={}), end=1)
    exchange.rate_setters.append(model.rates.append)
    return exchange


def backward(model):
    """What is known of the step after a backward pass."""
    exchange = exchange_of(model)
    exchange.backward(lambda: None)
    return exchange._step


@pytest.mark.parametrize(
    ("device", "sends", "is_read"), [("cuda", True, False), ("cuda", False, True), ("cpu", True, True)]
)
def test_a_pass_that_torch_did_not_time_on_a_device_counts_as_not_read(device, sends, is_read):
    step = backward(Timed(device, [1], sends))
    assert (step.is_read, step.syncs, step.exposed) == (is_read, 0, 0.0)


def test_a_pass_on_a_device_takes_as_long_as_the_device_says_not_as_its_launch():
    step = backward(Timed("cuda", [2]))
    assert (step.is_read, step.syncs) == (True, 1)
    assert step.exposed == pytest.approx(0.007)
    assert backward(Timed("cpu", [2])).exposed < 0.007, "no longer than the pass itself"


@pytest.mark.parametrize(("device", "rates"), [("cpu", [1, NEVER]), ("cuda", [])])
def test_torch_times_passes_on_a_cpu_and_nothing_before_the_next_forward_pass(device, rates):
    model = Timed(device, [1, 1])
    model.reducer = SimpleNamespace(_set_ddp_runtime_logging_sample_rate=model.rates.append)
    model._set_ddp_runtime_logging_sample_rate = lambda rate: None
    sampler = SimpleNamespace(lines=lambda frame: iter(()))
    exchange = DdpExchange(SimpleNamespace(steps=SimpleNamespace(count=0)), sampler)
    exchange.make(lambda model: None, model)
    exchange.backward(lambda: None)
    exchange.end_step(1)
    assert model.rates == rates


def test_a_step_that_was_not_read_has_the_exchange_of_the_last_one_that_was():
    exchange = exchange_of(Timed("cuda", [2, 2]))
    exchange.backward(lambda: None)
    read = exchange.end_step(1)
    exchange.backward(lambda: None)  # torch has not timed this one
    assert exchange.end_step(1) == StepExchange(read.exposed, read.hidden, read.syncs, is_read=False)


def test_steps_that_end_together_share_their_exchange():
    exchange = exchange_of(Timed("cuda", [2, 3]))
    for _ in range(2):
        exchange.backward(lambda: None)
    assert exchange.end_step(2) == StepExchange(pytest.approx(0.007), pytest.approx(0.002), 1)


@pytest.mark.parametrize(
    ("told", "unused", "is_needless"), [([], 0, False), ([2, 3], [0, 0], True), ([2, 3], [400, 0], False)]
)
def test_a_search_is_needless_only_where_torch_has_found_no_unused_parameter(told, unused, is_needless):
    """Before the first pass that was read, and where one was unused in some pass, nothing of that is said."""
    exchange = exchange_of(Timed("cuda", told, unused=unused))
    for _ in told:
        exchange.backward(lambda: None)
    exchange.models = {
        model: DdpRecord(
            seen.where, SimpleNamespace(ints_map={"find_unused_parameters": 1}, strs_map={}), 0, seen.unused
        )
        for model, seen in exchange.models.items()
    }
    (ddp,) = exchange.ddps()
    assert ddp.needs_no_search == is_needless


def test_torch_is_asked_after_all_first_passes_and_then_after_few():
    asked = []
    exchange = exchange_of(Timed("cpu", range(2, 1000)))
    exchange._read = lambda model, seen, took: asked.append(exchange._script.steps.count)
    for exchange._script.steps.count in range(100):
        exchange._usual_backward_s = 0.0  # whatever this machine takes for nothing
        exchange.backward(lambda: None)
    assert asked == [*range(LIMIT.all_read + 1), *range(48, 100, LIMIT.rarest)]


def test_parameters_that_came_after_the_model_was_wrapped_are_told():
    """A new head, or layers that were frozen: torch exchanges what trained when it was wrapped."""
    model = Timed("cuda", [1, 1])
    model.module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model.module[0].weight.requires_grad = False
    model._set_ddp_runtime_logging_sample_rate = lambda rate: None
    exchange = DdpExchange(SimpleNamespace(), SimpleNamespace(lines=lambda frame: iter(())))
    exchange.make(lambda model: None, model)
    assert next(exchange.ddps()).unknown == []
    model.module[2] = nn.Linear(2, 2)
    model.module[0].weight.requires_grad = True
    assert next(exchange.ddps()).unknown == ["0.weight", "2.weight", "2.bias"]
