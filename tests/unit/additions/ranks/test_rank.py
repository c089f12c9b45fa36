"""What a rank notes of its exchange of gradients, by what torch tells of a model."""

from types import SimpleNamespace

import pytest

from perfkit.additions.ranks.rank import Rank

MS = 1_000_000
END = "backward_comm_time_end"


class Model:
    """Torch times some passes only on a device: in between it tells what it told before."""

    def __init__(self, device, told, sends=True):
        self.device_type, self._told, self.require_forward_param_sync = device, iter(told), sends
        self.logger = SimpleNamespace(set_runtime_stats_and_log=lambda: None)

    def _get_ddp_logging_data(self):
        about = {"backward_compute_comm_overlap_time": 2 * MS, "backward_comm_time": 9 * MS}
        return about | {END: next(self._told)}


def backward(model):
    """A rank after a backward pass, with what it then knows of the step."""
    rank = Rank.__new__(Rank)
    rank.script = SimpleNamespace(backwards=1, steps=SimpleNamespace(count=0))
    rank._shortest_backward, rank._is_read = float("inf"), True
    rank._exposed, rank._hidden, rank._syncs = 0.0, 0.0, 0
    rank._ddps = {model: ("train.py:1", {END: 1})}
    rank._backward(lambda: None)
    return rank


@pytest.mark.parametrize(
    ("device", "sends", "is_read"), [("cuda", True, False), ("cuda", False, True), ("cpu", True, True)]
)
def test_a_pass_that_torch_did_not_time_on_a_device_counts_as_not_read(device, sends, is_read):
    rank = backward(Model(device, [1], sends))
    assert (rank._is_read, rank._syncs, rank._exposed) == (is_read, 0, 0.0)


def test_a_pass_on_a_device_takes_as_long_as_the_device_says_not_as_its_launch():
    rank = backward(Model("cuda", [2]))
    assert (rank._is_read, rank._syncs) == (True, 1)
    assert rank._exposed == pytest.approx(0.007)
    assert backward(Model("cpu", [2]))._exposed < 0.007, "no longer than the pass itself"
