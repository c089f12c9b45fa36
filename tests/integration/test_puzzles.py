"""Puzzles, mysteries, the capstone: right answers pass; wrong ones, cheats and crashes get one sentence."""

import ast
import re
import tomllib
import types
from contextlib import suppress
from pathlib import Path

import jupytext
import pytest
import torch

from perfkit import notebook as pk
from perfkit.additions.puzzles import folder, judge
from perfkit.additions.puzzles import panel as puzzles
from perfkit.additions.puzzles.panel import MYSTERIES, source_of, tasks
from perfkit.errors import InvalidValue
from perfkit.results import parity
from perfkit.results.parity import Check

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "notebooks" / "src"
PUZZLES = {name: task for name, task in tasks().items() if task.chapter != MYSTERIES}
MYSTERY_NAMES = [name for name in tasks() if name not in PUZZLES]
SOLUTIONS = jupytext.read(SOURCES / "puzzles" / "solutions.py").cells
WRONG = jupytext.read(ROOT / "tests" / "data" / "wrong_answers.py").cells
CHEATS = tomllib.loads((ROOT / "tests" / "data" / "puzzle-cheats.toml").read_text(encoding="utf-8"))
LESS = """
whole = train
def train(count, *more):
    return whole(count - 1, *more)
"""
PREFETCHER = """
from perfkit.program import prefetched
def prefetch(batches, device):
    yield from (batch for (batch,) in prefetched(([batch] for batch in batches), device))
"""


@pytest.fixture(autouse=True)
def _usual_autograd():
    """The slow capstone leaves the detection of anomalies on, which a forked process would take over."""
    yield
    torch.autograd.set_detect_anomaly(False)


def judged_as(name, answer):
    return judge.judge(tasks()[name].checks, answer, tasks()[name].starter)


def answers():
    """The right answers of the solutions and wrong ones, with the cell of imports before: puzzle, kind, source."""
    imports, *cells = [cell for cell in SOLUTIONS if cell.cell_type == "code"]
    for cell in [*cells, *(cell for cell in WRONG if cell.metadata.get("tags"))]:
        name, kind = cell.metadata["tags"]
        yield name, kind, f"{imports.source}\n{cell.source}"


def mended(name):
    """A mystery's script with the edit of the solutions: runs of lines that go, and what comes instead."""
    script = tasks()[name].starter
    text = "\n".join(cell.source for cell in SOLUTIONS if cell.cell_type == "markdown")
    (diff,) = re.findall(rf"\*\*`{name}`\.\*\*.+?```diff\n(.+?)```", text, re.DOTALL)
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", diff, re.MULTILINE):
        lines = re.sub("^-", "", old, flags=re.MULTILINE)
        assert script.count(lines) == 1
        script = script.replace(lines, re.sub(r"^\+", "", new, flags=re.MULTILINE))
    return script


def cheat(name):
    """Its own code, or the honest loop with the cheat in it."""
    changed = {**CHEATS["honest"], **CHEATS[name]}
    return changed.get("source") or changed["before"] + changed["loop"].format(**changed)


def cases():
    """Puzzle, answer, and what it is told; None where it is right."""
    for name in tasks():
        yield name, tasks()[name].starter, ""
    for name, kind, source in answers():
        yield name, source, re.search(r"^# says: (.+)$", source, re.M)[1] if kind == "wrong" else None
    for name in MYSTERY_NAMES:
        yield name, mended(name), None
    for name, one in CHEATS.items():
        yield one.get("puzzle", "waits"), cheat(name), one.get("says")
    yield "three_copies", mended("three_copies") + LESS, "should return"
    yield "prefetcher", PREFETCHER, None


@pytest.mark.parametrize(
    ("name", "answer", "says"),
    [pytest.param(*case, id=f"{case[0]}-{number}") for number, case in enumerate(cases())],
)
def test_an_answer_is_judged(name, answer, says, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name == "waits")  # where there is a GPU, too
    judged = judged_as(name, answer)
    if says is None:
        assert judged.right and judged.proofs, judged.sentence
    else:
        assert not judged.right and says in judged.sentence
        assert len(judged.sentence) > 20 and "\n" not in judged.sentence
        assert "Traceback" not in judged.sentence and "perfkit/" not in judged.sentence


def test_a_mystery_may_be_solved_by_the_setting_that_torch_s_log_names(monkeypatch):
    monkeypatch.setattr(torch._dynamo.config, "allow_unspec_int_on_nn_module", False)  # as it is afterwards
    setting = "import torch._dynamo\ntorch._dynamo.config.allow_unspec_int_on_nn_module = True\n"
    judged = judged_as("compiled", setting + tasks()["compiled"].starter)
    assert judged.right and judged.proofs, judged.sentence


def test_every_puzzle_has_a_right_answer_and_two_wrong_ones_and_every_mystery_a_cell():
    for kind, least in (("right", 1), ("wrong", 2)):
        named = [name for name, own, _ in answers() if own == kind]
        assert [*dict.fromkeys(named)] == [*PUZZLES]
        assert not [name for name in PUZZLES if named.count(name) < least]
    text = (SOURCES / "puzzles" / "mysteries.py").read_text(encoding="utf-8")
    named = re.findall(r'pk\.mystery\("(\w+)"\)', text)
    assert named == MYSTERY_NAMES


