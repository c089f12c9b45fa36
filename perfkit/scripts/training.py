"""What trains in a script: outermost calls of models, backward passes, optimizers; the switches of these."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch._functorch import eager_transforms
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from perfkit.scripts.outputs import clock
from perfkit.scripts.script import Script, around, first_tensor, size, tensors
from perfkit.worker.checks import facts

_LOSSES = 64
"""First backward passes whose losses are kept."""
_MOST_COMPARISONS = 20
"""Backward passes after which weights that have not been seen to change are no longer compared."""
_MOST_DERIVATIVES = 100
"""Gradients by `torch.func` of a single tensor, without a step: after so many the tensor holds weights."""
_module: Any = nn.Module


class Models:
    """The modules that a script calls itself; what they call is left alone.

    The way in is a module's own `_compiled_call_impl`, which torch calls in place of `_call_impl`: the
    module's class, hooks and parameters stay as they are. It is set through `__dict__`, because a module that
    torch.compile wraps around another one hands an attribute on.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.is_compiled = False  # whether the script compiles a model itself
        self._autocast: Any = None  # set from outside
        self._batch = 0  # samples in a layer of the model that takes [sequence, batch, features]
        self._forward_seen = False  # since the last backward pass
        around(nn.Module, "compile", self._compile_in_place)
        around(torch.autocast, "__enter__", self._enter_autocast)
        _module._compiled_call_impl = _Outermost(self)

    def leave_autocast(self) -> None:
        """Ends the autocast that was set from outside: at backward, so that the loss is inside."""
        if self._autocast is not None:
            self._autocast.__exit__(None, None, None)
            self._autocast = None

    on_fetch = on_evaluation = on_update = leave_autocast

    def on_backward(self) -> None:
        self.leave_autocast()
        self._forward_seen = False

    def on_steps(self, steps: Any) -> None:
        """After the first steps, modules that have not been called yet are not looked for any more.

        Set once only: each time a class changes, Python forgets where the methods of its subclasses are.
        """
        if not self._script.steps.are_first and _module.__dict__["_compiled_call_impl"] is not None:
            _module._compiled_call_impl = None

    def why_not(self) -> dict[str, str]:
        """The model's switches that cannot be set from outside, and why."""
        if not self._script.model:
            reason = "no call of a model was seen: those of model.forward(x) and of scripted models are not"
            return dict.fromkeys(("amp", "channels_last", "compile"), reason)
        reasons, kind = {}, self._script.wants("amp")
        if not any(p.dim() == 4 for p in self._script.parameters()):
            reasons["channels_last"] = "the model has no 4-dimensional weights"
        if self.is_compiled:
            reasons["compile"] = "the script compiles the model already"
        if kind == "fp16" or facts(self._script.device).bf16 is False:
            reasons["amp"] = "fp16 needs a GradScaler in the script itself: set bf16 where the device has it"
        elif kind == "bf16" and any(p.dtype != torch.float32 for p in self._script.parameters()):
            reasons["amp"] = "the weights are not float32, so there is nothing for autocast to cast"
        return reasons

    @contextlib.contextmanager
    def _ignoring_inner_calls(self) -> Iterator[None]:
        _module._compiled_call_impl = None
        try:
            yield
        finally:
            _module._compiled_call_impl = _Outermost(self) if self._script.steps.are_first else None

    def first_call(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """An outermost call of a module that is not known yet."""
        script, call = self._script, module._call_impl
        with self._ignoring_inner_calls():
            is_whole = not script.steps.in_backward and not isinstance(module, torch.jit.ScriptModule)
            if is_whole and any(p.requires_grad for p in module.parameters()):
                if torch.is_grad_enabled() and module.training:
                    call = self._adopt(module)
                else:
                    script.tell("evaluation")
            return call(*args, **kwargs)

    def _adopt(self, model: Any) -> Callable[..., Any]:
        """Takes over the calls of an outermost module, and sets its switches; returns what is called now."""
        script, call = self._script, model.__dict__.get("_compiled_call_impl")
        script.model.append(model)
        self.is_compiled |= call is not None or "_orig_mod" in model._modules
        script.set_process()
        script.refuse(self.why_not())
        call = call or model._call_impl
        if script.wants("channels_last"):
            model.to(memory_format=torch.channels_last)
        if script.wants("compile"):
            call = torch.compile(model._call_impl)
        model.__dict__["_compiled_call_impl"] = own = functools.partial(self._called, model, call)
        return own

    def _compile_in_place(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        with self._ignoring_inner_calls():
            plain(model, *args, **kwargs)
        self._adopt(model)

    def _enter_autocast(self, plain: Any, autocast: Any) -> Any:
        if autocast._enabled and torch.is_grad_enabled():
            self._script.autocast = autocast.fast_dtype
        return plain(autocast)

    def _called(self, model: nn.Module, call: Any, *args: Any, **kwargs: Any) -> Any:
        script, steps = self._script, self._script.steps
        if steps.in_backward:  # computed again, by checkpointing
            return call(*args, **kwargs)
        if not (torch.is_grad_enabled() and model.training):
            script.tell("evaluation")
            if not model.training:
                steps.now.marks.add("evaluation")
            return call(*args, **kwargs)
        script.tell("forward")
        if script.wants("amp") == "bf16" and self._autocast is None:
            self._autocast = torch.autocast(script.device.type, dtype=torch.bfloat16)
            self._autocast.__enter__()
        if script.wants("channels_last"):
            args = tuple(map(_channels_last, args))
            kwargs = {name: _channels_last(value) for name, value in kwargs.items()}
        if steps.are_first:
            call = functools.partial(self._examined, call)
        with script.phase("forward"):
            output = call(*args, **kwargs)
        if not self._forward_seen:
            self._forward_seen = True
            given = first_tensor(args or kwargs)
            script.tell("input", given)
            samples, tokens = size(given)
            is_sequence_first = given is not None and given.dim() > 1 and given.shape[1] == self._batch
            steps.now.forward_samples += self._batch if is_sequence_first else samples
            steps.now.forward_tokens += tokens
        return output

    def _examined(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of the first steps: its types and layout are read."""
        script = self._script
        script.sites.note("forward")
        is_compiled = self.is_compiled or script.wants("compile")  # a hook would be captured
        hook = contextlib.nullcontext() if is_compiled else register_module_forward_pre_hook(self._look)
        with self._ignoring_inner_calls(), hook:
            output = call(*args, **kwargs)
        inputs = list(tensors((args, kwargs)))
        script.inputs = _outline([tensor for tensor in inputs if tensor.dim() == 4] or inputs)
        floating = [tensor for tensor in tensors(output) if tensor.is_floating_point()]
        script.outputs = _outline([tensor for tensor in floating if tensor.dim()] or floating)
        return output

    def _look(self, module: nn.Module, given: Any) -> None:
        """Reads the number of samples of a layer that takes [sequence, batch, features]."""
        sequences = first_tensor(given)
        if not getattr(module, "batch_first", True) and sequences is not None and sequences.dim() == 3:
            self._batch = sequences.shape[1]


class _Outermost:
    """Stands where `nn.Module` keeps `_compiled_call_impl`, and so sees calls of modules not known yet.

    Not a patched `Module.__call__`: a `torch.compile(model)` of the script would capture and trace that.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def __get__(self, module: nn.Module | None, kind: type) -> Any:
        if module is None or torch.compiler.is_compiling():
            return None
        return functools.partial(self._models.first_call, module)


def _outline(candidates: list[torch.Tensor]) -> torch.Tensor | None:
    """Type, size and layout of the first tensor: its memory is not kept."""
    return candidates[0].detach().to("meta") if candidates else None


def _channels_last(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


class Updates:
    """What changes the weights: backward passes, and the steps of optimizers."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._unscaled: torch.Tensor | None = None  # the loss that a gradient scaler has just scaled
        self._backward_ended_at = 0.0
        self._weights: float | None = None
        self._last: Any = None  # the optimizer that made the last step
        self._is_stepping = self._is_made = False
        self._is_functional = False  # inside a gradient by torch.func
        self._derivatives = self._functionals = 0  # gradients by torch.func, and those of them of weights
        around(torch.autograd, "backward", self._backward)
        around(torch.autograd, "grad", self._grad)
        around(eager_transforms, "grad_and_value_impl", self._functional)
        around(torch.amp.GradScaler, "scale", self._scale)
        around(torch.amp.GradScaler, "step", self._step_scaled)
        around(Optimizer, "__init__", self._make)
        around(Optimizer, "zero_grad", self._zero_grad)
        around(nn.Module, "zero_grad", self._zero_grad)
        # Not by torch's global hooks: they would cut the profiler's range of a step in two.
        around(Optimizer, "profile_hook_step", self._hook)

    def _backward(self, plain: Callable[..., Any], roots: Any, *args: Any, **kwargs: Any) -> Any:
        script, steps = self._script, self._script.steps
        if steps.in_backward:  # of a part that is computed again
            script.tell("graph", roots)
            return plain(roots, *args, **kwargs)
        if self._functionals and not steps.count:  # they were parts of this step, as in meta-learning
            script.backwards, self._functionals = 0, 0
            script.losses.clear()
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
            self._end_backward()

    def _end_backward(self, weights: Sequence[torch.Tensor] = ()) -> None:
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

    def _look_for_changes(self, weights: Sequence[torch.Tensor]) -> None:
        """Without an optimizer: weights that change between backward passes, updated by the script."""
        script = self._script
        # An optimizer that is made will step; SAM moves the weights before its inner optimizer does.
        if script.optimizers or (self._is_made and not weights):
            return
        if not script.step_is and script.backwards <= _MOST_COMPARISONS:
            compared = weights or script.model[:1].parameters()
            total = sum(float(p.detach().double().sum()) for p in compared)
            if self._weights is None:
                script.steps.first_may_end()
            elif self._weights != total:
                script.note("no optimizer: the script changes its weights itself; a step is a backward pass")
                script.step_is = "a backward pass"
            self._weights = total
        if script.step_is:
            script.steps.is_over = True

    def _make(self, plain: Any, *args: Any, **kwargs: Any) -> None:
        self._script.sites.note("optimizer")
        self._is_made = True
        plain(*args, **kwargs)

    def _zero_grad(self, plain: Any, holder: Any, set_to_none: bool = True) -> None:
        self._script.sites.note("zero_grad")
        self._script.set_to_none = bool(self._script.toggles.get("zero_grad_set_to_none", set_to_none))
        plain(holder, self._script.set_to_none)

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

    def _hook(self, plain: Any, *args: Any) -> Any:
        """The step of a class of optimizers, from torch's static method of this name."""
        inner = plain(args[-1])

        @functools.wraps(inner)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return self._step(functools.partial(inner, optimizer, *args, **kwargs), optimizer)

        return step

    def _know(self, optimizer: Any) -> None:
        """Keeps an optimizer that makes a step, and sets its switch; a scaler may skip its first steps."""
        script = self._script
        if any(optimizer is known for known in script.optimizers):
            return
        script.optimizers.append(optimizer)
        script.optimizer = optimizer
        kind = script.toggles.get("optimizer_impl", "default")
        if kind == "default":
            return
        script.refuse(_why_not(optimizer, kind))
        if not script.wants("optimizer_impl"):
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
        return _why_not(self._script.optimizer, "foreach")


def _why_not(optimizer: Any, kind: str) -> dict[str, str]:
    needed, reason = "foreach" if kind == "loop" else kind, ""
    if any(needed not in group for group in optimizer.param_groups):
        reason = f"{type(optimizer).__name__} has no {kind} implementation"
    elif kind == "fused" and optimizer.state:
        reason = "the optimizer was resumed with a state of another implementation"
    return {"optimizer_impl": reason} if reason else {}
