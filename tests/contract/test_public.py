"""The public names: what a stub says of them is what is loaded, and a user's editor and type checker see it."""

import ast
from functools import cache
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter

import perfkit
from perfkit import notebook, registry

TABLES = {
    "perfkit/__init__.pyi": registry.table("PUBLIC") | perfkit._CORE,
    "perfkit/notebook/__init__.pyi": registry.table("NOTEBOOK") | notebook._CORE,
}


@pytest.mark.parametrize("stub", TABLES)
def test_a_stub_names_what_is_loaded(stub):
    found, renamed = {}, {}
    for node in ast.parse((Path(perfkit.__file__).parents[1] / stub).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name: f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign):
            renamed[node.targets[0].id] = found.pop(node.value.id)
    assert found | renamed == TABLES[stub]


def test_what_a_star_imports_what_is_listed_and_what_the_stub_names_are_the_same():
    names = {}
    exec("from perfkit import *", names)
    names.pop("__builtins__")
    stub = {*TABLES["perfkit/__init__.pyi"], "__version__"}
    assert {*names} == {*perfkit.__all__} == {*dir(perfkit)} == stub
    assert {*dir(notebook)} == {*TABLES["perfkit/notebook/__init__.pyi"]}


@cache
def defined():
    """The functions and classes of the studies: their names by module."""
    files = (Path(perfkit.__file__).parent / "studies").glob("*.py")
    bodies = {file.stem: ast.parse(file.read_text("utf-8")).body for file in files}
    return {stem: {node.name for node in body if hasattr(node, "name")} for stem, body in bodies.items()}


@pytest.mark.parametrize("name", perfkit._CORE)
def test_a_public_name_is_no_other_function_or_class_of_the_studies(name):
    module, _, _ = perfkit._CORE[name].partition(":")
    for stem, names in defined().items():
        assert name not in names or module == f"perfkit.studies.{stem}", stem


def test_a_users_type_checker_finds_them():
    """What it says of them is in `tests/support/typed.py`."""
    assert (Path(perfkit.__file__).parent / "py.typed").is_file()


def test_a_notebook_completes_them(shell):
    shell.run_cell("import perfkit; from perfkit import notebook as pk").raise_error()
    for text, name in (("perfkit.com", "compare"), ("pk.Sta", "StagePanel"), ("pk.Work", "Workbench")):
        with provisionalcompleter():
            found = [each.text.lstrip(".") for each in shell.Completer.completions(text, len(text))]
        assert name in found


@pytest.mark.parametrize("name", perfkit._CORE)
def test_a_public_name_is_the_name_of_what_it_loads(name):
    assert getattr(perfkit, name).__name__ == name