@pytest.mark.parametrize("name", PUZZLES)
def test_a_puzzle_says_how_it_is_checked_and_stands_in_its_chapter_with_its_starter(name):
    task = PUZZLES[name]
    assert "*Checked" in task.statement
    assert len(set(task.hints)) == 3
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


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("while True:\n        pass", "is there an endless loop?"),
        ("__import__('os')._exit(3)", "ended the process"),
        ("yield 1 < lenght", "`yield 1 < lenght` raised NameError"),
        ("return [] +", "Python cannot read line 2"),
        ("while True:\n        yield from torch.randperm(length, generator=generator).tolist()", ""),
    ],
)
def test_an_answer_leaves_one_sentence_or_its_proof(body, says, monkeypatch):
    if "pass" in body:
        monkeypatch.setattr(puzzles, "LIMIT_S", 4.0)
    verdict = pk.puzzle("infinite_sampler").check(f"def endless(length, generator):\n    {body}")
    assert verdict.right == (not says)
    assert says in verdict.sentence
    if verdict.right:
        assert "five epochs" in repr(verdict)
        assert repr(verdict).startswith("✓ Right.")


def test_a_puzzle_shows_its_hints_folded_and_refuses_what_is_no_answer():
    with pytest.raises(InvalidValue, match="Did you mean 'loader'"):
        pk.puzzle("loadr")
    one = pk.puzzle("loader")
    assert one._repr_markdown_().count("<details>") == 3
    assert "`loader`" in pk.puzzles().data
    for given in ((), (3,), (len,)):
        with pytest.raises(InvalidValue, match="check"):
            one.check(*given)


@pytest.mark.usefixtures("no_orphans")
def test_a_mystery_is_a_file_to_edit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "the device is idle" in repr(pk.mystery("gpu_waits"))
    file = tmp_path / "my_gpu_waits.py"
    script = file.read_text()
    assert isinstance(pk.mystery("gpu_waits"), puzzles.Puzzle)
    file.write_text(script, encoding="utf-8-sig")
    assert isinstance(pk.mystery("gpu_waits"), puzzles.Puzzle), "a byte order mark is no edit"
    file.write_text(script.replace("log.debug(", "(lambda _: None)("))
    assert "the host waits 32 times" in repr(pk.mystery("gpu_waits"))
    file.write_text(re.sub("log.debug.*", "", script))
    assert getattr(pk.mystery("gpu_waits"), "right", False)
    with pytest.raises(InvalidValue, match="unknown mystery 'loader'"):
        pk.mystery("loader")


CAPSTONE = jupytext.read(SOURCES / "puzzles" / "capstone_solution.py").cells
(SOLUTION,) = [cell.source for cell in CAPSTONE if cell.cell_type == "code"]
SCRIPTS = {"slow": (folder() / "capstone.py").read_text(encoding="utf-8"), "solution": SOLUTION}
LEVERS = ["workers decode", "batches are uint8", "layers compute in 16 bits", "compiled"]
AUTOCAST = 'torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda")'


class _Enough(Exception):
    """Some backward passes are done."""


def losses(source, count, monkeypatch):
    """The losses of the first backward passes of a script's `main`."""
    seen = []
    backward = torch.Tensor.backward

    def counted(loss):
        if len(seen) == count:
            raise _Enough
        seen.append(loss.item())
        backward(loss)

    scope = {"__name__": "capstone"}
    exec(source, scope)
    scope["Photos"].__init__.__defaults__ = 128, 1  # drawing all of them takes longer than training
    with monkeypatch.context() as patch, torch.autograd.set_detect_anomaly(False), suppress(_Enough):
        patch.setattr(torch.Tensor, "backward", counted)
        patch.setattr(torch, "compile", lambda function: function)
        scope["main"]()
    return seen


def test_the_solution_trains_as_the_slow_script(monkeypatch):
    slow = losses(SCRIPTS["slow"], 32, monkeypatch)
    steps = [sum(slow[:16]), sum(slow[16:])]
    check = parity.check_losses(losses(SOLUTION, 2, monkeypatch), steps, "tolerance", sixteen_bits=False)
    assert check.ok, check.evidence


@pytest.mark.parametrize(
    ("script", "old", "new", "missing"),
    [
        ("slow", "", "", LEVERS),
        ("solution", "", "", []),
        ("solution", "num_workers=workers,\n        persistent_workers=True", "num_workers=0", LEVERS[:1]),
        ("solution", ".permute(2, 0, 1)", ".permute(2, 0, 1).float()", LEVERS[1:2]),
        ("solution", AUTOCAST, "contextlib.nullcontext()", LEVERS[2:3]),
        ("solution", "@torch.compile", "", LEVERS[3:]),
    ],
)
def test_each_lever_is_seen_in_what_the_script_does(script, old, new, missing):
    source = SCRIPTS[script].replace("count=512", "count=64").replace(old, new)
    seen = judge.levers(f"import contextlib\n{source}")
    assert [name for name, in_effect in seen.items() if not in_effect] == missing


def test_the_first_call_makes_the_copy_and_measures_nothing(tmp_path):
    file = tmp_path / "mine.py"
    for _ in range(2):
        assert "Edit it" in pk.capstone(file).data
        assert file.read_text(encoding="utf-8") == SCRIPTS["slow"]


def test_a_lever_counts_if_it_is_in_effect_or_left_out_with_a_measurement():
    ratio = types.SimpleNamespace(ratio=0.8, low=0.7, high=0.9)
    compared = types.SimpleNamespace(ratio=ratio, describe=lambda: "")
    levers = {name: name != "compiled" for name in LEVERS}
    for reason, points in (("slower here", "60%"), ("0.92 times as fast", "80%")):
        source = f"import torch\nLEFT_OUT = {{'compiled': {reason!r}}}\n"
        shown = puzzles.score(
            compared, compared, Check("losses", True, "equal"), levers, puzzles.left_out(source)
        )
        assert f"Score: {points}" in shown[0].text
    assert puzzles.left_out("LEFT_OUT = make()") == puzzles.left_out("LEFT_OUT = [1]") == {}
