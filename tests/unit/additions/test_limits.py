"""Numbers in tables, which modules read as `LIMIT.name`: each name is in its table, and each one there is read."""

import ast
import functools
import importlib
from collections import defaultdict

import pytest

from perfkit.process.failures import PACKAGE

HOLDERS = ("LIMIT", "limits")  # names of the objects that have the numbers of a table as attributes


def read_in(path):
    """The expressions in a module whose value is such a number, such as `loading.LIMIT.longer`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] in HOLDERS:
            yield ast.unparse(node)


READ = {path: {*read_in(path)} for path in sorted(PACKAGE.joinpath("additions").rglob("*.py"))}
MODULES = {
    ".".join(["perfkit", *path.relative_to(PACKAGE).with_suffix("").parts]): names
    for path, names in READ.items()
    if names
}


def holder_and_name(module, expression):
    *parts, name = expression.split(".")
    return functools.reduce(getattr, parts, importlib.import_module(module)), name


@pytest.mark.parametrize("module", MODULES)
def test_a_number_that_a_module_reads_is_in_its_table(module):
    for expression in MODULES[module]:
        holder, name = holder_and_name(module, expression)
        assert hasattr(holder, name), expression


def test_each_number_of_a_table_is_read():
    read = defaultdict(set)  # by the names of the table, which two modules may share
    for module, expressions in MODULES.items():
        for expression in expressions:
            holder, name = holder_and_name(module, expression)
            read[frozenset(vars(holder))].add(name)
    assert len(read) > 10 and [sorted(table - names) for table, names in read.items() if table > names] == []
