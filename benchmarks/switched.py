"""A rank whose watching its script switches on and off, for `benchmarks.ranks`; in the rank's own process.

While it is on, the time of its hooks is counted: that around functions of torch, without these functions.
Counting takes time itself, as much as a short hook: its code has left the caches by then, too. So the hooks
can also be empty, when only the counting is left.
"""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar
from unittest import mock

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks import messages, rank
from perfkit.additions.ranks.brief import RankModels
from perfkit.additions.ranks.ddp import NEVER
from perfkit.additions.ranks.recorder import RankRecorder
from perfkit.additions.ranks.reporter import RankReporter
from perfkit.additions.scripts import hooks
from perfkit.additions.shared.clock import clock, cpu_clock
from perfkit.additions.shared.sampler import Sampler
from perfkit.additions.shared.settings import Settings

_wrap, _called, _look, _send = hooks.wrapped, RankModels._called, Sampler.look, RankReporter.send


@dataclass
class Tally:
    """Calls of a hook, and the seconds in it, without those of what it is around."""

    calls: int = 0
    seconds: float = 0.0


class Watching(Enum):
    """Whether the rank is watched, and if not, whether empty hooks are counted."""

    ON = "on"
    OFF = "off"
    EMPTY = "empty"


class Switched:
    """Notes nothing, looks at no stack and says nothing unless it is on."""

    how = Watching.ON
    recorder: RankRecorder  # of this process
    hooks: ClassVar = defaultdict[str, Tally](Tally)  # by what each is around
    inside_s = 0.0  # and in what the hook under way is around
    thread_s = 0.0  # of CPU time in the thread that answers, when it was switched on


def watch(settings: Settings, files: Outputs) -> None:
    """Watches this process, as a launch has it watched, while it is switched on."""
    mock.patch.object(hooks, "wrapped", _wrapped).start()
    mock.patch.object(RankModels, "_called", _called_if_on).start()
    mock.patch.object(Sampler, "look", _look_if_on).start()
    mock.patch.object(RankReporter, "send", _send_if_on).start()
    Switched.recorder = rank.listen(settings, files)


def switch(how: Watching) -> None:
    """How the rank of this process is watched from now on."""
    Switched.how = how
    Switched.hooks.clear()
    Switched.thread_s = _thread_s()
    if how is not Watching.ON:
        for set_rate in Switched.recorder.exchange.rate_setters:  # else torch would go on timing each pass
            set_rate(NEVER)


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
    hooked = _wrap(timed, function)
    name = f"{plain.__qualname__} ({getattr(function, '__qualname__', 'collectives')})"

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if Switched.how is Watching.OFF:
            return plain(*args, **kwargs)
        return _around(name, hooked if Switched.how is Watching.ON else timed, *args, **kwargs)

    return call


def _around(name: str, hooked: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls what has a hook, and counts the time without that of what the hook is around."""
    outer_s = Switched.inside_s
    Switched.inside_s = 0.0
    start = cpu_clock()
    try:
        return hooked(*args, **kwargs)
    finally:
        took = cpu_clock() - start - Switched.inside_s
        Switched.inside_s = outer_s
        tally = Switched.hooks[name]
        tally.calls += 1
        tally.seconds += took


def _inside(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls what a hook is around; hooks within it count for themselves."""
    start = cpu_clock()
    try:
        return plain(*args, **kwargs)
    finally:
        Switched.inside_s += cpu_clock() - start


def _called_if_on(models: RankModels, model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    if Switched.how is Watching.OFF:
        return call(*args, **kwargs)
    inside = functools.partial(_inside, call)
    hooked = functools.partial(_called, models, model, inside)
    how = hooked if Switched.how is Watching.ON else inside
    return _around("Module.__call__ (Models)", how, *args, **kwargs)


def _look_if_on(sampler: Sampler, thread_id: int, before: float) -> float:
    return _look(sampler, thread_id, before) if Switched.how is Watching.ON else clock()


def _send_if_on(reporter: RankReporter, message: messages.Message) -> None:
    if Switched.how is Watching.ON:
        _send(reporter, message)
