"""Ranks as one child: the first answers, and the failure that caused the others is reported."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.errors import RunFailed
from perfkit.process.ranks import SECONDARY_FAILURE, Nodes, RankGroup
from perfkit.worker.messages import MeasureBlock, Peak, ReadPeak

LOST = "the training raised RuntimeError: [gloo] Connection closed by peer"


class FakeChild:
    """Answers from a list: None for not yet."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.commands, self.stopped = [*answers], list[Any](), False
        self.started, self.deadline = 0.0, None

    def send(self, command: Any) -> None:
        self.commands.append(command)

    def receive(self, command: Any, wait_s: float = 0.0) -> Any:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        self.stopped = True


def group(*children: FakeChild) -> RankGroup:
    return RankGroup(children)  # type: ignore[arg-type]


def test_all_get_the_command_and_the_first_answers() -> None:
    first, second = FakeChild(None, Peak(1, 2, 0)), FakeChild(Peak(3, 4, 0))
    assert group(first, second).ask(ReadPeak()) == Peak(1, 2, 0)
    assert first.commands == second.commands == [ReadPeak()]


@pytest.mark.parametrize("order", [0, 1])
def test_the_failure_that_caused_the_others_is_reported(order: int) -> None:
    cause = RunFailed("a broken sample (toy.py:3)", "Fix it")
    cause.kind = "exception"
    failures = [RunFailed(LOST), cause]
    children = [FakeChild(None, failures[order]), FakeChild(failures[1 - order])]
    with pytest.raises(RunFailed, match=f"rank {1 - order} of 2: a broken sample") as raised:
        group(*children).ask(MeasureBlock(8))
    assert (raised.value.kind, raised.value.remedy) == ("exception", "Fix it")
    assert all(child.stopped for child in children)


def test_without_a_cause_the_first_secondary_failure_is_reported() -> None:
    assert SECONDARY_FAILURE.search(LOST)
    with pytest.raises(RunFailed, match="rank 0 of 2.*gloo"):
        group(FakeChild(RunFailed(LOST)), FakeChild(RunFailed(LOST))).ask(ReadPeak())


def test_a_deadline_is_that_of_every_rank() -> None:
    ranks = group(FakeChild(), FakeChild())
    ranks.deadline = 3.0
    assert [child.deadline for child in ranks.children] == [3.0, 3.0]


def test_machines_meet_at_one_port_after_the_other() -> None:
    nodes = Nodes(2, 0, "host:29500")
    assert [nodes.address(), nodes.address()] == [("host", 29500), ("host", 29501)]
    host, port = Nodes().address()
    assert host == "127.0.0.1"
    assert 0 < port < 65536
