"""Puzzles: the learner writes a few lines of training code, and a separate process checks them.

A puzzle is data: a table in `data/puzzles/puzzles.toml`, and two files of Python, its starter and its checks.
A mystery's starter is its script. An answer runs in a measuring process, not in the notebook's kernel, so
that an endless loop, a crash, or a patched clock ends with that process.
"""

import ast
import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec.toml
from IPython.core.getipython import get_ipython
from IPython.display import Markdown

from perfkit.additions.puzzles import PuzzleVerdict, folder
from perfkit.additions.referee.match import Terms, two_scripts
from perfkit.additions.scripts.watched import Launch
from perfkit.additions.shared import kept
from perfkit.errors import InvalidValue, RunFailed, TookTooLong, one_of
from perfkit.notebook.shown import Shown, with_line
from perfkit.process.child import Child, call
from perfkit.results import Check, Comparison, warning_store
from perfkit.show import units
from perfkit.show.document import Content, Notice, Table
from perfkit.studies.sources import Progress

MYSTERIES = "puzzles/mysteries"
_JUDGE = "perfkit.additions.puzzles.judge"
LIMIT_S, LEVERS_S = 60.0, 120.0
"""Time limits of an answer and of the capstone. The checks of a right answer take a few seconds."""
BUDGET_S, PRECISION = 30.0, 0.03  # of a comparison of the capstone


