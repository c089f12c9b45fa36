"""Parity: checks and mechanisms. Ranks against one process are an integration test."""

import pytest

from perfkit.recipe import Recipe
from perfkit.results.parity import Check
from perfkit.results.run import Mechanism
from perfkit.studies.inspect import parity
from perfkit.worker.messages import ParityReport
from tests.unit.studies.fakes import FakeChild

LOSSES = {"candidate": [2.0], "float32": [2.0], "float64": [2.0]}


@pytest.fixture
def judge(machine, monkeypatch):
    answer = FakeChild.answer

    def with_parity(child, question, arguments):
        if question == "parity":
            return ParityReport([Check("losses", True, "equal")], LOSSES)
        return answer(child, question, arguments)

    monkeypatch.setattr(FakeChild, "answer", with_parity)
    return machine


def test_one_process_compares_and_proves_its_switches(judge, where):
    judge.mechanisms = [Mechanism("amp", True, "logits are bf16")]
    result = parity(where, "AMP", Recipe(batch_size=8, amp="bf16"))
    assert result.ok
    assert (result.exactness, result.other_batch, result.losses) == ("tolerance", False, LOSSES)
    assert result.checks[-1].evidence == "1 switches proven by the built objects"
    assert [child.stopped for child in judge.children] == [True]


def test_a_switch_that_is_not_in_effect_is_no_parity(judge, where):
    judge.mechanisms = [Mechanism("amp", False, "logits are float32")]
    result = parity(where, "AMP", Recipe(batch_size=16, amp="bf16"))
    assert not result.ok
    assert result.other_batch
    assert "amp: logits are float32" in result.describe()
