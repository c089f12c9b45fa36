"""Backward passes and optimizers: losses, steps, gradient scalers, and the switches that act on them."""

import functools
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from perfkit.scripts.loaders import Loaders
from perfkit.scripts.models import Models
from perfkit.scripts.script import Script, clock

_MOST_COMPARISONS = 20
"""Backward passes after which weights that have not been seen to change are no longer compared."""


class Gradients:
    """Backward passes: what each starts from, and whether it is a step by itself."""

    def __init__(self, script: Script, loaders: Loaders, models: Models) -> None:
        self._script, self._loaders, self._models = script, loaders, models
        self.count = 0
        self.losses: list[torch.Tensor] = []
        """The mean of what each of the first backward passes started from, before any gradient scaling."""
        self.unscaled: torch.Tensor | None = None
        """The loss that a gradient scaler has just scaled."""
        self._weights: float | None = None
        self._each_is_step = False

    def run(self, plain: Any, roots: Any, args: Any, kwargs: Any) -> Any:
        """One backward pass."""
        script, steps = self._script, self._script.steps
        steps.begin()
        self._models.backward_begins()
        self._loaders.backward_begins()
        script.sites.note("backward")
        self._keep_loss(roots)
        steps.in_backward += 1
        try:
            if script.profiling:
                with torch.profiler.record_function("backward"):
                    return plain(roots, *args, **kwargs)
            return plain(roots, *args, **kwargs)
        finally:
            steps.in_backward -= 1
            self.count += 1
            if not steps.in_backward:
                self._look_for_changes()

    def _keep_loss(self, roots: Any) -> None:
        root, self.unscaled = roots if self.unscaled is None else self.unscaled, None
        if isinstance(root, list | tuple) and len(root) == 1:
            root = root[0]
        if len(self.losses) < self._script.settings["losses"] and isinstance(root, torch.Tensor):
            self.losses.append(root.detach().float().mean())

    def _look_for_changes(self) -> None:
        """Without an optimizer: weights that change between backward passes, updated by the script."""
        script = self._script
        is_unknown = not script.steps.optimizers and not self._each_is_step
        if is_unknown and self._models.called and self.count <= _MOST_COMPARISONS:
            weights = sum(float(p.detach().double().sum()) for p in self._models.called[0].parameters())
            if self._weights not in (None, weights):
                self._each_is_step = True
                script.note("no optimizer: the script changes its weights itself; a step is a backward pass")
            self._weights = weights
        if self._each_is_step:
            script.step_is = "a backward pass"
            script.steps.backward_is_step()


class Optimizers:
    """The optimizers of a script that have made a step."""

    def __init__(self, script: Script, models: Models) -> None:
        self._script, self._models = script, models
        self.stepped: list[Any] = []
        self.last: Any = None
        """The optimizer that made the last step."""
        self.sets_to_none: bool | None = None
        """The argument of the last `zero_grad`; None if it was never called."""
        self.skipped = 0
        """Steps that a gradient scaler left out because of an overflow."""
        self._depth = 0
        self._closure_s = 0.0

    def run(self, step: Any, args: Any, kwargs: Any) -> Any:
        """One step of one optimizer."""
        optimizer, steps = args[0], self._script.steps
        self.know(optimizer)
        if not self._depth:  # an optimizer inside another one is handed the closure that is timed already
            self._closure_s = 0.0
            if len(args) > 1:
                args = (optimizer, self._timed(args[1]), *args[2:])
            elif "closure" in kwargs:
                kwargs = {**kwargs, "closure": self._timed(kwargs["closure"])}
        self._depth += 1
        self.last, start = optimizer, clock()
        try:
            result = step(*args, **kwargs)
        finally:
            self._depth -= 1
            if not self._depth:
                steps.now.updated += clock() - start - self._closure_s
        if not self._depth:  # an optimizer inside another one makes no step of its own
            if steps.in_backward:  # one for each parameter
                self._script.step_is = "a backward pass"
            else:
                self._models.leave_autocast()
            steps.optimizer_stepped(optimizer)
        return result

    def know(self, optimizer: Any) -> None:
        """Keeps an optimizer that makes a step, and sets its switch; a scaler may skip its first steps."""
        if not any(optimizer is known for known in self.stepped):
            self.stepped.append(optimizer)
            self._set_implementation(optimizer)

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
        kind = self._script.toggles.get("optimizer_impl", "default")
        if kind == "default":
            return
        if reason := self._why_not(optimizer, kind):
            self._script.refuse("optimizer_impl", reason)
            return
        for group in [*optimizer.param_groups, optimizer.defaults]:
            group["foreach"] = kind == "foreach"
            if "fused" in group:
                group["fused"] = kind == "fused"
        if kind == "fused":
            optimizer._step_supports_amp_scaling = True

    @staticmethod
    def _why_not(optimizer: Any, kind: str) -> str:
        needed = "foreach" if kind == "loop" else kind
        if any(needed not in group for group in optimizer.param_groups):
            return f"{type(optimizer).__name__} has no {kind} implementation"
        if kind == "fused" and optimizer.state:
            return "the optimizer was resumed with a state of another implementation"
        return ""

    def why_not(self) -> dict[str, str]:
        """The optimizer's switches that cannot be set from outside, and why."""
        if not self.stepped:
            return dict.fromkeys(
                ("optimizer_impl", "zero_grad_set_to_none"), "the script has no optimizer of torch"
            )
        if any("foreach" not in group for group in self.stepped[-1].param_groups):
            name = type(self.stepped[-1]).__name__
            return {"optimizer_impl": f"{name} has no foreach or fused implementation"}
        return {}


