"""Outermost calls of a script's models: inputs, evaluation, and the switches that act on a model."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from perfkit.scripts.script import Script, around, first_tensor, size, tensors
from perfkit.worker.checks import facts

_NO_CALL = "no call of a model was seen: those of model.forward(x) and of scripted models are not"
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
        self.inputs: torch.Tensor | None = None
        """Type and layout of a 4-D input of the first steps, or of the first input; without its data."""
        self.outputs: torch.Tensor | None = None
        """Type and layout of the model's output in the first steps, without its data."""
        self._own_autocast: torch.dtype | None = None  # its type, where the script entered one in training
        self._autocast: Any = None
        self._batch = 0  # samples in a layer of the model that takes [sequence, batch, features]
        self._forward_seen = False  # since the last backward pass

    def patch(self) -> None:
        around(nn.Module, "compile", self._compile_in_place)
        around(torch.autocast, "__enter__", self._enter_autocast)
        _module._compiled_call_impl = _Outermost(self)

    def autocast(self) -> torch.dtype | None:
        """The type of the autocast around the models, the script's own or the one set from outside."""
        return torch.bfloat16 if self._script.wants("amp") == "bf16" else self._own_autocast

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
        if not self._script.models:
            return dict.fromkeys(("amp", "channels_last", "compile"), _NO_CALL)
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

    # ------------------------------------------------------------ taking over a module's calls

    @contextlib.contextmanager
    def _ignoring_inner_calls(self) -> Iterator[None]:
        _module._compiled_call_impl = None
        try:
            yield
        finally:
            _module._compiled_call_impl = _Outermost(self) if self._script.steps.are_first else None

    def first_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """An outermost call of a module that is not known yet."""
        script = self._script
        if script.steps.in_backward:  # a part that is computed again
            return module._call_impl(*args, **kwargs)
        with self._ignoring_inner_calls():
            trains = any(p.requires_grad for p in module.parameters())
            call: Any = module._call_impl
            if trains and not isinstance(module, torch.jit.ScriptModule):
                if torch.is_grad_enabled() and module.training:
                    self._adopt(module)
                    call = module._compiled_call_impl
                else:
                    script.tell("evaluation")
            return call(*args, **kwargs)

    def _adopt(self, model: Any) -> None:
        """Takes over the calls of an outermost module, and sets its switches."""
        script, call = self._script, model.__dict__.get("_compiled_call_impl")
        script.models.append(model)
        self.is_compiled |= call is not None or "_orig_mod" in model._modules
        script.set_process()
        reasons = self.why_not()
        for switch in reasons.keys() & script.toggles.keys():
            script.refuse(switch, reasons[switch])
        call = call or model._call_impl
        if script.wants("channels_last"):
            model.to(memory_format=torch.channels_last)
        if script.wants("compile"):
            mode = script.toggles.get("compile_mode", "default")
            call = torch.compile(model._call_impl, mode=None if mode == "default" else mode)
        model.__dict__["_compiled_call_impl"] = functools.partial(self._called, model, call)

    def _compile_in_place(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        with self._ignoring_inner_calls():
            plain(model, *args, **kwargs)
        self._adopt(model)

    def _enter_autocast(self, plain: Any, autocast: Any) -> Any:
        if self._autocast is None and autocast._enabled and torch.is_grad_enabled():
            self._own_autocast = autocast.fast_dtype
        return plain(autocast)

    # ------------------------------------------------------------ a call

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
        with script.phase("forward"):
            examined = functools.partial(self._examined, call) if steps.are_first else call
            output = examined(*args, **kwargs)
        if not self._forward_seen:
            self._forward_seen = True
            self._count(first_tensor(args) if args else first_tensor(kwargs))
        return output

    def _count(self, given: torch.Tensor | None) -> None:
        """Counts what went into the model; of [sequence, batch] the second dimension is the samples."""
        self._script.tell("input", given)
        now, (samples, tokens) = self._script.steps.now, size(given)
        is_sequence_first = given is not None and given.dim() > 1 and given.shape[1] == self._batch
        now.forward_samples += self._batch if is_sequence_first else samples
        now.forward_tokens += tokens

    def _examined(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of the first steps: its types and layout are read."""
        self._script.sites.note("forward")
        is_compiled = self.is_compiled or self._script.wants("compile")  # a hook would be captured
        hook = contextlib.nullcontext() if is_compiled else register_module_forward_pre_hook(self._look)
        with self._ignoring_inner_calls(), hook:
            output = call(*args, **kwargs)
        inputs = list(tensors((args, kwargs)))
        self.inputs = _outline([tensor for tensor in inputs if tensor.dim() == 4] or inputs)
        floating = [tensor for tensor in tensors(output) if tensor.is_floating_point()]
        self.outputs = _outline([tensor for tensor in floating if tensor.dim()] or floating)
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
