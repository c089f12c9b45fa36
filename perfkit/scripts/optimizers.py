"""Backward passes and optimizers: losses, steps, gradient scalers, and the switches that act on them."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from perfkit.scripts.loaders import Loaders
from perfkit.scripts.models import Models
from perfkit.scripts.script import Script, around, clock

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
        self._is_step = False

    def run(self, plain: Callable[..., Any], roots: Any, args: Any, kwargs: Any) -> Any:
        """One backward pass."""
        script, steps = self._script, self._script.steps
        steps.begin()
        self._models.backward_begins()
        self._loaders.backward_begins()
        script.sites.note("backward")
        self._keep_loss(roots)
        steps.in_backward += 1
        try:
            with script.phase("backward"):
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
        script, models = self._script, self._models.called
        if not self._is_step:
            if script.steps.optimizers or not models or self.count > _MOST_COMPARISONS:
                return
            weights = sum(float(p.detach().double().sum()) for p in models[0].parameters())
            if self._weights is None:
                script.steps.first_may_end()
            self._is_step, self._weights = self._weights not in (None, weights), weights
        if self._is_step:
            script.note("no optimizer: the script changes its weights itself; a step is a backward pass")
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

    def run(self, step: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        """One step of one optimizer; an optimizer inside another one makes no step of its own."""
        steps, is_outer = self._script.steps, not self._depth
        self.know(optimizer)
        if is_outer:  # an inner optimizer is handed the closure that is timed already
            self._closure_s = 0.0
            args = tuple(map(self._timed, args))
            kwargs = {name: self._timed(value) for name, value in kwargs.items()}
        self._depth += 1
        self.last, start = optimizer, clock()
        try:
            result = step(optimizer, *args, **kwargs)
        finally:
            self._depth -= 1
            if is_outer:
                steps.now.updated += clock() - start - self._closure_s
        if is_outer:
            if steps.in_backward:  # one for each parameter
                self._script.step_is = "a backward pass"
            else:
                self._models.leave_autocast()
            steps.optimizer_stepped(optimizer)
        return result

    def know(self, optimizer: Any) -> None:
        """Keeps an optimizer that makes a step, and sets its switch; a scaler may skip its first steps."""
        kind = self._script.toggles.get("optimizer_impl", "default")
        if any(optimizer is known for known in self.stepped):
            return
        self.stepped.append(optimizer)
        if kind == "default":
            return
        if reason := _why_not(optimizer, kind):
            self._script.refuse("optimizer_impl", reason)
            return
        for group in [*optimizer.param_groups, optimizer.defaults]:
            group["foreach"] = kind == "foreach"
            if "fused" in group:
                group["fused"] = kind == "fused"
        if kind == "fused":
            optimizer._step_supports_amp_scaling = True

    def _timed(self, value: Any) -> Any:
        """A closure, whose forward and backward pass are not the optimizer's own work."""
        if not callable(value):
            return value

        def closure() -> Any:
            start = clock()
            try:
                return value()
            finally:
                self._closure_s += clock() - start

        return closure

    def why_not(self) -> dict[str, str]:
        """The optimizer's switches that cannot be set from outside, and why."""
        if not self.stepped:
            switches = ("optimizer_impl", "zero_grad_set_to_none")
            return dict.fromkeys(switches, "the script has no optimizer of torch")
        reason = _why_not(self.stepped[-1], "foreach")
        return {"optimizer_impl": reason} if reason else {}


def _why_not(optimizer: Any, kind: str) -> str:
    """Why an optimizer cannot have an implementation."""
    needed = "foreach" if kind == "loop" else kind
    if any(needed not in group for group in optimizer.param_groups):
        return f"{type(optimizer).__name__} has no {kind} implementation"
    if kind == "fused" and optimizer.state:
        return "the optimizer was resumed with a state of another implementation"
    return ""


def patch(gradients: Gradients, optimizers: Optimizers, script: Script) -> None:
    """From now on every backward pass and every optimizer of this process is seen."""

    @around(torch.autograd, "backward")
    def backward(plain: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return gradients.run(plain, tensors, args, kwargs)

    _patch_scaler(gradients, optimizers, script)

    @around(Optimizer, "__init__")
    def make(plain: Any, *args: Any, **kwargs: Any) -> None:
        script.sites.note("optimizer")
        plain(*args, **kwargs)

    # Not by torch's global hooks: they would cut the profiler's range of a step in two.
    plain_hook = Optimizer.profile_hook_step

    def profile_hook_step(function: Any) -> Any:
        inner = plain_hook(function)

        @functools.wraps(inner)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return optimizers.run(inner, optimizer, args, kwargs)

        return step

    Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[assignment,method-assign]

    @around(Optimizer, "zero_grad")
    @around(nn.Module, "zero_grad")
    def zero_grad(plain: Any, holder: Any, set_to_none: bool = True) -> None:
        script.sites.note("zero_grad")
        optimizers.sets_to_none = bool(script.toggles.get("zero_grad_set_to_none", set_to_none))
        plain(holder, optimizers.sets_to_none)


def _patch_scaler(gradients: Gradients, optimizers: Optimizers, script: Script) -> None:
    scaler = torch.amp.GradScaler

    @around(scaler, "__init__")
    def make(plain: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        if script.toggles.get("amp") == "fp16":
            kwargs["enabled"] = True
        plain(self, *args, **kwargs)
        script.has_scaler |= self.is_enabled()

    @around(scaler, "scale")
    def scale(plain: Any, self: Any, outputs: Any) -> Any:
        gradients.unscaled = outputs if isinstance(outputs, torch.Tensor) else None
        return plain(self, outputs)

    @around(scaler, "step")
    def step(plain: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        optimizers.last = None
        result = plain(self, optimizer, *args, **kwargs)
        if self.is_enabled() and optimizers.last is None:
            optimizers.skipped += 1
            optimizers.know(optimizer)
            script.steps.optimizer_stepped(optimizer)
        return result
