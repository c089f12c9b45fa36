"""Plans are checked before anything starts."""

from __future__ import annotations

import pytest

from perfkit.errors import InvalidValue
from perfkit.studies import plan as plans


@pytest.mark.parametrize(
    ("nodes", "index", "rendezvous"),
    [(2, 0, ""), (2, 0, "host"), (2, 0, "host:x"), (2, 2, "host:1")],
)
def test_machines_that_cannot_meet_are_refused(nodes: int, index: int, rendezvous: str) -> None:
    plan = plans.plan("photos", "smoke", (), {"ranks": 4}, "cpu")
    with pytest.raises(InvalidValue):
        plans.for_node(plan, nodes, index, rendezvous)


def test_ranks_are_split_evenly_over_machines() -> None:
    plan = plans.plan("photos", "smoke", (), {"ranks": 4}, "cpu")
    assert plans.for_node(plan, 1, 0, "") is plan
    assert plans.for_node(plan, 2, 1, "host:29400").nodes.address() == ("host", 29400)
    with pytest.raises(InvalidValue, match="3 ranks on 2 machines"):
        plans.for_node(plans.plan("photos", "smoke", (), {"ranks": 3}, "cpu"), 2, 0, "host:1")


def test_settings_are_checked_and_defaults_filled_in() -> None:
    plan = plans.plan(preset="quick", settings={"workers": "2"}, device="cpu")
    assert plan.workload == "photos"
    assert plan.settings == {"workers": 2}
    with pytest.raises(InvalidValue, match="unknown switch 'worker'"):
        plans.plan(settings={"worker": 1}, device="cpu")
