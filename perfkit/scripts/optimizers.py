"""Optimizers: their steps, nested or several to a step, and the toggles that act on them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from perfkit.scripts.steps import clock

if TYPE_CHECKING:
    from perfkit.scripts.script import Script


class Optimizers:
    """All optimizers of a script that have made a step."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.found: list[Any] = []
        self.last: Any = None
        """The one that made the last step."""
        self.sets_to_none: bool | None = None
        """The argument of the last `zero_grad`; None if it was never called."""
        self._inside = 0
        self._closure_s = 0.0

    def run(self, step: Any, args: Any, kwargs: Any) -> Any:
        """One step of one optimizer."""
        optimizer = args[0]
        if not any(optimizer is known for known in self.found):
            self.found.append(optimizer)
            self._set_implementation(optimizer)
        if not self._inside:  # an optimizer inside another one is handed the closure that is timed already
            self._closure_s = 0.0
            if len(args) > 1:
                args = (optimizer, self._timed(args[1]), *args[2:])
            elif "closure" in kwargs:
                kwargs = {**kwargs, "closure": self._timed(kwargs["closure"])}
        self._inside, self.last, start = self._inside + 1, optimizer, clock()
        try:
            result = step(*args, **kwargs)
        finally:
            self._inside -= 1
            if not self._inside:
                self.script.steps.now.updated += clock() - start - self._closure_s
        if not self._inside:  # an optimizer inside another one makes no step of its own
            if self.script.gradients.inside:  # one for each parameter, inside backward: that pass is the step
                self.script.gradients.step_inside = True
            else:
                self.script.models.leave_autocast()
                self.script.steps.optimizer_stepped(optimizer)
        return result

    def _timed(self, closure: Any) -> Any:
        """A closure, whose forward and backward pass are not the optimizer's own work."""
        if not callable(closure):
            return closure

        def timed() -> Any:
            start = clock()
            try:
                return closure()
            finally:
                self._closure_s += clock() - start

        return timed

    def _set_implementation(self, optimizer: Any) -> None:
        kind = self.script.toggles.get("optimizer_impl", "default")
        if kind == "default":
            return
        needed = "foreach" if kind == "loop" else kind
        name, refuse = type(optimizer).__name__, self.script.refuse
        if any(needed not in group for group in optimizer.param_groups):
            refuse("optimizer_impl", f"{name} has no {kind} implementation")
        elif kind == "fused" and optimizer.state:
            refuse("optimizer_impl", "the optimizer was resumed with a state of another implementation")
        else:
            for group in [*optimizer.param_groups, optimizer.defaults]:
                group["foreach"] = kind == "foreach"
                if "fused" in group:
                    group["fused"] = kind == "fused"
            if kind == "fused":
                optimizer._step_supports_amp_scaling = True


def patch(optimizers: Optimizers) -> None:
    """From now on every optimizer of this process is seen.

    Not by torch's global hooks: they are called inside the range that the profiler has for a step, which a
    step that ends there would cut in two.
    """
    script = optimizers.script
    hooked, make, zero = Optimizer.profile_hook_step, Optimizer.__init__, Optimizer.zero_grad
    module_zero = nn.Module.zero_grad

    def profile_hook_step(function: Any) -> Any:
        inner = hooked(function)

        @functools.wraps(inner)
        def step(*args: Any, **kwargs: Any) -> Any:
            return optimizers.run(inner, args, kwargs)

        return step

    @functools.wraps(make)
    def made(self: Any, params: Any, defaults: Any) -> None:
        script.sites.note("optimizer", type(self).__name__)
        make(self, params, defaults)

    def to_none(given: bool) -> bool:
        optimizers.sets_to_none = bool(script.toggles.get("zero_grad_set_to_none", given))
        return optimizers.sets_to_none

    @functools.wraps(zero)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        script.sites.note("zero_grad", type(self).__name__)
        zero(self, to_none(set_to_none))

    @functools.wraps(module_zero)
    def zero_module(self: Any, set_to_none: bool = True) -> None:
        script.sites.note("zero_grad", type(self).__name__)
        module_zero(self, to_none(set_to_none))

    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[assignment]
    Optimizer.__init__, Optimizer.zero_grad = made, zero_grad  # type: ignore[method-assign]
    nn.Module.zero_grad = zero_module  # type: ignore[method-assign]
