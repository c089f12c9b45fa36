"""Threads of the script's own that compute while it trains: they share the interpreter, and the cores."""

import keyword
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil

from perfkit.additions.scripts.messages import BusyThread, limits
from perfkit.additions.scripts.script import Script
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.lines import text_at
from perfkit.process.failures import is_users

LIMIT = limits("threads")
_WAITS = re.compile(r"(while|if)\b.*:|pass\b|continue\b")
_CALLS = re.compile(r"(\w+) ?\(")


class Threads:
    """The threads of a script from now on, but for the one that trains and those of torch and perfkit."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._began = clock()
        self._used = _cpu_s()
        # Lines, and the functions of libraries that they called, by the thread's number in the system.
        self._seen = dict[int, Counter[tuple[str, str]]]()

    def look(self) -> None:
        """Notes where each of them is."""
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame: Any = frames.get(thread.ident or 0)
            if thread.ident == self._script.steps.trainer or thread.native_id is None:
                continue
            called = ""
            while frame and not is_users(frame.f_code.co_filename):
                called = frame.f_code.co_name
                frame = frame.f_back
            if frame:
                file = self._script.settings.place(os.path.realpath(frame.f_code.co_filename))
                place = f"{file}:{frame.f_lineno}"
                self._seen.setdefault(thread.native_id, Counter())[place, called] += 1

    def busy(self) -> Iterator[BusyThread]:
        """Those that have used much of a core."""
        passed_s = clock() - self._began
        used = _cpu_s()
        for number, seen in self._seen.items():
            core = (used.get(number, 0.0) - self._used.get(number, 0.0)) / passed_s
            if core >= LIMIT.much_of_core:
                yield _busy(seen, min(1.0, core))


def _busy(seen: Counter[tuple[str, str]], core: float) -> BusyThread:
    looks = Counter[str]()  # by the line
    asking = 0
    for (place, called), count in seen.items():
        looks[place] += count
        if _asks(text_at(place), called):
            asking += count
    return BusyThread(max(looks, key=looks.__getitem__), core, asking >= LIMIT.mostly * looks.total())


def _asks(text: str, called: str) -> bool:
    """Whether a line only asks whether something has come: it has no call that may compute."""
    calls = {called, *_CALLS.findall(text)} - {"", *keyword.kwlist}
    return bool(_WAITS.match(text)) and calls <= {*LIMIT.questions}


def _cpu_s() -> dict[int, float]:
    return {each.id: each.user_time + each.system_time for each in psutil.Process().threads()}
