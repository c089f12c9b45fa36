"""A rank whose watching its script switches on and off, for `benchmarks.ranks`; in the rank's own process."""

import functools
from collections.abc import Callable
from typing import Any

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks import messages, rank
from perfkit.additions.ranks.ddp import NEVER
from perfkit.additions.ranks.rank import RankRecorder, RankReporter
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.training import Models
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.lines import Sampler

_called, _look, _send = Models._called, Sampler.look, RankReporter.send


class Switched:
    """Notes nothing, looks at no stack and says nothing while it is off."""

    is_on = True
    recorder: RankRecorder  # of this process


def watch(settings: dict[str, Any], files: Outputs) -> None:
    """Watches this process, as a launch has it watched, while it is switched on."""
    hooks.wrapped = _wrapped
    Models._called = _called_if_on
    Sampler.look = _look_if_on
    RankReporter.send = _send_if_on
    Switched.recorder = rank.watch(settings, files)


def switch(is_on: bool) -> None:
    """Whether the rank of this process is watched from now on."""
    Switched.is_on = is_on
    if not is_on:
        Switched.recorder.exchange.have_timed(NEVER)  # else torch would go on timing each pass


def _wrapped(plain: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """As `hooks.wrapped`, while the rank is watched."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if Switched.is_on:
            return function(plain, *args, **kwargs)
        return plain(*args, **kwargs)

    return call


def _called_if_on(models: Models, model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    if Switched.is_on:
        return _called(models, model, call, *args, **kwargs)
    return call(*args, **kwargs)


def _look_if_on(sampler: Sampler, thread_id: int, before: float) -> float:
    return _look(sampler, thread_id, before) if Switched.is_on else clock()


def _send_if_on(reporter: RankReporter, message: messages.Message) -> None:
    if Switched.is_on:
        _send(reporter, message)
