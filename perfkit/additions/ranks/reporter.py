"""What a rank tells whoever watches it: a thread answers, so that nothing keeps the training waiting."""

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
from perfkit.additions.shared.clock import clock, cpu_clock

_ASKED = "perfkit/asked"  # a key in the store of the launch
_FAR = timedelta(seconds=LIMIT.far_s)  # how long to wait for answers from other nodes


class OtherNodes:
    """The ranks of other nodes, which are reached through the store of the launch."""

    def __init__(self, recorder: RankRecorder, hello: Hello) -> None:
        self._recorder = recorder
        self._hello = hello
        self._store: Any = None
        if hello.local < hello.world:
            with self._reaching():
                address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
                if not (address and port):  # the ranks have met elsewhere, and the training waits here
                    raise ValueError("MASTER_ADDR and MASTER_PORT are not set")
                # A line of our own: what waits for something on the script's would hold this one up.
                self._store = dist.TCPStore(address, int(port), wait_for_workers=False, timeout=_FAR)  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Goes on without them, and says so, where the store is not reached: it ends with its node."""
        try:
            yield
        except (RuntimeError, ValueError) as problem:
            self._store = None
            self._recorder.script.note(f"ranks of other nodes are not heard of: {problem}")

    def ask(self) -> list[State]:
        """What the ranks of other nodes have seen, for rank 0; ranks on its own answer twice."""
        told = list[State]()
        if self._store is None or self._hello.rank:
            return told
        with self._reaching():
            self._store.set(_ASKED, "1")
            keys = [f"{_ASKED}/{rank}" for rank in range(1, self._hello.world)]
            with contextlib.suppress(RuntimeError):  # some do not answer
                self._store.wait(keys, _FAR)
            answers = [self._store.get(key) for key in keys if self._store.check([key])]
            told += [msgspec.json.decode(answer, type=State) for answer in answers]
        return told

    def answer(self, state: Callable[[], State]) -> None:
        """Tells rank 0 what this rank has seen, once it has asked."""
        with self._reaching():
            if self._store is not None and self._hello.rank and self._store.check([_ASKED]):
                told = state()
                few = sorted(told.stacks, key=lambda stack: -stack.seconds)[: LIMIT.most_stacks]
                small = structs.replace(told, steps=told.steps[-LIMIT.most_steps :], stacks=few)
                self._store.set(f"{_ASKED}/{self._hello.rank}", msgspec.json.encode(small))
                self._store = None


def pause_s(looks: int, spent_s: float) -> float:
    """Seconds until the next look, if so many took a thread so much CPU time: it has its share of a core."""
    affordable_s = spent_s / looks / LIMIT.of_looks if looks >= LIMIT.first_looks else 0.0
    return float(min(max(LIMIT.look_s, affordable_s), LIMIT.longest_look_s))


class RankReporter:
    """Tells what a recorder has noted, and where the rank was whenever its stack was looked at."""

    def __init__(self, recorder: RankRecorder, hello: Hello, line: Connection) -> None:
        self._recorder = recorder
        self._line = line  # two threads say something on it, and the one that trains closes it
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._others = OtherNodes(recorder, hello)

    def attend(self) -> None:
        """Looks at the thread that trains, says that it lives, and answers for it, until it has ended."""
        recorder = self._recorder
        before = beaten = clock()
        looks = 0
        while not self._over.is_set():
            try:
                is_asked = self._line.poll(pause_s(looks, cpu_clock()))
                if is_asked:
                    self._line.recv_bytes()
            except (EOFError, OSError):
                if not self._over.is_set():  # whoever watched is gone: nothing of it may be left
                    os._exit(1)
                return
            sys.setswitchinterval(LIMIT.undisturbed_s)  # else the training goes on, and the look is in vain
            before = recorder.sampler.look(recorder.script.steps.trainer, before)
            sys.setswitchinterval(LIMIT.switch_s)
            looks += 1
            if is_asked:
                self.send(self.state())
                for state in self._others.ask():
                    self.send(state)
            if before - beaten > LIMIT.beat_s:
                beaten = before
                self.send(Beat(steps=recorder.script.steps.count, part=recorder.part_now()))
                self._others.answer(self.state)

    def send(self, message: Message) -> None:
        """Says something; that nobody listens any more shows when a question is awaited."""
        if not self._over.is_set():
            with self._sending, contextlib.suppress(OSError):
                self._line.send_bytes(msgspec.json.encode(message))

    def state(self) -> State:
        """All that was seen until now, and where the rank is."""
        recorder = self._recorder
        stacks = [
            Stack(part, [f"{spot.file}:{spot.line}" for spot in stack], seconds)
            for (part, stack), seconds in dict(recorder.sampler.times).items()
        ]
        at = list(recorder.sampler.lines(sys._current_frames().get(recorder.script.steps.trainer)))
        return structs.replace(recorder.snapshot(), stacks=stacks, at=at)

    def end(self, failure: str = "") -> None:
        """Says that the rank has ended, and of what; then nothing more."""
        if not self._over.is_set():
            self.send(structs.replace(self.state(), ended=True, failure=failure, at=[]))
            self.close()

    def close(self) -> None:
        """The rank has ended, or this process is not one."""
        self._over.set()  # the other thread may be reading
        self._line.close()
