"""The shape of the house: no cycle of files, additions that can be taken out, and tests that are all run."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import perfkit
from perfkit import registry
from tests.conftest import LONGEST

ROOT = Path(__file__).parents[2]
PATHS = [path.relative_to(ROOT) for path in (ROOT / "perfkit").rglob("*.py")]
FILES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): ROOT / path for path in PATHS}


def imported(text, modules):
    """Which of these modules a file imports, also inside functions and for types only."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules else node.module for name in inner}
    return {name for name in names if name in modules}


def imports(module):
    """The modules of perfkit that a file imports."""
    return imported(FILES[module].read_text(encoding="utf-8"), FILES) - {module}


def test_no_file_imports_itself_through_others():
    assert len(FILES) > 50
    TopologicalSorter({module: imports(module) for module in FILES}).prepare()  # raises a CycleError


OTHER_PROCESS = {"perfkit.process.zygote"}
"""A zygote names what runs in the processes that it forks: theirs is the only import."""
TABLES = {"perfkit", "perfkit.cli", "perfkit.notebook"}
"""Tables of names, of which each is imported when it is used."""


def layers():
    """The layer of each folder or file of the core, counted from the top, as import-linter checks them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    names = [layer.split("|") for layer in contracts[0]["layers"]]
    return {name.strip(): number for number, layer in enumerate(names) for name in layer}


def named(module):
    """The modules of perfkit that strings in the code of a file name, such as `perfkit.recipe:Recipe`."""
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and re.fullmatch(r"perfkit(\.\w+)+(:\w+)?", str(node.value)):
            yield node.value.partition(":")[0]


def test_the_core_names_no_layer_above_in_a_string_and_no_addition():
    layer = layers()
    seen = 0
    for module in FILES:
        if module.startswith("perfkit.additions"):
            continue
        for place in named(module):
            seen += 1
            assert place in FILES and not place.startswith("perfkit.additions"), f"{module} names {place}"
            if module not in OTHER_PROCESS | TABLES:
                below, above = place.split(".")[1], module.split(".")[1]
                assert layer[above] <= layer[below], f"{module} names {place}"
    assert seen > 20


def may_name(own, place, layer):
    """Whether an addition may name this module in a string: one of its own, or one that it may import."""
    other = place.removeprefix("perfkit.additions.").partition(".")[0]
    return other == own or not place.startswith("perfkit.additions.") or layer[own] < layer[other]


def test_an_addition_names_in_strings_only_what_it_may_import():
    """Else it must be asked for by a table: the folder of what is named can be deleted."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers_of_additions = [re.split(r" \| ", layer) for layer in contracts[1]["layers"]]
    layer = {name: number for number, names in enumerate(layers_of_additions) for name in names}
    seen = 0
    for module in FILES:
        if not module.startswith("perfkit.additions.") or module.count(".") < 3:
            continue
        own = module.split(".")[2]
        for place in named(module):
            seen += 1
            assert may_name(own, place, layer), f"{module} names {place}"
    assert seen > 10
    assert may_name("referee", "perfkit.additions.scripts.study", layer)
    assert not may_name("scripts", "perfkit.additions.referee.match", layer)
    assert layer["puzzles"] < layer["referee"] < layer["scripts"] < layer["shared"]


def test_the_seam_s_docstring_has_every_table_of_an_addition_and_no_other():
    asked = r'registry\.(?:table|first_answer)\("(\w+)"'
    tables = {name for file in FILES.values() for name in re.findall(asked, file.read_text("utf-8"))}
    assert tables == set(re.findall(r"^    (\w+) = \{", registry.__doc__, re.MULTILINE))
    for name in tables:
        assert f"`{name}`" in (ROOT / "docs/ARCHITECTURE.md").read_text("utf-8"), name


NAMED_ONLY = {
    "tests.unit.cli.test_command", "tests.unit.process.test_lock", "tests.unit.program.test_export",
    "tests.unit.results.test_run",
}  # fmt: skip
"""Unit tests of the core that name a place of an addition, and need nothing there."""


def test_no_unit_test_of_the_core_imports_an_addition_or_asks_for_its_runs():
    """Not even by way of other tests: they stay when the folder of an addition is deleted."""
    tests = {}
    for file in (ROOT / "tests").rglob("*.py"):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        tests[name] = file.read_text(encoding="utf-8")
    waiting = [name for name in tests if re.match(r"tests\.unit\.(?!additions\.)", name)]
    assert len(waiting) > 40
    elsewhere = rf'"({"|".join(registry.table("SOURCES"))}):'
    assert {name for name in waiting if re.search(elsewhere, tests[name])} == NAMED_ONLY
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        assert "perfkit.additions" not in tests[name], name
        further = imported(tests[name], tests) - seen
        seen |= further
        waiting += further
    assert "tests.support.toy" in seen


@pytest.mark.integration
def test_the_core_works_without_any_addition(tmp_path):
    """Their folders are removed in a copy: every module of the core is imported there, and the commands listed."""
    gone = shutil.ignore_patterns("__pycache__", "additions")
    shutil.copytree(ROOT / "perfkit", tmp_path / "perfkit", ignore=gone)
    program = (
        "import importlib, pkgutil, sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f)]\n"  # it knows the checkout
        "import perfkit.notebook\n"
        "from perfkit import registry\n"
        "assert not registry.present()\n"
        "for module in pkgutil.walk_packages(perfkit.__path__, 'perfkit.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        "dir(perfkit.notebook)\n"
        "from perfkit.cli import app\n"
        "sys.argv = ['perfkit', '--help']; app()\n"
    )
    at = {"cwd": tmp_path, "env": {"PYTHONPATH": str(tmp_path)}}
    done = subprocess.run([sys.executable, "-c", program], **at, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "compare" in done.stdout and not {"watch", "memory"} & {*done.stdout.split()}


def test_a_file_of_the_core_may_be_the_first_that_is_imported():
    """A watched script begins inside: a name that is looked up in perfkit must not load what is loading."""
    program = "import perfkit.results.run; from perfkit import registry; print(*registry.present())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("__init__.py") == done.stdout.count("<module")


def test_every_public_name_is_there_and_documented():
    assert 9 <= len(perfkit.__all__) <= 20
    for name in perfkit.__all__:
        assert getattr(perfkit, name).__doc__


def test_no_file_is_long():
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_the_suite_runs_every_test_file():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    paths = [ROOT / path for path in settings["tool"]["pytest"]["ini_options"]["testpaths"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-j 2 checks pytest double" in makefile and "pytest -n 0 tests/double" in makefile
    paths.append(ROOT / "tests" / "double")  # a test run of its own
    files = list((ROOT / "tests").rglob("test_*.py"))
    assert len(files) > 50
    assert [file for file in files if not any(file.is_relative_to(path) for path in paths)] == []
    assert [name for name in LONGEST if ROOT / "tests" / name not in files] == []


@pytest.mark.integration
def test_a_script_s_way_in_can_be_imported_first():
    """A watched script imports it alone; what additions share must not be taken for an addition meanwhile."""
    way_in = "import perfkit.additions.scripts.script"
    done = subprocess.run(
        [sys.executable, "-c", way_in], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
