"""The training of a script: calls of models, backward passes, optimizers, and the switches of these."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._pytree import tree_map

from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.messages import OWN, failed, limits
from perfkit.additions.scripts.script import MOST_LOOKS, Callback, Script, ScriptStep, is_capturing
from perfkit.additions.shared.tensors import attributes, first_tensor, samples, tensors, weights_of

LIMIT = limits("training")
_BACKWARD = ("grad_tensors", "retain_graph", "create_graph")  # parameters of `backward` after the tensors


class Models(Callback):
    """The models of a script: modules that it calls itself in its first steps, but not the layers in them."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._seen = script.models
        self.is_compiled = False
        self._trained_in_eval = set[nn.Module]()  # models that got gradients in eval mode
        self._device_type = "cpu"  # kept, because `Script.device` lists all parameters
        self._batch = 0  # samples of an input [sequence, batch, features] of a layer
        self._rows = Counter[int]()  # how many inputs [batch, features] of layers have so many rows
        hooks.listen(self, "models")
        self._calls = hooks.ModuleCalls(self._first_call)

    @contextlib.contextmanager
    def _ignoring_inner_calls(self) -> Iterator[None]:
        self._calls.set_active(False)
        try:
            yield
        finally:
            if not self._script.steps.count:  # later, a compiled model would be compiled again
                self._calls.set_active(True)

    def _first_call(self, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        call = module._call_impl
        with self._ignoring_inner_calls():
            is_model = any(p.requires_grad for p in module.parameters())
            is_script = isinstance(module, torch.jit.ScriptModule)
            if is_model and script.steps.are_first and not script.steps.in_backward and not is_script:
                if self._trains(module):
                    call = self._adopt(module)
                else:
                    script.tell(Callback.on_evaluation)
                    call = functools.partial(self._observed, module, call)
            return call(*args, **kwargs)

    def _trains(self, model: nn.Module) -> bool:
        return torch.is_grad_enabled() and (model.training or model in self._trained_in_eval)

    def _adopt(self, model: Any) -> Callable[..., Any]:
        script = self._script
        call = model.__dict__.get(hooks.CALL)
        self._seen.model.append(model)
        self._device_type = script.device.type
        script.set_process()
        if script.toggles.get("channels_last"):
            model.to(memory_format=torch.channels_last)
        self.is_compiled |= call is not None or "_orig_mod" in model._modules
        call = call or model._call_impl
        if script.toggles.get("compile"):
            call = torch.compile(call)
        function = functools.partial(self._called, model, call)
        model.__dict__[hooks.CALL] = function  # not by `setattr`, which a compiled model hands on
        return function

    def _compile_in_place(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        with self._ignoring_inner_calls():
            plain(model, *args, **kwargs)
        self._adopt(model)

    def _set_mode(self, plain: Any, model: Any, mode: bool = True) -> Any:
        if hooks.CALL in model.__dict__:  # a model of the script; its layers are set one by one
            self._script.tell(Callback.on_mode, mode)
        return plain(model, mode)

    def _enter_autocast(self, plain: Any, autocast: Any) -> Any:
        if autocast._enabled and torch.is_grad_enabled():
            self._seen.autocast = autocast.fast_dtype
        return plain(autocast)

    def _called(self, model: nn.Module, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        script, steps = self._script, self._script.steps
        if steps.in_backward:  # checkpointing repeats a forward pass
            return call(*args, **kwargs)
        if not self._trains(model):
            return self._evaluated(model, call, *args, **kwargs)
        script.parts.begin_pass()
        if steps.are_first:
            call = functools.partial(self._examined, call)
        if script.toggles.get("amp") == "bf16":
            call = functools.partial(self._in_bf16, call)
        output = script.parts.do("forward", call, *args, **kwargs)
        if not steps.inputs.given:
            script.tell(Callback.on_input, args or kwargs)
        self._feed(args or kwargs)
        return output

    def _feed(self, inputs: Any) -> None:
        """Counts the samples of an input; its elements only at the first call since a backward pass."""
        steps = self._script.steps
        tensor = first_tensor(inputs)
        if tensor is not None and not steps.inputs.given:
            steps.now.elements += tensor.numel()
        steps.inputs.given = max(steps.inputs.given, samples(tensor, self._batch))

    def _in_bf16(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._device_type, dtype=torch.bfloat16):
            return tree_map(_in_32_bits, call(*args, **kwargs))

    def _evaluated(self, model: nn.Module, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        script.tell(Callback.on_evaluation)
        script.calls.note("evaluation with gradients" if torch.is_grad_enabled() else "evaluation")
        output = script.parts.do("evaluation", self._observed, model, call, *args, **kwargs)
        if not model.training:
            script.steps.now.marks.add("evaluation")
        return output

    def _observed(self, model: nn.Module, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a model that seems to evaluate; gradients that come back show that it trains in eval mode."""
        step = self._script.steps.now
        was_marked = "evaluation" in step.marks

        def trains(_gradients: Any) -> None:
            self._trained_in_eval.add(model)
            self._script.calls.sites.pop("evaluation with gradients", None)
            if not was_marked:  # else by an earlier evaluation
                step.marks.discard("evaluation")
                step.spent["evaluated"] = 0.0

        output = call(*args, **kwargs)
        for tensor in tensors(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(trains)
        return output

    def on_backward(self) -> None:
        self._script.steps.inputs.take(self._script.steps.now)

    def _examined(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        script.calls.note("forward")
        is_compiled = self.is_compiled or script.toggles.get("compile")  # a hook would be captured
        hook = contextlib.nullcontext() if is_compiled else register_module_forward_pre_hook(self._look)
        self._rows.clear()
        with self._ignoring_inner_calls(), hook:
            output = call(*args, **kwargs)
        tensor = first_tensor(args or kwargs)
        if tensor is not None and tensor.dim() == 3 and self._rows[tensor.shape[1]] >= tensor.shape[0]:
            self._batch = tensor.shape[1]  # a layer is called for each step of a sequence
        largest = max(filter(torch.is_floating_point, tensors(output)), key=torch.Tensor.dim, default=None)
        if largest is not None:
            self._seen.outputs = torch.empty_like(largest, device="meta")  # its memory is not kept
        return output

    def _look(self, module: nn.Module, inputs: Any) -> None:
        for tensor in tensors(inputs):
            if tensor.dim() == 2:
                self._rows[tensor.shape[0]] += 1
            elif tensor.dim() == 3 and not getattr(module, "batch_first", True):
                self._batch = tensor.shape[1]


def _in_32_bits(value: Any) -> Any:
    """Converts bfloat16 to float32, in which autocast computes losses anyway; changes objects in place."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    for name, member in attributes(value).items():
        if isinstance(member, torch.Tensor | list | tuple | dict):
            object.__setattr__(value, name, tree_map(_in_32_bits, member))
    return value


class Updates(Callback):
    """Backward passes and the steps of optimizers, which change the weights."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._seen = script.updates
        self._unscaled: torch.Tensor | None = None  # the loss that a gradient scaler has just scaled
        self._count = 0  # steps of optimizers
        self._has_graph = False  # whether the gradients have a graph that nothing has gone through yet
        self._optimizers = dict[object, Any]()  # optimizers that have made a step, by `trained_by`
        hooks.listen(self, "updates")

    def _backward(self, plain: Callable[..., None], tensors: Any, *args: Any, **kwargs: Any) -> None:
        script, steps = self._script, self._script.steps
        if not isinstance(tensors, torch.Tensor | GradientEdge):
            tensors = tuple(tensors)  # torch accepts a generator, too, which a look would exhaust
        script.parts.begin_pass()
        arguments = dict(zip(_BACKWARD, args, strict=False)) | kwargs
        retains, makes_graph = bool(arguments.get("retain_graph")), bool(arguments.get("create_graph"))
        script.tell(Callback.on_graph, tensors, retains or makes_graph)
        if retains or makes_graph:  # a graph of gradients contains the one before it
            script.calls.note("graph_of_gradients" if makes_graph else "retain_graph")
        if steps.in_backward:  # of a part that checkpointing repeats
            return plain(tensors, *args, **kwargs)
        script.tell(Callback.on_backward)
        if steps.count < MOST_LOOKS:
            script.calls.note("backward")
        root = tensors if self._unscaled is None else self._unscaled
        if len(self._seen.losses) < LIMIT.losses and isinstance(root, torch.Tensor) and not is_capturing():
            self._seen.losses.append(root.detach().float().mean())
        self._pass(plain, tensors, *args, **kwargs)
        self._has_graph = makes_graph  # an earlier graph of gradients may have been used by this pass

    def _pass(self, plain: Callable[..., None], tensors: Any, *args: Any, **kwargs: Any) -> None:
        """A backward pass that is not within another one."""
        script, steps = self._script, self._script.steps
        self._unscaled = None
        steps.in_backward = True
        try:
            script.parts.do("backward", plain, tensors, *args, **kwargs)
            self._seen.backwards += 1
            if not script.calls.sites["optimizer"]:  # the script changes its weights itself
                steps.updated(self)
        finally:
            steps.in_backward = False

    def _grad(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Counts a gradient without a backward pass: a training of such gradients alone shows no steps."""
        if torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        self._seen.gradients += 1
        self._has_graph = False
        trains = self._seen.backwards or self._script.calls.sites["optimizer"]
        if self._seen.gradients == LIMIT.most_gradients and not trains:
            raise failed("gradients_alone", count=LIMIT.most_gradients)
        return plain(*args, **kwargs)

    def _scale(self, plain: Any, scaler: Any, outputs: Any) -> Any:
        self._unscaled = outputs if isinstance(outputs, torch.Tensor) else None
        return plain(scaler, outputs)

    def _make(self, plain: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._script.calls.note("optimizer")
        plain(optimizer, *args, **kwargs)
        self._seen.held |= {id(weight) for weight in weights_of(optimizer.param_groups)}
        if len(optimizer.param_groups) > 1:
            self._script.calls.note("groups")
        if trained_by(optimizer) in self._optimizers:
            self._seen.new_optimizers += 1
            self._script.calls.note("new_optimizers")
        kind = self._script.toggles.get("optimizer_impl", "default")
        if kind != "default":
            for group in [*optimizer.param_groups, optimizer.defaults]:
                group.update({name: name == kind for name in ("foreach", "fused") if name in group})
            optimizer._step_supports_amp_scaling = kind == "fused"

    def _hook(self, plain: Any, *args: Any) -> Any:
        return hooks.wrapped(plain(args[-1]), self._step)

    def _step_scaled(self, plain: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Counts a step that a gradient scaler skips because gradients overflowed."""
        count = self._count
        result = plain(scaler, optimizer, *args, **kwargs)
        if self._count == count:
            self._step(lambda _: None, optimizer)
        return result

    def _step(self, plain: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        if script.steps.count < MOST_LOOKS:
            script.calls.note("step")
        key = trained_by(optimizer)
        if self._optimizers.get(key) is not optimizer:
            self._optimizers[key] = self._seen.newest = optimizer
            self._seen.optimizers = list(self._optimizers.values())
        if args or kwargs:
            args, kwargs = tree_map(self._as_own_code, (args, kwargs))
        if script.parts.looked_at.value:
            script.tell(Callback.on_gradients, optimizer)
        result = script.parts.do("optimizer", plain, optimizer, *args, **kwargs)
        self._count += 1
        if not self._seen.backwards:  # `torch.func` made the gradients: this is in place of a backward pass
            script.parts.begin_pass()
            script.tell(Callback.on_backward)
        script.steps.updated(key)
        return result

    def on_steps(self, steps: list[ScriptStep]) -> None:
        if self._has_graph:  # the optimizer has not gone through it either
            self._seen.unused_graphs += 1
            self._has_graph = False

    def _as_own_code(self, argument: Any) -> Any:
        # A closure runs forward and backward passes, which are not the optimizer's own work.
        return functools.partial(self._script.parts.do, OWN, argument) if callable(argument) else argument


def trained_by(optimizer: Any) -> tuple[type, int, int]:
    """A key of an optimizer: equal for one that a script makes again for the same weights."""
    weights = optimizer.param_groups[0]["params"]
    return type(optimizer), len(weights), id(weights[0] if weights else optimizer)
