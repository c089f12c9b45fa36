"""What trains in a script: outermost calls of models, backward passes, optimizers; the switches of these."""

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
from perfkit.additions.shared.tensors import attributes, first_tensor, samples, tensors

LIMIT = limits("training")
_BACKWARD = ("grad_tensors", "retain_graph", "create_graph")  # what `backward` takes after the tensors


class Models(Callback):
    """The modules that a script calls itself, which the first steps show; what they call is left alone."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.is_compiled = False
        self._trained_in_eval = set[nn.Module]()  # gradients have come back through them in that mode
        self._device_type = "cpu"  # a script's own answer would list all parameters
        self._batch = 0  # samples in a layer of the model that takes [sequence, batch, features]
        self._rows = Counter[int]()  # of inputs of its layers that are [batch, features]
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
                    call = functools.partial(self._followed, module, call)
            return call(*args, **kwargs)

    def _trains(self, model: nn.Module) -> bool:
        return torch.is_grad_enabled() and (model.training or model in self._trained_in_eval)

    def _adopt(self, model: Any) -> Callable[..., Any]:
        script = self._script
        call = model.__dict__.get(hooks.CALL)
        script.model.append(model)
        self._device_type = script.device.type
        script.set_process()
        if script.toggles.get("channels_last"):
            model.to(memory_format=torch.channels_last)
        self.is_compiled |= call is not None or "_orig_mod" in model._modules
        call = call or model._call_impl
        if script.toggles.get("compile"):
            call = torch.compile(call)
        own = functools.partial(self._called, model, call)
        model.__dict__[hooks.CALL] = own  # a compiled model would hand an attribute on to what it wraps
        return own

    def _compile_in_place(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        with self._ignoring_inner_calls():
            plain(model, *args, **kwargs)
        self._adopt(model)

    def _set_mode(self, plain: Any, model: Any, mode: bool = True) -> Any:
        if hooks.CALL in model.__dict__:  # one that the script calls; layers are set one by one
            self._script.tell(Callback.on_mode, mode)
        return plain(model, mode)

    def _enter_autocast(self, plain: Any, autocast: Any) -> Any:
        if autocast._enabled and torch.is_grad_enabled():
            self._script.autocast = autocast.fast_dtype
        return plain(autocast)

    def _called(self, model: nn.Module, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        script, steps = self._script, self._script.steps
        if steps.in_backward:  # computed again, by checkpointing
            return call(*args, **kwargs)
        if not self._trains(model):
            return self._evaluated(model, call, *args, **kwargs)
        script.begin_pass()
        if steps.are_first:
            call = functools.partial(self._examined, call)
        if script.toggles.get("amp") == "bf16":
            call = functools.partial(self._in_bf16, call)
        output = script.do("forward", call, *args, **kwargs)
        if not steps.inputs.given:
            script.tell(Callback.on_input, args or kwargs)
        self._feed(args or kwargs)
        return output

    def _feed(self, given: Any) -> None:
        """Counts what a model was called with; the first such call since a backward pass counts for all."""
        steps = self._script.steps
        tensor = first_tensor(given)
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
        output = script.do("evaluation", self._followed, model, call, *args, **kwargs)
        if not model.training:
            script.steps.now.marks.add("evaluation")
        return output

    def _followed(self, model: nn.Module, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call that seems to evaluate; gradients that come back to it show that it trains, in eval mode."""
        step = self._script.steps.now
        was_marked = "evaluation" in step.marks

        def trains(_gradients: Any) -> None:
            self._trained_in_eval.add(model)
            self._script.calls.sites.pop("evaluation with gradients", None)
            if not was_marked:  # by an evaluation before it
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
        given = first_tensor(args or kwargs)
        if given is not None and given.dim() == 3 and self._rows[given.shape[1]] >= given.shape[0]:
            self._batch = given.shape[1]  # a layer is called for each step of a sequence
        largest = max(filter(torch.is_floating_point, tensors(output)), key=torch.Tensor.dim, default=None)
        if largest is not None:
            script.outputs = torch.empty_like(largest, device="meta")  # its memory is not kept
        return output

    def _look(self, module: nn.Module, given: Any) -> None:
        for tensor in tensors(given):
            if tensor.dim() == 2:
                self._rows[tensor.shape[0]] += 1
            elif tensor.dim() == 3 and not getattr(module, "batch_first", True):
                self._batch = tensor.shape[1]


