"""A rank whose watching its script switches on and off, for `benchmarks.ranks`; in the rank's own process.

While it is on, the time of its hooks is counted: that around functions of torch, without these functions.
"""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks import messages, rank
from perfkit.additions.ranks.ddp import NEVER
from perfkit.additions.ranks.recorder import RankRecorder
from perfkit.additions.ranks.reporter import RankReporter
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.training import Models
from perfkit.additions.shared.clock import clock, cpu_clock
from perfkit.additions.shared.lines import Sampler

_called, _look, _send = Models._called, Sampler.look, RankReporter.send


@dataclass
class Tally:
    """Calls of a hook, and the seconds in it, without those of what it is around."""

    calls: int = 0
    seconds: float = 0.0


class Switched:
    """Notes nothing, looks at no stack and says nothing while it is off."""

    is_on = True
    recorder: RankRecorder  # of this process
    hooks: ClassVar = defaultdict[str, Tally](Tally)  # by what each is around
    inside_s = 0.0  # and in what the hook under way is around
    thread_s = 0.0  # of CPU time in the thread that answers, when it was switched on


def watch(settings: dict[str, Any], files: Outputs) -> None:
    """Watches this process, as a launch has it watched, while it is switched on."""
    hooks.wrapped = _wrapped
    Models._called = _called_if_on
    Sampler.look = _look_if_on
    RankReporter.send = _send_if_on
    Switched.recorder = rank.listen(settings, files)


def switch(is_on: bool) -> None:
    """Whether the rank of this process is watched from now on."""
    Switched.is_on = is_on
    Switched.hooks.clear()
    Switched.thread_s = _thread_s()
    if not is_on:
        Switched.recorder.exchange.have_timed(NEVER)  # else torch would go on timing each pass


def by_hook() -> dict[str, tuple[int, float]]:
    """Calls and seconds of each hook since it was switched."""
    return {name: (tally.calls, tally.seconds) for name, tally in Switched.hooks.items()}


def thread_spent_s() -> float:
    """CPU time of the thread that answers, since it was switched."""
    return _thread_s() - Switched.thread_s


def _thread_s() -> float:
    idents = [thread.ident for thread in threading.enumerate() if thread.name == "perfkit"]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident)


def _wrapped(plain: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """As `hooks.wrapped`, while the rank is watched."""
    timed = functools.wraps(plain)(functools.partial(_inside, plain))
    name = f"{plain.__qualname__} ({getattr(function, '__qualname__', 'collectives')})"

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if Switched.is_on:
            return _around(name, function, timed, *args, **kwargs)
        return plain(*args, **kwargs)

    return call


def _around(name: str, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a hook, and counts its time without that of what it is around."""
    outer_s = Switched.inside_s
    Switched.inside_s = 0.0
    start = cpu_clock()
    try:
        return hook(*args, **kwargs)
    finally:
        tally = Switched.hooks[name]
        tally.calls += 1
        tally.seconds += cpu_clock() - start - Switched.inside_s
        Switched.inside_s = outer_s


def _inside(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls what a hook is around; hooks within it count for themselves."""
    start = cpu_clock()
    try:
        return plain(*args, **kwargs)
    finally:
        Switched.inside_s += cpu_clock() - start


def _called_if_on(models: Models, model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    if Switched.is_on:
        inside = functools.partial(_inside, call)
        return _around("Module.__call__ (Models)", _called, models, model, inside, *args, **kwargs)
    return call(*args, **kwargs)


def _look_if_on(sampler: Sampler, thread_id: int, before: float) -> float:
    return _look(sampler, thread_id, before) if Switched.is_on else clock()


def _send_if_on(reporter: RankReporter, message: messages.Message) -> None:
    if Switched.is_on:
        _send(reporter, message)
