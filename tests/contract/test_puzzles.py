"""Every puzzle: its parts, a right answer that passes, two wrong ones and the cheats that do not."""

import ast
import re
import tomllib
from pathlib import Path

import jupytext
import pytest

from perfkit.puzzles.judge import judge
from perfkit.puzzles.panel import MYSTERIES, source_of, tasks

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "notebooks" / "src"
SOLUTIONS = SOURCES / "puzzles" / "solutions.py"

PUZZLES = {name: task for name, task in tasks().items() if task.chapter != MYSTERIES}
each_puzzle = pytest.mark.parametrize(("name", "task"), PUZZLES.items(), ids=list(PUZZLES))
each_mystery = pytest.mark.parametrize("name", sorted(tasks().keys() - PUZZLES))


@each_puzzle
def test_a_puzzle_says_how_it_is_checked_and_its_starter_does_not_pass(name, task):
    assert "*Checked" in task.statement
    assert len(set(task.hints)) == 3
    assert_helps(judge(task.checks, task.starter))


def mended(name):
    """A mystery's script with the edit of the solutions: runs of lines that go, and what comes instead."""
    script = tasks()[name].starter
    text = "\n".join(cell.source for cell in jupytext.read(SOLUTIONS).cells if cell.cell_type == "markdown")
    (diff,) = re.findall(rf"\*\*`{name}`\.\*\*.+?```diff\n(.+?)```", text, re.DOTALL)
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", diff, re.MULTILINE):
        lines = re.sub("^-", "", old, flags=re.MULTILINE)
        assert script.count(lines) == 1
        script = script.replace(lines, re.sub(r"^\+", "", new, flags=re.MULTILINE))
    return script


@each_mystery
def test_a_mystery_is_solved_by_its_solution_and_by_nothing_else(name):
    task = tasks()[name]
    assert_helps(judge(task.checks, task.starter, task.starter))
    judged = judge(task.checks, mended(name), task.starter)
    assert judged.right and judged.proofs, judged.sentence


def test_fewer_steps_solve_no_mystery():
    task = tasks()["three_copies"]
    less = "\nwhole = train\ndef train(count, *more):\n    return whole(count - 1, *more)"
    judged = judge(task.checks, mended("three_copies") + less, task.starter)
    assert_helps(judged)
    assert "should return" in judged.sentence or "asked for" in judged.sentence


def test_every_mystery_has_a_cell():
    cells = [cell.source for cell in jupytext.read(SOURCES / "puzzles" / "mysteries.py").cells]
    named = re.findall(r'pk\.mystery\("(\w+)"\)', "\n".join(cells))
    assert named == [name for name, task in tasks().items() if task.chapter == MYSTERIES]


def assert_helps(judged):
    """The answer is refused, in one line that is neither ours nor empty."""
    assert not judged.right
    assert len(judged.sentence) > 20 and "\n" not in judged.sentence
    assert "Traceback" not in judged.sentence and "perfkit/" not in judged.sentence


def answers(kind):
    """Every answer of a kind, with the cell of imports before it."""
    cases, count = [], {}
    imports, *cells = [cell for cell in jupytext.read(SOLUTIONS).cells if cell.cell_type == "code"]
    for cell in cells:
        name, own = cell.metadata["tags"]
        if own == kind:
            count[name] = count.get(name, 0) + 1
            source = f"{imports.source}\n{cell.source}"
            cases.append(pytest.param(name, source, id=f"{name}-{count[name]}"))
    return cases


@pytest.mark.parametrize(("name", "source"), answers("right"))
def test_a_right_answer_passes(name, source):
    judged = judge(tasks()[name].checks, source)
    assert judged.right, judged.sentence
    assert judged.proofs


@pytest.mark.parametrize(("name", "source"), answers("wrong"))
def test_a_wrong_answer_is_told_its_mistake(name, source):
    judged = judge(tasks()[name].checks, source)
    (says,) = re.findall(r"^# says: (.+)$", source, re.MULTILINE)
    assert says in judged.sentence
    assert_helps(judged)


def test_every_puzzle_has_a_right_answer_and_two_wrong_ones():
    for kind, least in (("right", 1), ("wrong", 2)):
        named = [case.values[0] for case in answers(kind)]
        assert [*dict.fromkeys(named)] == [*PUZZLES]
        assert not [name for name in PUZZLES if named.count(name) < least]


def test_the_prefetcher_of_perfkit_solves_the_puzzle_that_asks_for_one():
    """Every batch, none read before its copy has ended, one copied ahead, and copies beside kernels."""
    answer = """
from perfkit.prefetch import prefetched
def prefetch(batches, device):
    yield from (batch for (batch,) in prefetched(([batch] for batch in batches), device))
"""
    judged = judge(tasks()["prefetcher"].checks, answer)
    assert judged.right, judged.sentence


CHEATS = tomllib.loads((ROOT / "tests" / "data" / "puzzle-cheats.toml").read_text(encoding="utf-8"))


def answer(cheat):
    """The cheat's own code, or the honest loop with the cheat in it."""
    if "source" in cheat:
        return cheat["source"]
    changed = {**CHEATS["honest"], **cheat}
    return str(changed["before"] + changed["loop"].format(**changed))


def test_the_honest_loop_passes():
    assert judge(tasks()["waits"].checks, answer({})).right


@pytest.mark.parametrize("name", sorted(CHEATS.keys() - {"honest"}))
def test_a_cheat_is_refused(name):
    cheat = CHEATS[name]
    judged = judge(tasks()[cheat.get("puzzle", "waits")].checks, answer(cheat))
    assert cheat["says"] in judged.sentence
    assert_helps(judged)


@each_puzzle
def test_a_puzzle_stands_in_its_chapter_with_its_starter(name, task):
    cells = [cell.source for cell in jupytext.read(SOURCES / f"{task.chapter}.py").cells]
    assert f'pk.puzzle("{name}")' in cells
    (cell,) = [source for source in cells if f'pk.puzzle("{name}").check(' in source]
    written = cell[: cell.index("pk.puzzle(")]
    assert ast.dump(ast.parse(written)) == ast.dump(ast.parse(task.starter))


def test_an_answer_is_collected_from_the_cells_that_define_it(shell):
    cells = [
        "import math as maths\nfrom torch import nn\nWIDTH = 4",
        "def twice(x):\n    return maths.floor(x) * 2",
        "class Net(nn.Module):\n    def wrong(self): ...\nclass Net(",
        "class Net(nn.Module):\n    size = WIDTH\n    def forward(self, x):\n        return twice(x)\nprint('not')",
    ]
    for cell in cells:
        shell.run_cell(cell, store_history=True)
    source = source_of((shell.user_ns["Net"],))
    assert "print" not in source and "wrong" not in source
    scope = {}
    exec(source, scope)
    assert scope["Net"]()(2.5) == 4 and scope["Net"].size == 4