def _in_32_bits(value: Any) -> Any:
    """Turns bfloat16 into float32, in which autocast computes losses anyway; changes objects in place."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    for name, part in attributes(value).items():
        if isinstance(part, torch.Tensor | list | tuple | dict):
            object.__setattr__(value, name, tree_map(_in_32_bits, part))
    return value


class Updates(Callback):
    """What changes the weights: backward passes, and the steps of optimizers."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._unscaled: torch.Tensor | None = None  # the loss that a gradient scaler has just scaled
        self._count = 0  # steps of optimizers
        self._gradients = 0  # taken without a backward pass
        self._has_graph = False  # whether the gradients have a graph, through which nothing has gone yet
        self._optimizers = dict[object, Any]()  # those that have made a step, by what they train
        hooks.listen(self, "updates")

    def _backward(self, plain: Callable[..., None], tensors: Any, *args: Any, **kwargs: Any) -> None:
        script, steps = self._script, self._script.steps
        if not isinstance(tensors, torch.Tensor | GradientEdge):
            tensors = tuple(tensors)  # torch takes a generator as well, which a look would empty
        script.begin_pass()
        given = dict(zip(_BACKWARD, args, strict=False)) | kwargs
        retains, makes_graph = bool(given.get("retain_graph")), bool(given.get("create_graph"))
        script.tell(Callback.on_graph, tensors, retains or makes_graph)
        if retains or makes_graph:  # a graph of gradients has the one before it as a part
            script.calls.note("graph_of_gradients" if makes_graph else "retain_graph")
        if steps.in_backward:  # of a part that is computed again
            return plain(tensors, *args, **kwargs)
        script.tell(Callback.on_backward)
        if steps.count < MOST_LOOKS:
            script.calls.note("backward")
        root = tensors if self._unscaled is None else self._unscaled
        self._unscaled = None
        if len(script.losses) < LIMIT.losses and isinstance(root, torch.Tensor) and not is_capturing():
            script.losses.append(root.detach().float().mean())
        steps.in_backward = True
        try:
            script.do("backward", plain, tensors, *args, **kwargs)
            script.backwards += 1
            self._has_graph = makes_graph  # this pass may have gone through that of an earlier one
            if not script.calls.sites["optimizer"]:  # then the script changes its weights itself
                steps.updated(self)
        finally:
            steps.in_backward = False

    def _grad(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A gradient that is no backward pass; a training with such ones alone has no steps to be seen."""
        if torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        self._gradients += 1
        self._has_graph = False
        trains = self._script.backwards or self._script.calls.sites["optimizer"]
        if self._gradients == LIMIT.most_gradients and not trains:
            raise failed("gradients_alone", count=LIMIT.most_gradients)
        return plain(*args, **kwargs)

    def _scale(self, plain: Any, scaler: Any, outputs: Any) -> Any:
        self._unscaled = outputs if isinstance(outputs, torch.Tensor) else None
        return plain(scaler, outputs)

    def _make(self, plain: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._script.calls.note("optimizer")
        plain(optimizer, *args, **kwargs)
        if len(optimizer.param_groups) > 1:
            self._script.calls.note("groups")
        if trained_by(optimizer) in self._optimizers:
            self._script.new_optimizers += 1
            self._script.calls.note("new_optimizers")
        kind = self._script.toggles.get("optimizer_impl", "default")
        if kind != "default":
            for group in [*optimizer.param_groups, optimizer.defaults]:
                group.update({name: name == kind for name in ("foreach", "fused") if name in group})
            optimizer._step_supports_amp_scaling = kind == "fused"

    def _hook(self, plain: Any, *args: Any) -> Any:
        return hooks.wrapped(plain(args[-1]), self._step)

    def _step_scaled(self, plain: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """A step that a gradient scaler leaves out, because gradients overflowed, counts too."""
        before = self._count
        result = plain(scaler, optimizer, *args, **kwargs)
        if self._count == before:
            self._step(lambda _: None, optimizer)
        return result

    def _step(self, plain: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        if script.steps.count < MOST_LOOKS:
            script.calls.note("step")
        trained = trained_by(optimizer)
        if self._optimizers.get(trained) is not optimizer:
            self._optimizers[trained] = script.optimizer = optimizer
            script.optimizers = list(self._optimizers.values())
        if args or kwargs:
            args, kwargs = tree_map(self._as_own, (args, kwargs))
        if script.looked_at.value:
            script.tell(Callback.on_gradients, optimizer)
        result = script.do("optimizer", plain, optimizer, *args, **kwargs)
        self._count += 1
        if not script.backwards:  # gradients by `torch.func`: this stands for the backward pass
            script.begin_pass()
            script.tell(Callback.on_backward)
        script.steps.updated(trained)
        return result

    def on_steps(self, steps: list[ScriptStep]) -> None:
        if self._has_graph:  # not even the optimizer has gone through it
            self._script.unused_graphs += 1
            self._has_graph = False

    def _as_own(self, given: Any) -> Any:
        # What a closure does, such as forward and backward, is not the optimizer's own work.
        return functools.partial(self._script.do, OWN, given) if callable(given) else given


def trained_by(optimizer: Any) -> tuple[type, int, int]:
    """What an optimizer trains: the same for one that a script makes anew for the same weights."""
    weights = optimizer.param_groups[0]["params"]
    return type(optimizer), len(weights), id(weights[0] if weights else optimizer)
