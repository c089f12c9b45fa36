"""The places at which a script's torch is listened to, and the check that they are as this code expects.

Most are private, so a new version of torch may change them. Then a script is refused in words before its own
code runs: steps that are not seen would end in wrong numbers.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from types import CodeType
from typing import Any

import torch

from perfkit.errors import RunFailed

LOADER = "torch.utils.data.dataloader"
ITERATOR = f"{LOADER}._BaseDataLoaderIter"
FETCH = "torch.utils.data._utils.fetch"
WRAPPED = {
    "torch.utils.data.DataLoader.__init__": "dataset batch_size num_workers pin_memory prefetch_factor",
    f"{ITERATOR}.__init__": "loader",
    f"{ITERATOR}._reset": "loader",
    f"{ITERATOR}._next_index": "",
    f"{ITERATOR}.__next__": "",
    f"{FETCH}._MapDatasetFetcher.fetch": "possibly_batched_index",
    f"{FETCH}._IterableDatasetFetcher.fetch": "possibly_batched_index",
    "torch.utils.data.get_worker_info": "",
    "torch.utils.data._utils.worker.get_worker_info": "",
    f"{LOADER}._MultiProcessingDataLoaderIter._shutdown_workers": "",
    "torch.autograd.set_detect_anomaly.__init__": "",
    "torch.autograd.detect_anomaly.__init__": "",
    "torch.autograd.profiler.profile.__init__": "",
    "torch.use_deterministic_algorithms": "",
    "torch.Tensor.to": "",
    "torch.Tensor.cuda": "",
    "torch.nn.Module.compile": "",
    "torch.autocast.__enter__": "",
    "torch.autograd.backward": "tensors",
    "torch.autograd.grad": "",
    "torch._functorch.eager_transforms.grad_and_value_impl": "",
    "torch.amp.GradScaler.scale": "outputs",
    "torch.amp.GradScaler.step": "optimizer",
    "torch.optim.Optimizer.__init__": "params defaults",
    # Not torch's global hooks: they would cut the profiler's range of a step in two.
    "torch.optim.Optimizer.profile_hook_step": "func",
    "torch.compile": "model",
    "torch.save": "obj f",
}
"""Functions that are wrapped, and the parameters that the wrappers rely on."""
USED = {
    "torch.nn.Module._compiled_call_impl": "torch.nn.Module.__call__",
    "torch.nn.Module._call_impl": "torch.nn.Module.__call__",
    "torch.autograd.backward": "torch.Tensor.backward",
    "torch._functorch.eager_transforms.grad_and_value_impl": "torch.func.grad_and_value",
    "torch.optim.Optimizer.profile_hook_step": "torch.optim.Optimizer._patch_step_function",
    f"{ITERATOR}._reset": "torch.utils.data.DataLoader.__iter__",
    f"{ITERATOR}._next_index": f"{LOADER}._MultiProcessingDataLoaderIter._try_put_index",
    f"{FETCH}._MapDatasetFetcher.fetch": f"{LOADER}._SingleProcessDataLoaderIter._next_data",
    f"{FETCH}._MapDatasetFetcher": f"{LOADER}._DatasetKind.create_fetcher",
    f"{FETCH}._IterableDatasetFetcher": f"{LOADER}._DatasetKind.create_fetcher",
}
"""Names that a function of torch must look up each time it is called, because they are replaced there."""
READ = ("torch._C._is_tracing", "torch.utils._pytree.tree_map", "torch.nn.modules.conv._ConvNd")
"""Further names that torch does not document."""


def check() -> None:
    """Raises `RunFailed` if this version of torch is not as the hooks expect."""
    if problem := next(_problems(), ""):
        what = f"torch {torch.__version__} cannot be watched, because {problem}"
        raise RunFailed(what, "Use a version of torch that this perfkit was made for, or a newer perfkit")


def _problems() -> Iterator[str]:
    for place in (*WRAPPED, *USED, *USED.values(), *READ):
        try:
            resolve_name(place)
        except (ImportError, AttributeError):
            yield f"it has no {place}"
    for place, names in WRAPPED.items():
        for name in names.split():  # none for a function in C, which has no signature
            if name not in inspect.signature(resolve_name(place)).parameters:
                yield f"{place} has no parameter {name}"
    for place, user in USED.items():
        if place.rpartition(".")[2] not in _names(inspect.unwrap(resolve_name(user)).__code__):
            yield f"{user} does not use {place}"


def _names(code: CodeType) -> set[str]:
    """The names that a function, and those within it, look up."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return {*code.co_names}.union(*inner)


def wrapped(plain: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """What is for a plain function: another one, which is given the plain one first."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(plain, *args, **kwargs)

    return call


def around(holder: Any, name: str, function: Callable[..., Any]) -> None:
    """Replaces a function of a module or class by a `wrapped` one."""
    setattr(holder, name, wrapped(getattr(holder, name), function))


def wrap(place: str, function: Callable[..., Any]) -> None:
    """Wraps one of the functions in `WRAPPED`."""
    assert place in WRAPPED, f"{place} is not checked"
    holder, _, name = place.rpartition(".")
    around(resolve_name(holder), name, function)
