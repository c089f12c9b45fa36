"""Backward passes and optimizers: losses, steps, gradient scalers, and the switches that act on them."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._functorch import eager_transforms
from torch.optim import Optimizer

from perfkit.scripts.outputs import clock
from perfkit.scripts.script import Script, around, tensors

_LOSSES = 64
"""First backward passes whose losses are kept."""
_MOST_COMPARISONS = 20
"""Backward passes after which weights that have not been seen to change are no longer compared."""
_MOST_DERIVATIVES = 100
"""Gradients by `torch.func` of a single tensor, without a step: after so many the tensor holds weights."""


class Updates:
    """What changes the weights: backward passes, and the steps of optimizers."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.sets_to_none: bool | None = None
        """The argument of the last `zero_grad`; None if it was never called."""
        self._unscaled: torch.Tensor | None = None  # the loss that a gradient scaler has just scaled
        self._backward_ended_at = 0.0
        self._weights: float | None = None
        self._backward_is_step = False
        self._last: Any = None  # the optimizer that made the last step
        self._is_stepping = False
        self._is_functional = False  # inside a gradient by torch.func
        self._derivatives = self._functionals = 0  # gradients by torch.func, and those of them of weights
        self._is_made = False

    def patch(self) -> None:
        around(torch.autograd, "backward", self._backward)
        around(torch.autograd, "grad", self._grad)
        around(eager_transforms, "grad_and_value_impl", self._functional)
        around(torch.amp.GradScaler, "scale", self._scale)
        around(torch.amp.GradScaler, "step", self._step_scaled)
        around(Optimizer, "__init__", self._make)
        around(Optimizer, "zero_grad", self._zero_grad)
        around(nn.Module, "zero_grad", self._zero_grad)
        # Not by torch's global hooks: they would cut the profiler's range of a step in two.
        plain_hook = Optimizer.profile_hook_step

        def profile_hook_step(function: Any) -> Any:
            inner = plain_hook(function)

            @functools.wraps(inner)
            def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                return self._step(functools.partial(inner, optimizer, *args, **kwargs), optimizer)

            return step

        Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[assignment,method-assign]

    # ------------------------------------------------------------ backward passes

    def _backward(self, plain: Callable[..., Any], roots: Any, *args: Any, **kwargs: Any) -> Any:
        script, steps = self._script, self._script.steps
        if steps.in_backward:  # of a part that is computed again
            script.tell("graph", roots)
            return plain(roots, *args, **kwargs)
        script.tell("backward")
        script.tell("graph", roots)
        script.sites.note("backward")
        self._keep_loss(roots)
        steps.in_backward = True
        try:
            with script.phase("backward"):
                return plain(roots, *args, **kwargs)
        finally:
            steps.in_backward = False
            self._end_backward(p for model in script.models[:1] for p in model.parameters())

    def _end_backward(self, weights: Iterable[torch.Tensor]) -> None:
        self._script.backwards += 1
        self._backward_ended_at = clock()
        self._look_for_changes(weights)

    def _grad(self, plain: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients of parameters that no further gradient is taken of: a backward pass by another name."""
        inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
        of_parameters = any(isinstance(each, nn.Parameter) for each in inputs)
        if self._script.steps.in_backward or kwargs.get("create_graph") or not of_parameters:
            return plain(outputs, inputs, *args, **kwargs)
        return self._backward(plain, outputs, inputs, *args, **kwargs)

    def _functional(self, plain: Any, function: Any, argnums: Any, aux: bool, args: Any, kwargs: Any) -> Any:
        """A gradient by `torch.func`: a backward pass by another name, if it is one of weights.

        Weights come in a container; a single tensor may be what a derivative in a loss is taken by. Once
        there are other backward passes, this is a part of their step.
        """
        script = self._script
        is_part = self._is_functional or script.steps.in_backward or script.backwards > self._functionals
        if torch.compiler.is_compiling() or is_part:
            return plain(function, argnums, aux, args, kwargs)
        script.steps.begin()  # a step that ends here does not end within the function
        self._is_functional = True
        try:
            gradients, value = plain(function, argnums, aux, args, kwargs)
        finally:
            self._is_functional = False
        self._derivatives += 1
        given = [args[number] for number in ([argnums] if isinstance(argnums, int) else argnums)]
        are_weights = not all(map(torch.is_tensor, given)) or self._derivatives > _MOST_DERIVATIVES
        weights = list(tensors(given))
        if are_weights and all(each.is_leaf for each in weights):
            script.tell("backward")
            self._keep_loss(next(tensors(value)))
            self._functionals += 1
            self._end_backward(weights)
        return gradients, value

    def _scale(self, plain: Any, scaler: Any, outputs: Any) -> Any:
        self._unscaled = outputs if isinstance(outputs, torch.Tensor) else None
        return plain(scaler, outputs)

    def _keep_loss(self, roots: Any) -> None:
        root, self._unscaled = roots if self._unscaled is None else self._unscaled, None
        if isinstance(root, list | tuple) and len(root) == 1:
            root = root[0]
        losses = self._script.losses
        if len(losses) < _LOSSES and isinstance(root, torch.Tensor):
            losses.append(root.detach().float().mean())

    def _look_for_changes(self, compared: Iterable[torch.Tensor]) -> None:
        """Without an optimizer: weights that change between backward passes, updated by the script."""
        script = self._script
        if not self._backward_is_step:
            # One that is made will step; SAM moves the weights before its inner optimizer does.
            if self._is_made or script.backwards > _MOST_COMPARISONS:
                return
            weights = sum(float(p.detach().double().sum()) for p in compared)
            if self._weights is None:
                script.steps.first_may_end()
            self._backward_is_step, self._weights = self._weights not in (None, weights), weights
        if self._backward_is_step:
            script.note("no optimizer: the script changes its weights itself; a step is a backward pass")
            script.step_is = "a backward pass"
            script.steps.backward_is_step()

    # ------------------------------------------------------------ optimizers

    def _make(self, plain: Any, *args: Any, **kwargs: Any) -> None:
        self._script.sites.note("optimizer")
        self._is_made = True
        plain(*args, **kwargs)

    def _zero_grad(self, plain: Any, holder: Any, set_to_none: bool = True) -> None:
        self._script.sites.note("zero_grad")
        self.sets_to_none = bool(self._script.toggles.get("zero_grad_set_to_none", set_to_none))
        plain(holder, self.sets_to_none)

    def _step_scaled(self, plain: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._last = None
        result = plain(scaler, optimizer, *args, **kwargs)
        if scaler.is_enabled() and self._last is None:  # left out because of an overflow
            self._know(optimizer)
            self._script.steps.optimizer_stepped(optimizer)
        return result

    def _step(self, step: Callable[[], Any], optimizer: Any) -> Any:
        """One step of one optimizer; an optimizer inside another one makes no step of its own."""
        self._know(optimizer)
        self._last = optimizer
        if self._is_stepping:
            return step()
        script, steps, start = self._script, self._script.steps, clock()
        self._is_stepping = True
        try:
            result = step()
        finally:
            self._is_stepping = False
            # A closure's forward and backward pass are not the optimizer's own work.
            steps.now.updated += clock() - max(start, self._backward_ended_at)
        if steps.in_backward:  # one for each parameter
            script.step_is = "a backward pass"
        else:
            script.tell("update")
        steps.optimizer_stepped(optimizer)
        return result

    def _know(self, optimizer: Any) -> None:
        """Keeps an optimizer that makes a step, and sets its switch; a scaler may skip its first steps."""
        script = self._script
        if any(optimizer is known for known in script.optimizers):
            return
        script.optimizers.append(optimizer)
        kind = script.toggles.get("optimizer_impl", "default")
        if kind == "default":
            return
        if reason := _why_not(optimizer, kind):
            script.refuse("optimizer_impl", reason)
            return
        for group in [*optimizer.param_groups, optimizer.defaults]:
            group["foreach"] = kind == "foreach"
            if "fused" in group:
                group["fused"] = kind == "fused"
        if kind == "fused":
            optimizer._step_supports_amp_scaling = True

    def why_not(self) -> dict[str, str]:
        """The optimizer's switches that cannot be set from outside, and why."""
        if not self._script.optimizers:
            switches = ("optimizer_impl", "zero_grad_set_to_none")
            return dict.fromkeys(switches, "the script has no optimizer of torch")
        reason = _why_not(self._script.optimizers[-1], "foreach")
        return {"optimizer_impl": reason} if reason else {}


def _why_not(optimizer: Any, kind: str) -> str:
    """Why an optimizer cannot have an implementation."""
    needed = "foreach" if kind == "loop" else kind
    if any(needed not in group for group in optimizer.param_groups):
        return f"{type(optimizer).__name__} has no {kind} implementation"
    if kind == "fused" and optimizer.state:
        return "the optimizer was resumed with a state of another implementation"
    return ""