class Puzzle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A puzzle as it is written. A cell that ends with it shows the question."""

    title: str
    chapter: str  # that explains what is needed: a file in `notebooks/`, without its suffix
    stars: int
    minutes: int  # for a learner who has read the chapter
    statement: str  # markdown
    starter: str  # Python: a frame for the answer, which runs but is wrong
    hints: tuple[str, ...]  # from a nudge to nearly the answer
    checks: str  # Python, with the tools of `data/puzzles/bench.py`; they have a sentence for each mistake

    def check(self, *answer: object) -> PuzzleVerdict:
        """Runs the answer in a separate process, and says whether it is right and, if not, why.

        The answer is the functions or classes that the starter defines, or all its code as one string.
        """
        source = source_of(answer)
        own, starter = _nodes(source), _nodes(self.starter)
        is_from_cells = not isinstance(answer[0], str)  # then it has the whole notebook's definitions
        if own == starter or (is_from_cells and set(starter).issubset(own)):
            return PuzzleVerdict(False, "This is still the starter: your turn")
        about = {"reference": f"{_JUDGE}:judge", "arguments": (self.checks, source, self.starter)}
        with Child(timeout_s=LIMIT_S) as child:  # if it cannot be started, the answer is not to blame
            try:
                return child.ask("call", **about)  # type: ignore[no-any-return]
            except TookTooLong:
                sentence = f"Your answer did not end within {LIMIT_S:.0f} seconds: is there an endless loop?"
            except RunFailed as failure:
                sentence = f"Your answer ended the process that ran it: {failure.what}"
        return PuzzleVerdict(False, sentence)

    def __repr__(self) -> str:
        return f"{self.title}\n\n{self.statement.strip()}\n\n{self.starter.strip()}"

    def _repr_markdown_(self) -> str:
        hints = "\n\n".join(
            f"<details><summary>Hint {number}</summary>\n\n{hint.strip()}\n\n</details>"
            for number, hint in enumerate(self.hints, 1)
        )
        return f"{self.statement.strip()}\n\n{hints}"


@functools.cache
def tasks() -> Mapping[str, Puzzle]:
    """Every puzzle by its name, in the order of the chapters, then the mysteries."""
    tables = msgspec.toml.decode((folder() / "puzzles.toml").read_bytes())
    for name, table in tables.items():
        table["starter"] = _code("starters", name)
    for name, table in msgspec.toml.decode((folder() / "mysteries.toml").read_bytes()).items():
        script = _code("mysteries", name)
        symptom = str(ast.get_docstring(ast.parse(script)))
        own = {"chapter": MYSTERIES, "title": symptom, "statement": f"**{symptom}**", "starter": script}
        tables[name] = {**table, **own}
    for name, table in tables.items():
        table["checks"] = _code("checks", name)
    return msgspec.convert(tables, type=dict[str, Puzzle])


def _code(kind: str, name: str) -> str:
    return (folder() / kind / f"{name}.py").read_text(encoding="utf-8")


def puzzle(name: str) -> Puzzle:
    """A puzzle by its name; `puzzles()` lists them."""
    if name not in tasks():
        raise one_of(name, [*tasks()], "puzzle")
    return tasks()[name]


def mystery(name: str) -> Puzzle | PuzzleVerdict:
    """A script with one hidden cause of slowness. Makes your copy, `my_NAME.py`, then checks your edits."""
    names = [each for each, task in tasks().items() if task.chapter == MYSTERIES]
    if name not in names:
        raise one_of(name, names, "mystery")
    one = puzzle(name)
    file = Path(f"my_{name}.py")
    if not file.exists():
        file.write_text(one.starter, encoding="utf-8")
    source = kept.program(file)
    return one if source == one.starter else one.check(source)


def puzzles() -> Markdown:
    """A list of all puzzles with their chapters."""
    head = ["| chapter | puzzle | what to write, or to explain | | minutes |", "|---|---|---|---|---|"]
    rows = [
        f"| [{'mystery' if task.chapter == MYSTERIES else task.chapter[:2]}](../{task.chapter}.ipynb) "
        f"| `{name}` | {task.title} | {'★' * task.stars} | {task.minutes} |"
        for name, task in tasks().items()
    ]
    return Markdown("\n".join(head + rows))


def score(
    gain: Comparison, light: Comparison, same: Check, levers: Mapping[str, bool], left_out: Mapping[str, str]
) -> list[Content]:
    """The score of a script (b): speed / speed of light, times the share of levers that are decided.

    `gain` compares it with the slow script that it was made from, `light` with its model on a batch that is
    already there. `same`: whether its first losses are those of the slow script; if not, there is no score.
    `levers`: which of four are in effect; `left_out`: those that do not help here, with what was measured.
    """
    ratio = light.ratio
    words = "No score"
    says = {name: "✓ in effect" if is_seen else "–" for name, is_seen in levers.items()}
    for name, reason in left_out.items():
        if name in levers and not levers[name] and re.search(r"\d", reason):
            says[name] = f"✓ left out: {units.clean(reason, 80)}"
    count = sum(said.startswith("✓") for said in says.values())
    if same.ok:
        between = f"{units.percent(ratio.low)} to {units.percent(ratio.high)}"
        speed = f"{units.percent(ratio.ratio)} of the speed of light ({between})"
        points = units.percent(min(1.0, ratio.ratio) * count / len(levers))
        words = f"Score: {points}, from {speed} and {count} of {len(levers)} levers decided"
    notice = Notice(f"{words}. Losses: {same.evidence}")
    note = 'If one does not help, write what you measured: LEFT_OUT = {"compiled": "0.9x as fast"}'
    table = Table(("lever", "decided"), [*says.items()], note=note)
    return [notice, gain.describe(), light.describe(), table]


def left_out(source: str) -> dict[str, str]:
    """The levers that a script leaves out: its constant `LEFT_OUT`, a dictionary of texts."""
    for name, node in _statements(source):
        value = getattr(node, "value", None)
        if name == "LEFT_OUT" and isinstance(value, ast.Dict):
            return {str(lever): str(reason) for lever, reason in ast.literal_eval(value).items()}
    return {}


def capstone(script: str | Path = "my_capstone.py", preset: str | None = None) -> Shown[None] | Markdown:
    """Measures your edit of a slow script. The first call makes the copy to edit, `script`."""
    file = Path(script)
    slow = folder() / "capstone.py"
    if not file.exists():
        file.write_bytes(slow.read_bytes())
    if file.read_bytes() == slow.read_bytes():
        return Markdown(f"`{file}` is the slow script. Edit it, save it, and run this cell again.")

    def measure(progress: Progress) -> list[Content]:
        source = kept.program(file)
        levers = call(f"{_JUDGE}:levers", source, timeout_s=LEVERS_S, cancelled=progress.cancelled)
        edited = Launch(str(file), replaced=((file.resolve(), source.encode()),))
        others = {"slow": slow, "speed of light": slow.with_name("capstone_light.py")}
        results = []
        for number, (name, other) in enumerate(others.items()):
            match = two_scripts(Launch(str(other)), edited, Terms(preset))
            a, plan = match.a._replace(title=name), match.plan.until(BUDGET_S, PRECISION)
            with progress.part(number, 2):
                results.append(match._replace(a=a, plan=plan).compare(progress, store))
        gain, light = results
        same = gain.verdict(PRECISION).losses
        return score(gain.comparison, light.comparison, same, levers, left_out(source))

    with warning_store() as store:
        return Shown(None, with_line(measure))


def source_of(answer: tuple[object, ...]) -> str:
    """The Python source of an answer: the imports, constants, functions and classes of all executed cells."""
    if len(answer) == 1 and isinstance(answer[0], str):
        return answer[0]
    if not (answer and all(getattr(part, "__module__", "") == "__main__" for part in answer)):
        given = ", ".join(f"{part!r:.60}" for part in answer) or "nothing"
        remedy = "Give what a cell of this notebook defines, as the starter does: check(make_loader)"
        raise InvalidValue(f"check was given {given}", remedy)
    shell: Any = get_ipython()
    newest: dict[str, ast.stmt] = {}
    for cell in shell.user_ns["In"] if shell else []:
        for name, node in _statements(cell):
            newest.pop(name, None)
            newest[name] = node
    ordered = sorted(newest.values(), key=lambda node: isinstance(node, ast.FunctionDef | ast.ClassDef))
    return "\n\n".join(map(ast.unparse, ordered))


def _statements(source: str) -> Iterator[tuple[str, ast.stmt]]:
    """The statements of a source that only define something, with the names that they define."""
    with contextlib.suppress(SyntaxError):
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name, node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                yield ast.unparse(node), node
            elif isinstance(node, ast.Assign) and _needs_no_name(node.value):
                yield ast.unparse(node.targets[0]), node
            elif isinstance(node, ast.AnnAssign) and node.value and _needs_no_name(node.value):
                plain = ast.Assign([node.target], node.value)  # an annotation may name what comes later
                yield ast.unparse(node.target), ast.copy_location(plain, node)


def _needs_no_name(value: ast.expr) -> bool:
    """Whether a value can be made without anything else: a literal, or a lambda without defaults."""
    if isinstance(value, ast.Lambda):
        return not (value.args.defaults or any(value.args.kw_defaults))
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError):  # TypeError: a list as a key
        return False
    return True


def _nodes(source: str) -> list[str]:
    """All statements of a source, independent of its layout; none if Python cannot read it."""
    with contextlib.suppress(SyntaxError):
        return [ast.dump(node) for node in ast.parse(source).body]
    return []
