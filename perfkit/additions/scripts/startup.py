"""The time before a script's first step, which may be long, and which no step shows."""

import _thread
import threading
from types import FrameType
from typing import Any

from perfkit.additions.scripts.messages import limits
from perfkit.additions.scripts.script import Script
from perfkit.additions.shared.attribution import TimedLine, timed_lines
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.positions import Spot
from perfkit.additions.shared.sampler import Sampler

LIMIT = limits("startup")


class ShallowSampler(Sampler):
    """Skips deep stacks: the thread that is looked at has to wait meanwhile."""

    def stack(self, frame: FrameType) -> tuple[Spot, ...]:
        outer: FrameType | None = frame
        for _ in range(LIMIT.deepest):
            outer = outer and outer.f_back
        return () if outer else super().stack(frame)


class StartUp:
    """Looks at the thread that creates this, from another thread, until the script takes its first step."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._sampler = ShallowSampler(lambda: "before the first step", script.settings.place)
        self._main = threading.get_ident()
        self._pause: Any = threading.Event()  # never set: a script may replace `time.sleep`
        _thread.start_new_thread(self._look, ())  # a script may wait for all others that `threading` knows

    def _look(self) -> None:
        before = clock()
        while not self._script.steps.began_at:
            self._pause.wait(LIMIT.every_s)
            before = self._sampler.look(self._main, before)

    def lines(self) -> list[TimedLine]:
        """The lines that took most of the time."""
        return timed_lines(dict(self._sampler.times))
