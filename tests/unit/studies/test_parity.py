"""Parity of one process and of ranks, with children that answer from a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfkit.recipe import Recipe
from perfkit.results.parity import Check
from perfkit.results.run import Mechanism
from perfkit.studies import setup
from perfkit.studies.parity import parity
from perfkit.studies.plan import Plan, plan
from perfkit.worker import messages
from perfkit.worker.reports import ParityReport
from tests.unit.studies import fakes
from tests.unit.studies.fakes import FakeChild, FakeMachine, install

LOSSES = {"candidate": [2.0], "float32": [2.0], "float64": [2.0]}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    answer = FakeChild._answer

    def with_parity(child: FakeChild, command: messages.Command[Any]) -> Any:
        if isinstance(command, messages.CheckParity):
            return ParityReport([Check("losses", True, "equal")], LOSSES)
        return answer(child, command)

    monkeypatch.setattr(FakeChild, "_answer", with_parity)
    monkeypatch.setattr(setup, "start_ranks", lambda first, *given: first)
    return install(monkeypatch, FakeMachine())


@pytest.fixture
def where(data_dir: Path) -> Plan:
    return plan("cifar_resnet18", "smoke", device="cpu")


def test_one_process_compares_and_proves_its_switches(machine: FakeMachine, where: Plan) -> None:
    machine.mechanisms = [Mechanism("amp", True, "logits are bf16")]
    found = parity(where, "AMP", Recipe(batch_size=8, amp="bf16"))
    assert found.ok
    assert (found.exactness, found.other_batch, found.losses) == ("tolerance", False, LOSSES)
    assert found.checks[-1].evidence == "1 switches proven by the built objects"
    assert [child.stopped for child in machine.children] == [1]


def test_a_switch_that_is_not_in_effect_is_no_parity(machine: FakeMachine, where: Plan) -> None:
    machine.mechanisms = [Mechanism("amp", False, "logits are float32")]
    found = parity(where, "AMP", Recipe(batch_size=16, amp="bf16"))
    assert not found.ok
    assert found.other_batch
    assert "amp: logits are float32" in found.describe()


@pytest.mark.parametrize(("loss", "same"), [(2.3001, True), (2.31, False)])
def test_ranks_have_the_losses_of_one_with_all_of_their_batches(
    machine: FakeMachine, where: Plan, monkeypatch: pytest.MonkeyPatch, loss: float, same: bool
) -> None:
    trained = fakes.trained

    def of_ranks(recipe: Recipe, *given: Any) -> messages.Trained:
        losses = [loss if recipe.ranks > 1 else 2.3]
        return trained(recipe, losses=losses, batch_norm=True)

    monkeypatch.setattr(fakes, "trained", of_ranks)
    found = parity(where, "two", Recipe(batch_size=8, ranks=2))
    sizes = [c.recipe["batch_size"] for _, c in machine.asked if isinstance(c, messages.Train)]
    assert sizes == [16, 8]
    assert found.ok is same
    assert ("SyncBatchNorm" in found.checks[0].evidence) is not same
    assert machine.alive() == []
