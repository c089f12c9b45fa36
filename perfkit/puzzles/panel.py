"""Puzzles: the learner writes a few lines of training code; a process of its own checks them.

A puzzle is data: `data/puzzles/*.toml`, one file for a group. An answer runs in a measuring process, not in
the notebook's kernel: a loop without end, a crash, or a patched clock is over with that process.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import symtable
import time
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec.toml
from IPython.display import Markdown

from perfkit import machine
from perfkit.errors import InvalidValue, RunFailed, one_of
from perfkit.notebook.functions import with_line
from perfkit.notebook.shown import Shown
from perfkit.notebook.widgets import code_spans
from perfkit.process.child import call
from perfkit.puzzles import capstone as capstones
from perfkit.puzzles.capstone import Score
from perfkit.show import units
from perfkit.show.document import Notice, Table
from perfkit.worker.messages import Judged

LIMIT_S = 60.0
"""After which an answer is stopped; the checks of a right one take a few seconds."""
_NOT_COPIED = {"check", "puzzle", "hint", "display"}
"""Calls in a cell that are no part of an answer."""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A puzzle as it is written down."""

    title: str
    chapter: str
    """The chapter that explains what is needed: a file of `notebooks/`, without its ending."""
    statement: str
    """Markdown."""
    starter: str
    """Python: the answer's frame, which runs and is wrong."""
    hints: tuple[str, str, str]
    """From a nudge to nearly the answer."""
    checks: str
    """Python, with the tools of `perfkit.puzzles.bench`: it ends with a sentence for each mistake."""


@functools.cache
def tasks() -> Mapping[str, Task]:
    """Every puzzle by its name, in the order of the files.

    Raises:
        InvalidValue: there are no puzzles: perfkit was installed without its notebooks.
    """
    tree = machine.checkout()
    files = sorted((tree / "data" / "puzzles").glob("*.toml")) if tree else []
    if not files:
        raise InvalidValue("there are no puzzles here", "Work in a copy of perfkit's repository")
    tables = [msgspec.toml.decode(file.read_bytes(), type=dict[str, Task]) for file in files]
    return {name: task for table in tables for name, task in table.items()}


class Verdict:
    """What was found of an answer; `right` says whether it passes."""

    def __init__(self, judged: Judged) -> None:
        self.right, self.sentence, self.proofs = judged.right, judged.sentence, judged.proofs

    def __repr__(self) -> str:
        return "\n".join([self._words(), *self.proofs])

    def _repr_html_(self) -> str:
        proofs = "".join(f"<li>{code_spans(proof)}</li>" for proof in self.proofs)
        return f"<p><b>{code_spans(self._words())}</b></p>{f'<ul>{proofs}</ul>' if proofs else ''}"

    def _words(self) -> str:
        end = "" if self.sentence.endswith((".", "?")) else "."
        return f"{'✓' if self.right else '✗ Not yet:'} {self.sentence}{end}"


class Puzzle:
    """One puzzle: a cell that ends with it shows what is asked.

    Args:
        name: of the puzzle.
        task: its data.
    """

    def __init__(self, name: str, task: Task) -> None:
        self.name, self.task = name, task

    def hint(self, step: int = 1) -> Markdown:
        """One of three hints, each says more than the one before.

        Raises:
            InvalidValue: there is no such hint.
        """
        if step not in (1, 2, 3):
            raise InvalidValue(f"there is no hint {step!r}", "Allowed: 1, 2, 3")
        return Markdown(f"**Hint {step} of 3.** {self.task.hints[step - 1]}")

    def check(self, *answer: Any) -> Verdict:
        """Runs the answer in a process of its own, and says whether it is right and, if not, why.

        Args:
            answer: the functions or classes that the starter defines; or all of it as one string of Python.

        Raises:
            InvalidValue: it is neither, or its source is not known.
        """
        source = source_of(answer)
        if _definitions(source) == _definitions(self.task.starter):
            return Verdict(Judged(False, "This is still the starter: your turn"))
        until = time.monotonic() + LIMIT_S
        try:
            judge = "perfkit.puzzles.judge:judge"
            return Verdict(call(judge, self.task.checks, source, timeout_s=LIMIT_S))
        except RunFailed as failure:
            if time.monotonic() > until:
                late = f"Your answer did not end within {LIMIT_S:.0f} seconds: is there a loop without end?"
                return Verdict(Judged(False, late))
            return Verdict(Judged(False, f"Your answer ended the process that ran it: {failure.what}"))

    def __repr__(self) -> str:
        return f"{self.task.title}\n\n{self.task.statement.strip()}\n\n{self.task.starter.strip()}"

    def _repr_markdown_(self) -> str:
        task = self.task
        hints = "\n\n".join(
            f"<details><summary>Hint {number}</summary>\n\n{hint.strip()}\n\n</details>"
            for number, hint in enumerate(task.hints, 1)
        )
        return f"{task.statement.strip()}\n\n{hints}"


def puzzle(name: str) -> Puzzle:
    """A puzzle by its name; `puzzles()` lists them.

    Raises:
        InvalidValue: no such puzzle.
    """
    known = tasks()
    if name not in known:
        raise one_of(name, [*known], "puzzle")
    return Puzzle(name, known[name])