def patch(gradients: Gradients, optimizers: Optimizers, script: Script) -> None:
    """From now on every backward pass and every optimizer of this process is seen."""
    plain = torch.autograd.backward

    @functools.wraps(plain)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return gradients.run(plain, tensors, args, kwargs)

    torch.autograd.backward = backward
    _patch_scaler(gradients, optimizers, script)
    _patch_optimizers(optimizers, script)


def _patch_scaler(gradients: Gradients, optimizers: Optimizers, script: Script) -> None:
    scaler = torch.amp.GradScaler
    plain_make, plain_scale, plain_step = scaler.__init__, scaler.scale, scaler.step

    @functools.wraps(plain_make)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        if script.toggles.get("amp") == "fp16":
            kwargs["enabled"] = True
        plain_make(self, *args, **kwargs)
        script.has_scaler |= self.is_enabled()

    @functools.wraps(plain_scale)
    def scale(self: Any, outputs: Any) -> Any:
        gradients.unscaled = outputs if isinstance(outputs, torch.Tensor) else None
        return plain_scale(self, outputs)

    @functools.wraps(plain_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        optimizers.last = None
        result = plain_step(self, optimizer, *args, **kwargs)
        if self.is_enabled() and optimizers.last is None:
            optimizers.skipped += 1
            optimizers.know(optimizer)
            script.steps.optimizer_stepped(optimizer)
        return result

    scaler.__init__, scaler.scale, scaler.step = make, scale, step  # type: ignore[method-assign]


def _patch_optimizers(optimizers: Optimizers, script: Script) -> None:
    """Not by torch's global hooks: they would cut the profiler's range of a step in two."""
    plain_hook, plain_make = Optimizer.profile_hook_step, Optimizer.__init__
    plain_zero, plain_module_zero = Optimizer.zero_grad, nn.Module.zero_grad

    def profile_hook_step(function: Any) -> Any:
        inner = plain_hook(function)

        @functools.wraps(inner)
        def step(*args: Any, **kwargs: Any) -> Any:
            return optimizers.run(inner, args, kwargs)

        return step

    @functools.wraps(plain_make)
    def make(self: Any, params: Any, defaults: Any) -> None:
        script.sites.note("optimizer")
        plain_make(self, params, defaults)

    def to_none(set_to_none: bool) -> bool:
        optimizers.sets_to_none = bool(script.toggles.get("zero_grad_set_to_none", set_to_none))
        return optimizers.sets_to_none

    @functools.wraps(plain_zero)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        script.sites.note("zero_grad")
        plain_zero(self, to_none(set_to_none))

    @functools.wraps(plain_module_zero)
    def zero_module(self: Any, set_to_none: bool = True) -> None:
        script.sites.note("zero_grad")
        plain_module_zero(self, to_none(set_to_none))

    Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[assignment,method-assign]
    Optimizer.__init__, Optimizer.zero_grad = make, zero_grad  # type: ignore[method-assign]
    nn.Module.zero_grad = zero_module  # type: ignore[method-assign]
