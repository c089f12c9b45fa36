"""What is asked of the process that checks, and what is made of its answer."""

import pytest

from perfkit.additions.parity.study import ParityReport, parity
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.schema import Mechanism
from tests.unit.studies.conftest import machine, where

__all__ = ["machine", "where"]
QUESTION = "perfkit.additions.parity.check:check"


def test_parity_of_a_switch_that_cannot_act_says_so_and_trains_nothing(machine, where):
    with pytest.raises(InvalidValue, match=r"Pinned cannot be checked here: Pin memory: needs a CUDA device"):
        parity(where, "Pinned", Recipe(pin_memory=True))
    with pytest.raises(InvalidValue, match="the workload does not offer scaled_decode"):
        parity(where, "Scaled", Recipe(scaled_decode=True))
    assert machine.trainings == []
    assert machine.alive() == []


def test_a_switch_that_is_not_in_effect_is_no_parity(machine, where):
    for is_on in (True, False):
        mechanism = Mechanism("amp", is_on, "logits are of some type")
        machine.answers[QUESTION] = ParityReport([], {"candidate": [2.0]}, [mechanism])
        result = parity(where, "AMP", Recipe(batch_size=16, amp="bf16"))
        assert (result.ok, result.other_batch, result.exactness) == (is_on, True, "tolerance")
        assert ("amp: logits are of some type" in result.describe()) is not is_on
    assert machine.alive() == []
