"""Steps of a rank that are only timed: to note all of a step takes 0.2 ms, as that code leaves the caches.

Everything is noted in the first steps, and then in a few of each `LIMIT.every`: by their numbers, so that all
ranks note the same ones. Where anything but a usual pass comes, the rest of its step is noted, too.
"""

import functools
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from perfkit.additions.ranks.messages import LIMIT
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.script import Callback, Script
from perfkit.additions.shared.clock import clock

ONLY_TIMED = "only timed"  # a mark of such steps, whose inputs are not known
TIMED = ("waiting", "forward", "backward", "optimizer", "exchange")  # parts of a step


class BriefSteps(Callback):
    """Times the passes of a script in place of its other hooks, which are given what is not usual."""

    def __init__(self, script: Script, noted: deque[Any]) -> None:
        self.is_on = False
        self.part = ""  # that is timed at this moment
        self.spent = dict.fromkeys(TIMED, 0.0)  # seconds in the step under way
        self._script = script
        self._noted = noted  # to which a step comes: its number, its seconds with `spent`, and `_usual`
        self._usual: Any = None  # what is told of the exchange
        self._until = 0  # the step after which some are noted again

    def listen(self) -> None:
        """Comes before the other hooks, which have been set by now."""
        for name in ("__next__", "_next_index"):
            self._time(f"{hooks.ITERATOR}.{name}", "waiting", lambda iterator: iterator._perfkit.trains)
        self._time("torch.autograd.backward", "backward", None)
        hooks.wrap("torch.optim.Optimizer.profile_hook_step", self._time_optimizer)
        hooks.wrap("torch.amp.GradScaler.step", self._step_scaled)

    def _time(self, place: str, part: str, is_usual: Callable[..., bool] | None) -> None:
        hooks.replace(place, lambda full: self.timed(part, inspect.unwrap(full), full, is_usual))

    def _time_optimizer(self, hook: Callable[..., Any], *args: Any) -> Any:
        full = hook(*args)
        return self.timed("optimizer", full.__wrapped__, full, self._is_usual_step)

    def _is_usual_step(self, optimizer: Any, *more: Any, **named: Any) -> bool:
        """Whether it is one without a function that computes, and not within a backward pass."""
        return optimizer in self._script.optimizers and not (more or named or self.part)

    def _step_scaled(self, full: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.end()  # only what is noted shows whether the scaler leaves a step out
        return full(*args, **kwargs)

    def on_model(self, model: Any) -> None:
        full = model.__dict__[hooks.CALL]
        trains = functools.partial(_trains, model)
        model.__dict__[hooks.CALL] = self.timed("forward", full.__wrapped__, full, trains)

    def on_mode(self, trains: bool) -> None:
        if not trains:
            self.end()

    def timed(self, part: str, plain: Any, full: Any, is_usual: Callable[..., bool] | None) -> Any:
        """What times a function as a part of a step; all in one call, as each takes microseconds."""

        @functools.wraps(full)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return full(*args, **kwargs)
            if self.part and part != "optimizer":  # within another one, as where a pass is computed again
                return plain(*args, **kwargs)
            if is_usual and not is_usual(*args, **kwargs):
                self.end()
                return full(*args, **kwargs)
            self.part = part
            start = clock()
            try:
                return plain(*args, **kwargs)
            finally:
                self.spent[part] += clock() - start
                self.part = ""
                if part == "optimizer" and args[0] is self._script.optimizers[-1]:
                    self._end_step()

        return call

    def _end_step(self) -> None:
        steps = self._script.steps
        now = clock()
        steps.count += 1
        self._noted.append((steps.count, (now - steps.since, self.spent), self._usual))
        self.spent = dict.fromkeys(TIMED, 0.0)
        steps.since = now
        if steps.count == self._until:
            self.end()

    def begin(self, usual: Any) -> None:
        """A step has ended that was noted: the next ones are only timed, once enough are noted."""
        count = self._script.steps.count
        self._usual = usual
        self._until = (count // LIMIT.every + 1) * LIMIT.every
        self.is_on = count >= LIMIT.first and count % LIMIT.every >= LIMIT.noted
        self.spent = dict.fromkeys(TIMED, 0.0)

    def end(self) -> None:
        """The rest of the step under way is noted."""
        if self.is_on:
            self.is_on = False
            now = self._script.steps.now
            now.spent.update(self.spent)
            now.updated = self.spent["optimizer"]
            now.marks.add(ONLY_TIMED)


def _trains(model: Any, *_: Any, **__: Any) -> bool:
    return bool(model.training) and torch.is_grad_enabled()
