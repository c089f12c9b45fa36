"""Tables of causes: what their sentences need is given where they are said, else watching would end there."""

import ast
import tomllib
from pathlib import Path

import jinja2
import pytest
from jinja2 import meta

from perfkit.additions.advice.finding import UNITS
from perfkit.additions.ranks import causes as of_ranks
from perfkit.additions.scripts.causes import loading, outside, steps

MODULES = [of_ranks, loading, outside, steps]


def needed(row):
    """The facts in its sentences."""
    words = jinja2.Environment()
    words.filters |= UNITS
    return meta.find_undeclared_variables(words.parse(row["seen"] + row["change"])) - {"share"}


def said(module):
    """The names of causes in its code, each with the facts that are given there."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "found":
            given = {keyword.arg for keyword in node.keywords}
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.Constant) and None not in given:  # `**facts` may have anything
                    yield part.value, given


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_sentence_has_the_facts_that_it_needs(module):
    rows = tomllib.loads(Path(module.__file__).with_suffix(".toml").read_text())
    known = dict(said(module))
    assert len(known) > 1 and {*known} <= {*rows}
    assert {name for name, facts in known.items() if needed(rows[name]) - facts} == set()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_row_has_its_sentences_and_a_known_kind(module):
    rows = tomllib.loads(Path(module.__file__).with_suffix(".toml").read_text())
    for name, row in rows.items():
        if name != "limits":
            assert {"seen", "change"} <= {*row} <= {"seen", "change", "kind", "urgency", "limit"}, name
            assert row.get("kind", "time") in ("time", "waste", "memory", "data"), name
