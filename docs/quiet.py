"""How much of this machine other programs take: looked at every few seconds while something is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil

from perfkit import machine

LIMIT = 0.05
"""Of all cores. What was measured while others took more is not kept."""
WINDOW_S = 5.0
PATIENCE = 24
"""Windows: this long a recording waits for a quiet machine before it is refused."""
QUIET_BEFORE = 2
"""Windows in succession that must be quiet before it starts."""
_SHORTEST_S = 1.0
"""CPU time is counted in hundredths of a second: a shorter window says nothing about 5%."""


class Refused(Exception):
    """Nothing is written, and why."""


class Used(NamedTuple):
    """CPU seconds of a process since it started."""

    own_s: float
    ended_s: float
    """Of its children that have ended: all that they ever used."""


Key = tuple[int, float]
"""Process id and start: ids are given again."""


@dataclass(frozen=True)
class Reading:
    """CPU seconds since boot, at one moment."""

    capacity_s: float
    """All cores, busy or idle."""
    busy_s: float
    """Used by any process."""
    steal_s: float
    """Given to other guests by the hypervisor."""
    own: Mapping[Key, Used]
    """This process and all its descendants."""
    others: Mapping[Key, tuple[str, float]]
    """Name and CPU seconds of every other process that can be seen."""


@dataclass(frozen=True)
class Look:
    """What other programs took during a window."""

    share: float
    """Of all cores, other guests of the host included."""
    who: str = ""
    """The busiest of them."""

    @property
    def quiet(self) -> bool:
        """Whether what was measured meanwhile can be kept."""
        return self.share <= LIMIT

    def describe(self) -> str:
        """The share that others took, and who."""
        return f"{self.share:.0%} of the cores ({self.who})"


def read() -> Reading:
    """The machine, now."""
    times = machine.cpu_times()
    own: dict[Key, Used] = {}
    others: dict[Key, tuple[str, float]] = {}
    ours = {process.pid for process in machine.process_tree()}
    attributes = ["pid", "create_time", "cpu_times", "cmdline", "name"]
    for process in psutil.process_iter(attributes):
        about = process.info
        if not (used := about["cpu_times"]):
            continue
        key = about["pid"], about["create_time"]
        if about["pid"] in ours:
            own[key] = Used(sum(used[:2]), sum(used[2:4]))
        else:
            name = " ".join(about["cmdline"] or [about["name"] or "?"])[:60]
            others[key] = name, sum(used[:2])
    return Reading(times.capacity_s, times.outside_s, times.steal_s or 0.0, own, others)


def taken(before: Reading, now: Reading) -> Look:
    """What others took between two readings.

    The total is the system's, so that programs that cannot be seen from here (of another container) count;
    what our own processes used is subtracted.
    """
    capacity = now.capacity_s - before.capacity_s
    outside = now.busy_s - before.busy_s - _own_s(before, now) + now.steal_s - before.steal_s
    return Look(min(1.0, max(0.0, outside / capacity)), _busiest(before, now, capacity))


def _own_s(before: Reading, now: Reading) -> float:
    """CPU seconds that our processes used between two readings.

    A process that has ended meanwhile is among its parent's `ended_s`, with what it had used before, too. One
    that nobody waited for is there not at all, and what it used before must not be subtracted from the rest.
    """
    seconds = ended = 0.0
    for key, used in now.own.items():
        earlier = before.own.get(key, Used(0.0, 0.0))
        seconds += used.own_s - earlier.own_s
        ended += used.ended_s - earlier.ended_s
    gone = sum(sum(used) for key, used in before.own.items() if key not in now.own)
    return seconds + max(0.0, ended - gone)


def _busiest(before: Reading, now: Reading, capacity_s: float) -> str:
    cores = psutil.cpu_count() or 1
    used = [
        (seconds - before.others.get(key, ("", 0.0))[1], f"{name} (process {key[0]})")
        for key, (name, seconds) in now.others.items()
    ]
    seconds, name = max(used, default=(0.0, ""))
    if seconds / capacity_s < LIMIT / 2:
        return "a program that cannot be seen from here, or many small ones"
    return f"{name}: {seconds / capacity_s * cores:.2f} of {cores} cores"


@dataclass
class Machine:
    """This machine, as a recording sees it. Tests pretend another one."""

    _last: Reading | None = field(default=None, init=False)

    def start(self) -> None:
        """The next look is at what happens from now on."""
        self._last = read()

    def look(self, ended: threading.Event) -> Look | None:
        """What others take during the next seconds, or until the event is set; None where it is not known."""
        assert self._last, "start() comes first"
        ended.wait(WINDOW_S)
        now, before = read(), self._last
        if now.capacity_s - before.capacity_s < _SHORTEST_S * (psutil.cpu_count() or 1):
            return None
        self._last = now
        # What a killed process used since the last reading is lost, so nothing is known of such a window.
        return taken(before, now) if set(before.own) <= set(now.own) else None

    def facts(self) -> dict[str, Any]:
        """Hardware, software, and perfkit's commit."""
        return machine.facts()

    def conditions(self) -> dict[str, Any]:
        """Load, steal, clocks and temperatures, now."""
        return machine.read_conditions()


def wait_until_quiet(machine: Machine, say: Callable[[str], None]) -> None:
    """Returns once the machine is quiet.

    Raises:
        Refused: it does not become quiet.
    """
    machine.start()
    quiet, worst, never = 0, Look(0.0), threading.Event()
    for _ in range(PATIENCE):
        look = machine.look(never)
        if look is None or look.quiet:
            quiet += look is not None
            if quiet == QUIET_BEFORE:
                return
            continue
        if quiet or not worst.who:
            say(f"waiting: other programs take {look.describe()}")
        quiet, worst = 0, max(worst, look, key=lambda one: one.share)
    raise Refused(f"the machine is not quiet: other programs take {worst.describe()}. Stop them, then repeat")
