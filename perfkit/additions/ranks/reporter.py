"""The reports of a rank to its watcher, sent by a thread so that nothing keeps the training waiting."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch.distributed as dist
from msgspec import structs

from perfkit.additions.ranks.messages import LIMIT, Beat, Hello, Message, Stack, State
from perfkit.additions.ranks.recorder import RankRecorder
from perfkit.additions.scripts.messages import failed_inside
from perfkit.additions.shared.clock import clock, cpu_clock

_QUESTION = "perfkit/asked"  # a key in the store of the launch
_FAR_TIMEOUT = timedelta(seconds=LIMIT.far_s)  # the longest wait for answers from other nodes


class OtherNodes:
    """The ranks of other nodes, reached through the store of the launch."""

    def __init__(self, recorder: RankRecorder, hello: Hello) -> None:
        self._recorder = recorder
        self._hello = hello
        self._store: Any = None
        if hello.local < hello.world:
            with self._store_may_be_gone():
                address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
                if not (address and port):  # the ranks met elsewhere, and the training waits here
                    raise ValueError("MASTER_ADDR and MASTER_PORT are not set")
                # A second connection: requests that wait on the script's one would delay this one.
                self._store = dist.TCPStore(address, int(port), wait_for_workers=False, timeout=_FAR_TIMEOUT)  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def _store_may_be_gone(self) -> Iterator[None]:
        """Notes that the store cannot be reached, and goes on without it; it ends with its node."""
        try:
            yield
        except (RuntimeError, ValueError) as problem:
            self._store = None
            self._recorder.script.note(f"ranks of other nodes are not heard of: {problem}")

    def ask(self) -> list[State]:
        """The states of the ranks of other nodes, for rank 0; ranks on its own node answer twice."""
        states = list[State]()
        if self._store is None or self._hello.rank:
            return states
        with self._store_may_be_gone():
            self._store.set(_QUESTION, "1")
            keys = [f"{_QUESTION}/{rank}" for rank in range(1, self._hello.world)]
            with contextlib.suppress(RuntimeError):  # some do not answer
                self._store.wait(keys, _FAR_TIMEOUT)
            answers = [self._store.get(key) for key in keys if self._store.check([key])]
            states += [msgspec.json.decode(answer, type=State) for answer in answers]
        return states

    def answer(self, make_state: Callable[[], State]) -> None:
        """Sends this rank's state to rank 0, if it has asked."""
        with self._store_may_be_gone():
            if self._store is not None and self._hello.rank and self._store.check([_QUESTION]):
                state = make_state()
                stacks = sorted(state.stacks, key=lambda stack: -stack.seconds)[: LIMIT.most_stacks]
                excerpt = structs.replace(state, steps=state.steps[-LIMIT.most_steps :], stacks=stacks)
                self._store.set(f"{_QUESTION}/{self._hello.rank}", msgspec.json.encode(excerpt))
                self._store = None


def pause_s(looks: int, cpu_s: float) -> float:
    """Seconds to the next look at the stack: `looks` took `cpu_s`, and may have a small share of a core."""
    affordable_s = cpu_s / looks / LIMIT.of_looks if looks >= LIMIT.first_looks else 0.0
    return float(min(max(LIMIT.look_s, affordable_s), LIMIT.longest_look_s))


class RankReporter:
    """Sends what a recorder has noted, and the lines that the rank was in at each look at its stack."""

    def __init__(self, recorder: RankRecorder, hello: Hello, connection: Connection) -> None:
        self._recorder = recorder
        self._hello = hello
        self._connection = connection  # two threads send on it, and the one that trains closes it
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._others = OtherNodes(recorder, hello)

    def attend(self) -> None:
        """Looks at the training thread's stack, sends its beats, and answers for it, until it has ended."""
        try:
            self._attend()
        except Exception as problem:  # else the watcher would take this rank for one that hangs
            self.send(State(rank=self._hello.rank, failure=failed_inside(problem).what))
            self.close()

    def _attend(self) -> None:
        recorder = self._recorder
        before = last_beat = clock()
        looks = 0
        while not self._over.is_set():
            try:
                has_question = self._connection.poll(pause_s(looks, cpu_clock()))
                if has_question:
                    self._connection.recv_bytes()
            except (EOFError, OSError):
                if not self._over.is_set():  # the watcher is gone, and nothing of its launch may be left
                    os._exit(1)
                return
            sys.setswitchinterval(LIMIT.undisturbed_s)  # else the training goes on, and spoils the look
            before = recorder.sampler.look(recorder.script.steps.trainer, before)
            sys.setswitchinterval(LIMIT.switch_s)
            looks += 1
            if has_question:
                self.send(self.state())
                for state in self._others.ask():
                    self.send(state)
            if before - last_beat > LIMIT.beat_s:
                last_beat = before
                self.send(Beat(steps=recorder.script.steps.count, part=recorder.part_now()))
                self._others.answer(self.state)

    def send(self, message: Message) -> None:
        """Sends a message. A watcher that has gone is noticed only when a question is awaited."""
        if not self._over.is_set():
            with self._sending, contextlib.suppress(OSError):
                self._connection.send_bytes(msgspec.json.encode(message))

    def state(self) -> State:
        """All notes until now, and the lines that the rank is in."""
        recorder = self._recorder
        stacks = [
            Stack(part, [f"{s.file}:{s.line}" for s in stack], seconds, stack[-1].calls if stack else "")
            for (part, stack), seconds in dict(recorder.sampler.times).items()
        ]
        at = list(recorder.sampler.lines(sys._current_frames().get(recorder.script.steps.trainer)))
        return structs.replace(recorder.snapshot(), stacks=stacks, at=at)

    def end(self, failure: str = "") -> None:
        """Reports that the rank has ended, and its failure if any; the last message."""
        if not self._over.is_set():
            self.send(structs.replace(self.state(), ended=True, failure=failure, at=[]))
            self.close()

    def close(self) -> None:
        """Closes the connection: the rank has ended, or this is a forked process."""
        self._over.set()  # the other thread may be reading
        self._connection.close()
