"""Outermost calls of a script's models: inputs, evaluation, and the toggles that act on a model."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from perfkit.scripts.tensors import first_tensor, size, tensors

if TYPE_CHECKING:
    from perfkit.scripts.script import Script

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Models:
    """The modules that a script calls itself; what they call is left alone.

    A module's own `_compiled_call_impl`, which torch calls in place of `_call_impl`, is the way in: the
    module's class, hooks and parameters stay as they are. It is set through `__dict__`, because setting the
    attribute is handed on by the module that torch.compile wraps around another.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.found: list[nn.Module] = []
        self.compiled_by_script = False
        self.output_dtype: torch.dtype | None = None
        self.autocast_dtype: torch.dtype | None = None
        """Of the autocast that the script itself has entered while it trained."""
        self.inputs_last = False
        """Whether the last 4-D input was in channels_last order."""
        self._autocast: Any = None
        self._seen_forward = False

    def device(self) -> torch.device:
        """The first parameter's; the CPU if there is none."""
        return next((p.device for m in self.found for p in m.parameters()), torch.device("cpu"))

    def weights(self) -> list[torch.Tensor]:
        """The 4-D parameters whose layout can be told."""
        parameters = [p for m in self.found for p in m.parameters()]
        return [p for p in parameters if p.dim() == 4 and min(p.shape[1], p.shape[2] * p.shape[3]) > 1]

    def backward_begins(self) -> None:
        """The loss is computed."""
        self.leave_autocast()
        self._seen_forward = False

    def leave_autocast(self) -> None:
        """Ends the autocast that was set from outside; until backward, so that the loss is inside."""
        if self._autocast is not None:
            self._autocast.__exit__(None, None, None)
            self._autocast = None

    def stop_looking(self) -> None:
        """Modules that have not been called yet are not looked for any more.

        Set once only: each time a class changes, Python forgets where the methods of its subclasses are.
        """
        if nn.Module.__dict__["_compiled_call_impl"] is not None:
            _module()._compiled_call_impl = None

    def autocast_entered(self, autocast: Any) -> None:
        """An autocast was entered, by the script or from outside."""
        if self._autocast is None and autocast._enabled and torch.is_grad_enabled():
            self.autocast_dtype = autocast.fast_dtype
            self.script.sites.note("autocast", str(autocast.fast_dtype).removeprefix("torch."))

    # ------------------------------------------------------------ taking over a module's calls

    def first_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """An outermost call of a module that is not known yet."""
        with _Quiet(self):
            known = any(module is model for model in self.found)
            trainable = any(p.requires_grad for p in module.parameters())
            if isinstance(module, torch.jit.ScriptModule) or known or not trainable:
                return module._call_impl(*args, **kwargs)
            if torch.is_grad_enabled() and module.training:
                self.adopt(module)
                call: Any = module._compiled_call_impl
                return call(*args, **kwargs)
            self.script.loaders.evaluated()
            return module._call_impl(*args, **kwargs)

    def adopt(self, model: Any) -> None:
        """Takes over the calls of an outermost module, and sets what is to be set of it."""
        self.found.append(model)
        own = model.__dict__.get("_compiled_call_impl")
        compiled = own is not None or "_orig_mod" in model._modules
        self.compiled_by_script |= compiled
        call = own or model._call_impl
        call = self._toggled(model, call, compiled)
        model.__dict__["_compiled_call_impl"] = functools.partial(self._called, model, call)

    def _toggled(self, model: Any, call: Any, compiled: bool) -> Any:
        toggles, refuse = self.script.toggles, self.script.refuse
        self.script.apply_late()
        if toggles.get("channels_last"):
            if any(p.dim() == 4 for p in model.parameters()):
                model.to(memory_format=torch.channels_last)
            else:
                refuse("channels_last", "the model has no 4-dimensional weights")
        if toggles.get("amp") == "fp16" and not self.script.gradients.scales:
            refuse(
                "amp",
                "the script has no GradScaler, without which fp16 gradients vanish: use bf16, or add one",
            )
        if toggles.get("amp", "off") != "off" and any(p.dtype != torch.float32 for p in model.parameters()):
            refuse("amp", "the weights are not float32, so there is nothing for autocast to cast")
        if toggles.get("compile") and compiled:
            refuse("compile", "the script compiles the model already")
        elif toggles.get("compile"):
            mode = toggles.get("compile_mode", "default")
            call = torch.compile(model._call_impl, mode=None if mode == "default" else mode)
        if self.script.settings["dropout_off"]:
            _without_dropout(model)
        return call

    def _called(self, model: nn.Module, call: Any, *args: Any, **kwargs: Any) -> Any:
        script = self.script
        if script.gradients.inside:  # computed again, by checkpointing
            return call(*args, **kwargs)
        if not (torch.is_grad_enabled() and model.training):
            self.leave_autocast()
            script.loaders.evaluated()
            if not model.training:
                script.steps.now.marks.add("evaluation")
            return call(*args, **kwargs)
        script.steps.begin()
        if not self._seen_forward:
            self._seen_forward = True
            samples, tokens = size(first_tensor(args) if args else first_tensor(kwargs))
            forward = script.steps.now.forward
            forward[0], forward[1] = forward[0] + samples, forward[1] + tokens
        kind = script.toggles.get("amp", "off")
        if kind != "off" and "amp" not in script.refused and self._autocast is None:
            self._autocast = torch.autocast(self.device().type, dtype=_DTYPES[kind])
            self._autocast.__enter__()
        if script.toggles.get("channels_last") and "channels_last" not in script.refused:
            args = tuple(_last(arg) for arg in args)
            kwargs = {name: _last(arg) for name, arg in kwargs.items()}
        if script.profiling:
            with torch.profiler.record_function("forward"):
                return call(*args, **kwargs)
        if script.steps.count >= script.FIRST:
            return call(*args, **kwargs)
        return self._looked_at(model, call, args, kwargs)

    def _looked_at(self, model: nn.Module, call: Any, args: Any, kwargs: Any) -> Any:
        """A call of the first steps: its types and layout are read."""
        given = {**{str(at): value for at, value in enumerate(args)}, **kwargs}
        images = [name for name, value in given.items() if getattr(value, "ndim", 0) == 4]
        self.script.sites.note("forward", type(model).__name__, tuple(sorted(kwargs)), images=images)
        with _Quiet(self):
            output = call(*args, **kwargs)
        outputs = [tensor for tensor in tensors(output) if tensor.is_floating_point()]
        chosen = next((tensor for tensor in outputs if tensor.dim()), outputs[0] if outputs else None)
        self.output_dtype = chosen.dtype if chosen is not None else None
        images = [tensor for tensor in tensors((args, kwargs)) if tensor.dim() == 4]
        self.inputs_last = any(t.is_contiguous(memory_format=torch.channels_last) for t in images)
        return output


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


