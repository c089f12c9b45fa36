"""Puzzles without a process: what is refused before one starts, and what is said if it ends by itself."""

import contextlib
from types import SimpleNamespace

import pytest

from perfkit.additions.puzzles import PuzzleVerdict, panel
from perfkit.additions.puzzles.panel import Puzzle, left_out, mystery, source_of, tasks
from perfkit.errors import InvalidValue, OutOfMemory, RunFailed, TookTooLong

STARTER = "def double(x):\n    return x\n"
PUZZLE = Puzzle(
    "double it", "01_baseline", 1, 5, "Write `double`.", STARTER, ("a", "b", "c"), "assert double(2) == 4"
)


@pytest.fixture
def asked(monkeypatch):
    """The `calls` that a process would get, and its `answer`: an exception is raised."""
    process = SimpleNamespace(calls=[], answer=PuzzleVerdict(True, "Right", ["2 became 4"]))

    def ask(question, reference, arguments):
        assert question == "call"
        process.calls.append((reference, *arguments))
        if isinstance(process.answer, Exception):
            raise process.answer
        return process.answer

    child = SimpleNamespace(ask=ask)
    monkeypatch.setattr(panel, "Child", lambda timeout_s: contextlib.nullcontext(child))
    return process


@pytest.mark.parametrize("same", [STARTER, "# mine\ndef double(x): return x"])
def test_the_starter_in_any_layout_is_not_judged(same, asked):
    assert PUZZLE.check(same).sentence == "This is still the starter: your turn" and asked.calls == []


@pytest.mark.parametrize("more", ["double = twice", "DECAY = 0.9", "import fast", "config.dynamic = True"])
def test_a_line_at_module_level_may_be_the_answer(more, asked):
    for answer in (STARTER + more, f"{more}\n{STARTER}"):
        assert PUZZLE.check(answer).right and asked.calls[-1][2] == answer


def test_in_cells_the_starter_may_be_among_other_definitions(shell, asked):
    for cell in (STARTER, "import math\nprint(1)\nSIZE = 3"):
        shell.run_cell(cell, store_history=True)
    double = shell.user_ns["double"]
    assert PUZZLE.check(double).sentence == "This is still the starter: your turn" and asked.calls == []
    shell.run_cell("def double(x):\n    return 2 * x", store_history=True)
    assert PUZZLE.check(double).right


def test_the_source_from_cells_has_annotated_constants_and_lambdas(shell):
    cell = "SCALE: float = 2\nsize: int\ndouble = lambda x: SCALE * x\nDEVICE = str(3)\n"
    cell += "class Best: ...\nbest: Best = None\nlater = lambda x=DEVICE: x"  # Best and DEVICE come later, or never
    shell.run_cell(cell, store_history=True)
    source = source_of((shell.user_ns["double"],))
    assert source == "SCALE = 2\n\ndouble = lambda x: SCALE * x\n\nbest = None\n\nclass Best:\n    ..."


def test_an_answer_is_judged_with_the_puzzle_s_checks(asked):
    answer = "def double(x):\n    return 2 * x\n"
    assert repr(PUZZLE.check(answer)) == "✓ Right.\n2 became 4"
    assert asked.calls == [("perfkit.additions.puzzles.judge:judge", PUZZLE.checks, answer, STARTER)]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            RunFailed("it ended with exit status 3"),
            "ended the process that ran it: it ended with exit status 3.",
        ),
        (OutOfMemory("no memory is left"), "ended the process that ran it: no memory is left."),
        (TookTooLong("60 s"), "did not end within 60 seconds: is there an endless loop?"),
    ],
)
def test_a_process_that_ends_by_itself_is_an_answer_that_is_wrong(failure, words, asked):
    asked.answer = failure
    verdict = PUZZLE.check("def double(x):\n    return 3 * x\n")
    assert repr(verdict) == f"✗ Not yet: Your answer {words}"


def test_a_process_that_cannot_be_started_is_no_answer(asked, monkeypatch):
    def child(timeout_s):
        raise RunFailed("no measuring process could be started: No space left on device", "Free some")

    monkeypatch.setattr(panel, "Child", child)
    with pytest.raises(RunFailed, match="No space left on device"):
        PUZZLE.check("def double(x):\n    return 3 * x\n")


@pytest.mark.parametrize("given", [(), (3,), (len,), ("a", "b")])
def test_what_no_cell_has_defined_is_refused(given):
    with pytest.raises(InvalidValue, match="check was given"):
        source_of(given)


def test_only_what_is_written_as_texts_is_left_out():
    assert left_out('import torch\nLEFT_OUT = {"compiled": "0.9x as fast"}') == {"compiled": "0.9x as fast"}
    for other in (
        "",
        "LEFT_OUT = make()",
        "LEFT_OUT = ['compiled']",
        "LEFT_OUT = {",
        "OTHER = {'a': 'b'}",
        "LEFT_OUT = {['a']: 'b'}",
    ):
        assert left_out(other) == {}


def test_every_puzzle_is_complete_and_its_code_can_be_read():
    assert len(tasks()) > 10
    for name, task in tasks().items():
        compile(task.checks, name, "exec")
        compile(task.starter, name, "exec")
        assert task.title and task.statement and 1 <= task.stars <= 3 and task.minutes and task.hints, name


def test_a_mystery_is_copied_once_and_asks_for_an_edit(tmp_path, monkeypatch, asked):
    monkeypatch.chdir(tmp_path)
    name = next(name for name, task in tasks().items() if task.chapter == panel.MYSTERIES)
    file = tmp_path / f"my_{name}.py"
    assert mystery(name) is tasks()[name] and file.read_text(encoding="utf-8") == tasks()[name].starter
    file.write_text("def main():\n    pass\n")
    assert mystery(name).right and asked.calls[-1][2] == "def main():\n    pass\n"
    assert file.read_text() == "def main():\n    pass\n", "it is the learner's now"
    file.write_bytes(b"# caf\xe9\n")
    with pytest.raises(InvalidValue, match="is not in UTF-8"):
        mystery(name)
