"""Several ranks of one training: started together, asked as one, ended together."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfkit.errors import RunFailed
from perfkit.process.child import POLL_S, Child
from perfkit.worker.messages import Command, Describe, Join

A = TypeVar("A")

_COLLECT_S = 1.5
"""How long the failures of other ranks are waited for, to find the one that caused them."""
SECONDARY_FAILURE = re.compile(
    r"gloo|NCCL|c10d|Connection (closed|reset)|DistBackend|ProcessGroup|TCPStore", re.IGNORECASE
)
"""What a rank says that failed because it lost another one."""


@dataclass
class Nodes:
    """The machines that train together: how many, which one this is, where they meet."""

    count: int = 1
    index: int = 0
    rendezvous: str = ""
    _meetings: int = 0

    def address(self) -> tuple[str, int]:
        """Host and port of the next meeting: a free port on a single machine, else consecutive ones."""
        if self.count == 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                return "127.0.0.1", free.getsockname()[1]
        host, _, port = self.rendezvous.rpartition(":")
        self._meetings += 1
        return host, int(port) + self._meetings - 1


class RankGroup:
    """The ranks of one training on this machine, used as one child: all get a command, the first answers.

    Args:
        children: a process for each rank; the first is the one that is measured.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self.children = list(children)
        self.started = children[0].started

    @property
    def pids(self) -> list[int]:
        """The leaders of its process groups, one for each rank."""
        return [child.pid for child in self.children]

    @property
    def deadline(self) -> float | None:
        """As a child's."""
        return self.children[0].deadline

    @deadline.setter
    def deadline(self, until: float | None) -> None:
        for child in self.children:
            child.deadline = until

    def ask(self, command: Command[A]) -> A:
        """Gives all ranks one command and waits for every answer; returns the first rank's.

        Raises:
            RunFailed: a rank failed, died, or took too long; then all have ended.
            Cancelled: the run was cancelled.
        """
        return self.ask_each([command] * len(self.children))

    def ask_each(self, commands: Sequence[Command[A]]) -> A:
        """As `ask`, with a command for each rank."""
        for child, command in zip(self.children, commands, strict=True):
            child.send(command)
        answers: dict[int, A] = {}
        while len(answers) < len(self.children):
            for rank, child in enumerate(self.children):
                try:
                    if rank not in answers:
                        answer = child.receive(commands[rank], POLL_S / len(self.children))
                        answers |= {} if answer is None else {rank: answer}
                except RunFailed as failure:
                    raise self._root_cause(commands[rank], rank, failure) from None
        return answers[0]

    def _root_cause(self, command: Command[A], rank: int, failure: RunFailed) -> RunFailed:
        """Stops all ranks; the failure that came first: when a rank ends, the others fail as they lose it."""
        failures, until = {rank: failure}, time.monotonic() + _COLLECT_S
        while time.monotonic() < until and len(failures) < len(self.children):
            for other, child in enumerate(self.children):
                if other not in failures:
                    try:
                        child.receive(command)
                    except RunFailed as more:
                        failures[other] = more
        self.stop()
        primary = {rank: one for rank, one in failures.items() if not SECONDARY_FAILURE.search(one.what)}
        rank, first = min((primary or failures).items())
        error = RunFailed(f"rank {rank} of {len(self.children)}: {first.what}", first.remedy)
        error.kind = first.kind
        return error

    def stop(self) -> None:
        """Ends every rank."""
        for child in self.children:
            child.stop()


def start_ranks(first: Child, describe: Describe, ranks: int, nodes: Nodes | None = None) -> RankGroup:
    """Starts the other ranks of this machine beside a child that has loaded the workload, and joins them.

    Args:
        first: the child, which belongs to the group from now on.
        describe: the command with which it loaded the workload.
        ranks: of all machines together.
        nodes: the machines; this one alone if None.
    """
    nodes = nodes or Nodes()
    local = ranks // nodes.count
    group = RankGroup([first])
    try:
        for _ in range(local - 1):
            group.children.append(first.sibling())
        if others := group.children[1:]:
            RankGroup(others).ask(describe)
        host, port = nodes.address()
        group.ask_each([
            Join(
                rank=nodes.index * local + rank, local_rank=rank, local_world_size=local, world_size=ranks,
                master_addr=host, master_port=port,
            ) for rank in range(local)
        ])  # fmt: skip
    except BaseException:
        group.stop()
        raise
    return group
