"""Threads that the script started and that compute while it trains: they share the interpreter and cores."""

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
from perfkit.additions.shared.positions import line_of, text_at
from perfkit.process.failures import is_users

LIMIT = limits("threads")
_WAITS = re.compile(r"(while|if)\b.*:|pass\b|continue\b")
_CALLS = re.compile(r"(\w+) ?\(")


class Threads:
    """Threads of a script, except the one that trains and those of torch and perfkit."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._began = clock()
        self._cpu_s_before = _cpu_s()
        self._looks = dict[int, Counter[tuple[str, str]]]()  # lines and library functions, by native id

    def look(self) -> None:
        """Notes the line of each thread."""
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame: Any = frames.get(thread.ident or 0)
            if thread.ident == self._script.steps.trainer or thread.native_id is None:
                continue
            function = ""
            while frame and not is_users(frame.f_code.co_filename):
                function = frame.f_code.co_name
                frame = frame.f_back
            if frame:
                file = self._script.settings.place(os.path.realpath(frame.f_code.co_filename))
                place = f"{file}:{line_of(frame)}"
                self._looks.setdefault(thread.native_id, Counter())[place, function] += 1

    def busy(self) -> Iterator[BusyThread]:
        """The threads that have used much of a core."""
        elapsed_s = clock() - self._began
        cpu_s = _cpu_s()
        for thread_id, looks in self._looks.items():
            core = (cpu_s.get(thread_id, 0.0) - self._cpu_s_before.get(thread_id, 0.0)) / elapsed_s
            if core >= LIMIT.much_of_core:
                yield _busy(looks, min(1.0, core))


def _busy(looks: Counter[tuple[str, str]], core: float) -> BusyThread:
    by_place = Counter[str]()
    polling = 0
    for (place, function), count in looks.items():
        by_place[place] += count
        if _only_polls(text_at(place), function):
            polling += count
    return BusyThread(max(by_place, key=by_place.__getitem__), core, polling >= LIMIT.mostly * looks.total())


def _only_polls(text: str, function: str) -> bool:
    """Whether a line only polls: it waits in a loop or a condition, and calls nothing that may compute."""
    calls = {function, *_CALLS.findall(text)} - {"", *keyword.kwlist}
    return bool(_WAITS.match(text)) and calls <= {*LIMIT.questions}


def _cpu_s() -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}