class _Quiet:
    """Inside an outermost call everything is as ever; after the first steps, everywhere."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def __enter__(self) -> None:
        _module()._compiled_call_impl = None

    def __exit__(self, *_: object) -> None:
        script = self._models.script
        looks = script.steps.count < script.FIRST
        _module()._compiled_call_impl = _Outermost(self._models) if looks else None


def _module() -> Any:
    return nn.Module


def _last(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _without_dropout(model: nn.Module) -> None:
    """For a check of parity: its masks depend on layout and type."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.__dict__["dropout"] = 0.0


def patch(models: Models) -> None:
    """From now on the calls of a script's own models are seen."""
    plain, enter = nn.Module.compile, cast(Any, torch.autocast.__enter__)

    @functools.wraps(plain)
    def compiled(self: Any, *args: Any, **kwargs: Any) -> None:
        models.script.sites.note("compile", type(self).__name__)
        with _Quiet(models):
            plain(self, *args, **kwargs)
        models.adopt(self)

    def entered(self: Any) -> Any:
        models.autocast_entered(self)
        return enter(self)

    nn.Module.compile = compiled  # type: ignore[method-assign]
    torch.autocast.__enter__ = entered  # type: ignore[method-assign]
    _module()._compiled_call_impl = _Outermost(models)


def compile_counters() -> dict[str, int]:
    """What torch.compile has done in this process, as `CompileCounters`."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {"graphs": 0, "breaks": 0, "cache_hits": 0, "cache_misses": 0}
    counters = utils.counters
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "breaks": int(sum(counters["graph_break"].values())),
        "cache_hits": int(counters["inductor"]["fxgraph_cache_hit"]),
        "cache_misses": int(counters["inductor"]["fxgraph_cache_miss"]),
    }