def puzzles() -> Markdown:
    """All puzzles, each with its chapter."""
    rows = [f"| `{name}` | {task.title} | {task.chapter[:2]} |" for name, task in tasks().items()]
    return Markdown("\n".join(["| puzzle | what to write | chapter |", "|---|---|---|", *rows]))


def capstone(script: str | Path = "my_capstone.py", preset: str | None = None) -> Shown[Score] | Markdown:
    """Measures your edit of a slow script; first makes the copy that you edit.

    Args:
        script: your copy; it is made if there is none.
        preset: `smoke`, `quick` or `paper`: how much is measured.

    Raises:
        PerfkitError: the script fails, or cannot be measured.
    """
    file, slow = Path(script), capstones.slow_script().read_bytes()
    if not file.exists():
        file.write_bytes(slow)
    if file.read_bytes() == slow:
        return Markdown(f"`{file}` is the slow script. Edit it, save it, and run this cell again.")
    score = with_line(lambda progress: capstones.score(file, preset, progress))
    rows = [
        [
            side.a.title,
            *(units.interval(run.samples_per_s) for run in (side.a, side.b)),
            units.ratio(side.ratio),
        ]
        for side in (score.gain, score.light)
    ]
    table = Table(("beside", "its samples/s", "yours", "yours / it"), rows, "Capstone")
    ratio, words = score.light.ratio, "No score"
    if score.share:
        between = f"{units.percent(ratio.low)} to {units.percent(ratio.high)}"
        busy = "; the machine was disturbed, measure again" if ratio.verdict == "disturbed" else ""
        words = f"Score: {units.percent(score.share)} of the speed of light ({between}{busy})"
    return Shown(score, [Notice(f"{words}. {score.losses.evidence}"), table])


# ---------------------------------------------------------------- the source of an answer


def source_of(answer: tuple[Any, ...]) -> str:
    """The Python source of an answer: the cells that define it, and what they use of other cells.

    Raises:
        InvalidValue: nothing was given, or something whose source is not known.
    """
    if len(answer) == 1 and isinstance(answer[0], str):
        return answer[0]
    if not answer:
        raise InvalidValue("check was given no answer", "Name what the starter defines: check(make_loader)")
    parts: dict[str, str] = {}
    for one in answer:
        _collect(one, parts)
    return "\n\n".join(parts.values())


def _collect(one: Any, parts: dict[str, str]) -> None:
    """Adds the cell that defines a function or class, after those that it needs."""
    code = _code(one)
    if code is None:
        what = f"check was given {type(one).__name__} {one!r:.60}"
        raise InvalidValue(
            what, "Give the function or class itself, such as check(make_loader), not its result"
        )
    if code.co_filename in parts:
        return
    text = "".join(linecache.getlines(code.co_filename))
    if not text:
        raise InvalidValue(
            f"the source of {code.co_name} is not known", "Define it in a cell of this notebook"
        )
    parts[code.co_filename] = ""
    tree = ast.parse(text)
    kept = [node for node in tree.body if _belongs(node)]
    namespace = getattr(one, "__globals__", None) or next(_methods(one)).__globals__
    code_kept = "\n".join(map(ast.unparse, kept))
    lines = []
    for name in sorted(
        _free_names(symtable.symtable(code_kept, code.co_filename, "exec")) & namespace.keys()
    ):
        value = namespace[name]
        if isinstance(value, types.ModuleType):
            lines.append(f"import {value.__name__} as {name}")
        elif getattr(value, "__module__", None) == namespace.get("__name__") and _code(value):
            _collect(value, parts)
        elif hasattr(value, "__module__") and hasattr(value, "__qualname__") and value.__module__:
            lines.append(f"from {value.__module__} import {value.__qualname__} as {name}")
        else:
            with contextlib.suppress(ValueError, SyntaxError):  # a number or a text of another cell
                ast.literal_eval(repr(value))
                lines.append(f"{name} = {value!r}")
    del parts[code.co_filename]  # what it needs comes first
    parts[code.co_filename] = "\n".join([*lines, code_kept])


def _free_names(table: symtable.SymbolTable) -> set[str]:
    """The names that a cell uses and does not define."""
    top = table.get_type() == "module"
    names = {
        symbol.get_name() for symbol in table.get_symbols()
        if symbol.is_referenced() and (not symbol.is_assigned() if top else symbol.is_global())
    }  # fmt: skip
    names = names.union(*map(_free_names, table.get_children()))
    own = {symbol.get_name() for symbol in table.get_symbols() if top and symbol.is_assigned()}
    return names - own


def _belongs(node: ast.stmt) -> bool:
    """Imports, definitions and assignments; not the cell's own calls of the puzzle."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
        return True
    calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    names = {getattr(func, "attr", getattr(func, "id", "")) for func in calls}
    return isinstance(node, ast.Assign | ast.AnnAssign) and not names & _NOT_COPIED


def _code(one: Any) -> types.CodeType | None:
    """Of a function, or of the first method of a class."""
    function = next(_methods(one), None) if isinstance(one, type) else one
    return getattr(function, "__code__", None)


def _methods(one: type) -> Iterator[Any]:
    return (value for value in vars(one).values() if isinstance(value, types.FunctionType))


def _definitions(source: str) -> list[str]:
    """What the functions and classes of a source are, whatever its layout."""
    with contextlib.suppress(SyntaxError):
        body = ast.parse(source).body
        return [ast.dump(node) for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return []
