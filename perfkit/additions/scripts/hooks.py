"""Hooks into a script's torch, mostly at private names, and a check that torch is as they expect."""

import functools
import inspect
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from types import CodeType
from typing import Any

import torch

from perfkit import lookup
from perfkit.additions.scripts.messages import failed

CALL = "_compiled_call_impl"  # an attribute that a module calls first, if it has one
TABLES = lookup.toml(__package__, "hooks")
WRAPPED, USED, READ = TABLES["wrapped"], TABLES["used"], TABLES["read"]["names"]


def check() -> None:
    """Raises `RunFailed` if torch, perhaps a newer version, is not as the hooks expect."""
    if problem := next(_problems(), ""):
        raise failed("torch", version=torch.__version__, problem=problem)


def _problems() -> Iterator[str]:
    for place in (*WRAPPED, *USED, *USED.values(), *READ):
        try:
            resolve_name(place)
        except (ImportError, AttributeError):
            yield f"it has no {place}"
    for place, names in WRAPPED.items():
        for name in names.split():  # none are listed for functions in C, which have no signature
            if name not in inspect.signature(resolve_name(place)).parameters:
                yield f"{place} has no parameter {name}"
    for place, user in USED.items():
        if place.rpartition(".")[2] not in _names(inspect.unwrap(resolve_name(user)).__code__):
            yield f"{user} does not use {place}"


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*inner)


def wrapped(plain: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for `plain` that calls `function(plain, ...)`."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(plain, *args, **kwargs)

    return call


def around(holder: Any, name: str, function: Callable[..., Any]) -> None:
    """Wraps a function of a module or a class."""
    setattr(holder, name, wrapped(getattr(holder, name), function))


def wrap(place: str, function: Callable[..., Any]) -> None:
    """Wraps a function that is listed in `WRAPPED`."""
    assert place in WRAPPED, f"{place} is not checked"
    holder, _, name = place.rpartition(".")
    around(resolve_name(holder), name, function)


def listen(callback: Any, name: str) -> None:
    """Wraps functions of torch with methods of a callback, as `hooks.toml` lists them."""
    for place, method in TABLES["listeners"][name].items():
        wrap(place, getattr(callback, method))


class ModuleCalls:
    """Sees calls of modules by the attribute `CALL`: `torch.compile` would trace a patched `__call__`."""

    def __init__(self, unknown: Callable[..., Any]) -> None:
        self._unknown = unknown
        self.set_active(True)

    def set_active(self, is_active: bool) -> None:
        """Passes calls of modules without their own `CALL` to `unknown`, with the module first, or not."""
        setattr(torch.nn.Module, CALL, self if is_active else None)

    def __get__(self, module: Any, kind: type) -> Any:
        if module is None or torch.compiler.is_compiling() or torch._C._is_tracing():
            return None
        return functools.partial(self._unknown, module)
