"""Where a script's torch is listened to, mostly at private names, and the check that they are as expected."""

import functools
import inspect
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from types import CodeType
from typing import Any

import torch

from perfkit import lookup
from perfkit.additions.scripts.messages import failed

CALL = "_compiled_call_impl"  # what a module calls first, if it has it
TABLES = lookup.toml(__package__, "hooks")
WRAPPED, USED, READ = TABLES["wrapped"], TABLES["used"], TABLES["read"]["names"]


def check() -> None:
    """Raises `RunFailed` if this version of torch is not as the hooks expect: it may be a new one."""
    if problem := next(_problems(), ""):
        raise failed("torch", version=torch.__version__, problem=problem)


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
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*inner)


def wrapped(plain: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for `plain` that calls `function(plain, ...)`."""

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


def listen(callback: Any, name: str) -> None:
    """Wraps what a callback listens to, by those of its methods that `hooks.toml` names."""
    for place, method in TABLES["listeners"][name].items():
        wrap(place, getattr(callback, method))


class ModuleCalls:
    """Calls of modules, where torch looks first: `torch.compile` would trace a patched `Module.__call__`."""

    def __init__(self, unknown: Callable[..., Any]) -> None:
        self._unknown = unknown
        self.are_seen(True)

    def are_seen(self, wanted: bool) -> None:
        """Whether calls of modules without an own function are given to `unknown`, with the module first."""
        setattr(torch.nn.Module, CALL, self if wanted else None)

    def __get__(self, module: Any, kind: type) -> Any:
        if module is None or torch.compiler.is_compiling() or torch._C._is_tracing():
            return None
        return functools.partial(self._unknown, module)
