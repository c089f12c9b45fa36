"""Torch is as the hooks expect; where it is not, a script is refused in words."""

import ast
import contextlib
import inspect
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from torch.utils.data import DataLoader

from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.loaders import Loaders
from perfkit.additions.scripts.training import Models, Updates
from perfkit.errors import RunFailed

FOLDER = Path(hooks.__file__).parent


def test_this_version_of_torch_is_as_expected():
    hooks.check()
    assert hasattr(DataLoader([1]), "_IterableDataset_len_called")
    assert DataLoader([1])._index_sampler
    assert hasattr(torch.autocast("cpu"), "_enabled") and hasattr(torch.autocast("cpu"), "fast_dtype")


def test_a_module_calls_what_is_put_in_the_place_of_its_compiled_call():
    model = torch.nn.Linear(1, 1)
    model.__dict__["_compiled_call_impl"] = lambda given: "seen"
    assert model(torch.ones(1)) == "seen"


def test_a_name_that_is_gone_is_named(monkeypatch):
    for place in {*hooks.WRAPPED, *hooks.USED, *hooks.READ}:

        def resolve(name, gone=place):
            if name == gone:
                raise AttributeError(name)

        with monkeypatch.context() as patched:
            patched.setattr(hooks, "resolve_name", resolve)
            with pytest.raises(RunFailed, match=rf"torch .* cannot be watched, because it has no {place}\."):
                hooks.check()


def test_a_parameter_that_is_gone_is_named(monkeypatch):
    monkeypatch.setattr(torch, "save", lambda obj, file: None)
    with pytest.raises(RunFailed, match="torch.save has no parameter f"):
        hooks.check()


def test_a_function_that_torch_uses_no_more_is_named(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "backward", lambda self: None)
    with pytest.raises(RunFailed, match=r"torch\.Tensor\.backward does not use torch\.autograd\.backward"):
        hooks.check()


def test_each_function_that_is_wrapped_has_a_listener():
    listened = {*hooks.TABLES["modes"], "torch.save", "torch.compile", "torch.utils.checkpoint.checkpoint"}
    listened |= {"torch.optim.Optimizer.zero_grad", "torch.nn.Module.zero_grad"}
    for name, part in {"loaders": Loaders, "samples": Loaders, "models": Models, "updates": Updates}.items():
        for place, method in hooks.TABLES["listeners"][name].items():
            assert callable(getattr(part, method)), f"{part.__name__} has no {method}"
            listened.add(place)
    assert listened == {*hooks.WRAPPED}


def test_a_wrapper_has_the_names_of_the_parameters_that_it_takes():
    """`torch.autograd.backward(tensors=[loss])` failed in the user's script: the wrapper called it `roots`."""
    checked = 0
    for name, part in {"loaders": Loaders, "samples": Loaders, "models": Models, "updates": Updates}.items():
        for place, method in hooks.TABLES["listeners"][name].items():
            _, _, *taken = inspect.signature(getattr(part, method)).parameters.values()  # self, and plain
            named = [each.name for each in taken if each.kind is each.POSITIONAL_OR_KEYWORD]
            with contextlib.suppress(ValueError):  # a function in C has no signature
                known = [*inspect.signature(resolve_name(place)).parameters]
                is_method = known[:1] in (["self"], ["_"])
                assert {*named[is_method:]} <= {*known}, place
                checked += 1
    assert checked > 15


def test_no_other_file_wraps_torch_or_imports_a_private_name_that_is_not_listed():
    for file in FOLDER.rglob("*.py"):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                for alias in node.names:
                    path = f"{node.module}.{alias.name}"
                    assert "._" not in path or path in hooks.READ, f"{file.name}: {path}"
