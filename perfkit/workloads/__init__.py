"""What is trained. A workload is an object behind an importable name, `package.module:name`.

The protocol (`cifar_resnet18.py` is a complete example); `recipe` is a `perfkit.Recipe`, to use or ignore:

- `dataset(recipe)`: a map-style data set of `(input, target)` samples
- `model()`: the module to train
- `loss(outputs, targets)`: a scalar tensor
- `optimizer(parameters, **implementation)`: `implementation` is empty, `foreach=…` or `fused=…`
- `prepare(inputs, recipe)` (optional): work on the device between the copy and the model
- `offers` (optional): the switches it supports, of `uint8_copy`, `device_resize`, `scaled_decode`
  (checked by `rules.py`)
- `presets` (optional, on the class): constructor arguments by preset name
"""

import ast
import contextlib
import hashlib
import importlib
import inspect
from typing import Any

from perfkit import machine
from perfkit.errors import InvalidValue, WorkloadError, one_of

BUILT_IN = {
    "cifar_resnet18": "perfkit.workloads.cifar_resnet18:CifarResNet18",
    "photos": "perfkit.workloads.photos:Photos",
    "tiny_gpt": "perfkit.workloads.tiny_gpt:TinyGPT",
}

_REQUIRED = ("dataset", "model", "loss", "optimizer")


def reference(name: Any) -> str:
    """`package.module:name` for a built-in workload's short name or a reference."""
    text = name if isinstance(name, str) else f"__main__:{getattr(name, '__name__', type(name).__name__)}"
    if text.startswith("__main__:"):
        short_name = text.removeprefix("__main__:")
        raise InvalidValue(
            f"the workload {short_name} is not in a module",
            "Other processes build it, so it must be in a module: in a notebook begin its cell with "
            f"`%%writefile my_training.py`, then give workload='my_training:{short_name}'",
        )
    module, _, attribute = text.partition(":")
    if text not in BUILT_IN and not (module and attribute):
        raise one_of(text, list(BUILT_IN), "workload", see=", or your own as package.module:name")
    return BUILT_IN.get(text, text)


def declared(name: str, attribute: str) -> Any:
    """The value that a workload's class assigns to `offers` or `presets`; None if its source has none.

    The class is read from its file. Nothing is imported, not even the package of its module. A class without
    base classes that does not name the attribute has an empty set.
    """
    class_name = reference(name).partition(":")[2]
    try:
        for node in ast.parse(source(name)).body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                if not node.bases and attribute not in ast.unparse(node):
                    return set()
                lines = [line for line in node.body if isinstance(line, ast.Assign)]
                values = {ast.unparse(line.targets[0]): line.value for line in lines}
                value = values[attribute]
                if isinstance(value, ast.Call) and ast.unparse(value.func) in ("frozenset", "set"):
                    return ast.literal_eval(value.args[0]) if value.args else set()
                return ast.literal_eval(value)
    except (ImportError, OSError, SyntaxError, ValueError, LookupError):
        pass
    return None


def source(name: str) -> bytes:
    """The encoded code of a workload's module, found as an import would find it; else empty."""
    file = machine.module_file(reference(name).partition(":")[0])
    with contextlib.suppress(OSError):
        return file.read_bytes() if file else b""
    return b""


def digest(name: str) -> str | None:
    """The digest of the module's current code, without what it imports; None if the code is not found."""
    code = source(name)
    return hashlib.sha256(code).hexdigest() if code else None


def require_unchanged(name: str, code: str | None) -> None:
    """Refuses, with a `WorkloadError`, to train code that was changed after a measurement began."""
    if code and digest(name) != code:
        what = f"the code of {reference(name)} has changed since this measurement began"
        raise WorkloadError(what, "Measure again: the rounds would be of different programs")


def find(name: str) -> Any:
    """The class, function or object behind a workload's name."""
    module, _, attribute = reference(name).partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as problem:  # importing the user's module may raise anything
        missing = getattr(problem, "name", "")
        is_missing = missing == attribute or f"{module}.".startswith(f"{missing}.")
        what = f"workload '{name}' cannot be imported: {type(problem).__name__}: {problem}"
        remedy = f"Run `python -c 'from {module} import {attribute}'` in the same folder, and fix its error"
        if is_missing:
            raise InvalidValue(what, remedy) from problem
        raise WorkloadError(what, remedy) from problem


def load(name: str, options: dict[str, Any] | None = None) -> Any:
    """A workload, built with these constructor arguments. It must have every part of the protocol."""
    definition = find(name)
    try:
        workload = definition(**(options or {})) if callable(definition) else definition
    except Exception as problem:
        what = f"workload '{name}' cannot be built: {type(problem).__name__}: {problem}"
        raise WorkloadError(what, f"It was called with {options or 'no arguments'}") from problem
    if missing := [part for part in _REQUIRED if not callable(getattr(workload, part, None))]:
        what = f"workload '{name}' has no {', '.join(missing)}"
        raise WorkloadError(what, f"A workload needs: {', '.join(_REQUIRED)}")
    return workload


def options_for(definition: Any, preset: str, given: dict[str, Any]) -> dict[str, Any]:
    """The constructor arguments: those of the preset, overridden by those given."""
    if given and not callable(definition):
        raise InvalidValue(f"this workload takes no options, but was given {given}", "Leave the options out")
    parameters = inspect.signature(definition).parameters if given else {}
    for name in given:
        if name not in parameters and all(p.kind != p.VAR_KEYWORD for p in parameters.values()):
            raise one_of(name, list(parameters), "option of this workload")
    return dict(getattr(definition, "presets", {}).get(preset, {})) | given


def convolves(workload: Any) -> bool:
    """Whether its model convolves images; assumed if its layers cannot be built on the meta device."""
    import torch

    try:
        with torch.device("meta"):
            return any(isinstance(part, torch.nn.Conv2d) for part in workload.model().modules())
    except Exception:  # a model that needs real tensors may raise anything
        return True
