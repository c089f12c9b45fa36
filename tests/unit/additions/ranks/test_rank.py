"""What a rank notes of its exchange of gradients, by what torch tells of a model."""

from types import SimpleNamespace

import pytest

from perfkit.additions.ranks.messages import State
from perfkit.additions.ranks.rank import Rank, SeenDdp, StepUnderWay
from perfkit.additions.scripts.script import ScriptStep

MS = 1_000_000
END = "backward_comm_time_end"


class Model:
    """Torch times some passes only on a device: in between it tells what it told before."""

    def __init__(self, device, told, sends=True):
        self.device_type, self._told, self.require_forward_param_sync = device, iter(told), sends
        self.logger = SimpleNamespace(
            set_runtime_stats_and_log=lambda: None, _get_ddp_logging_data=self._logging_data
        )
        self.rates = []
        self._set_ddp_runtime_logging_sample_rate = self.rates.append

    def _logging_data(self):
        about = {"backward_compute_comm_overlap_time": 2 * MS, "backward_comm_time": 9 * MS}
        return SimpleNamespace(ints_map=about | {END: next(self._told)})


def backward(model):
    """A rank after a backward pass, with what it then knows of the step."""
    rank = Rank.__new__(Rank)
    rank.script = SimpleNamespace(backwards=1, steps=SimpleNamespace(count=0))
    rank._shortest_backward = float("inf")
    rank._step = StepUnderWay()
    rank._ddps = {model: SeenDdp("train.py:1", None, ended=1)}
    rank._backward(lambda: None)
    return rank


@pytest.mark.parametrize(
    ("device", "sends", "is_read"), [("cuda", True, False), ("cuda", False, True), ("cpu", True, True)]
)
def test_a_pass_that_torch_did_not_time_on_a_device_counts_as_not_read(device, sends, is_read):
    step = backward(Model(device, [1], sends))._step
    assert (step.is_read, step.syncs, step.exposed) == (is_read, 0, 0.0)


def test_a_pass_on_a_device_takes_as_long_as_the_device_says_not_as_its_launch():
    step = backward(Model("cuda", [2]))._step
    assert (step.is_read, step.syncs) == (True, 1)
    assert step.exposed == pytest.approx(0.007)
    assert backward(Model("cpu", [2]))._step.exposed < 0.007, "no longer than the pass itself"


@pytest.mark.parametrize(("device", "rates"), [("cpu", [1, 1 << 30]), ("cuda", [])])
def test_torch_times_passes_on_a_cpu_and_nothing_before_the_next_forward_pass(device, rates):
    model = Model(device, [1])
    rank = backward(model)
    rank._line, rank._seen = None, State(rank=0)
    rank.script.steps.count = 1
    rank.script.parameters = list
    rank.on_steps([ScriptStep()])
    assert model.rates == rates
