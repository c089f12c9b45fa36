"""A source file of a user: the calls that were seen while it ran, and text edits between its bytes.

Positions of `ast` and of `co_positions()` both count lines and bytes of UTF-8, so nothing is converted, and a
byte that is not part of an edit stays as it is.
"""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perfkit.errors import PerfkitError
from perfkit.scripts.messages import Frame


class Refused(Exception):
    """An edit that is left to the user: where it belongs, and the edit in words."""


class Edit(NamedTuple):
    """Bytes of a file that are replaced by a text; none where `start` is `end`."""

    path: str
    start: int
    end: int
    text: str


class Source:
    """A parsed file. Its methods raise `Refused` for what they cannot find or place."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data, self.name = path, data, Path(path).name
        try:
            self.text = data.decode()
            self._tree = ast.parse(self.text)
        except (SyntaxError, ValueError) as problem:
            raise PerfkitError(f"cannot read {path} as Python in UTF-8: {problem}", "Correct it") from None
        self.lines = data.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self.lines))]
        self._end = "\r\n" if b"\r\n" in data else "\n"
        self._calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]

    # ------------------------------------------------------------ finding

    def code(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self._span(node)
        return self.data[start:end].decode()

    def where(self, node: Any) -> str:
        """Such as `train.py:12`."""
        return f"{self.name}:{node.lineno}"

    def calls(self, names: Sequence[str]) -> list[ast.Call]:
        """The calls of functions, methods and classes with these names."""
        return [call for call in self._calls if self.code(call.func).rpartition(".")[2] in names]

    def call_at(self, frame: Frame) -> ast.Call:
        """The call expression that was running."""
        end = (frame.end_line, frame.end_column)  # where no other call ends
        for call in self._calls:
            if (call.end_lineno, call.end_col_offset) == end:
                return call
        raise Refused(f"the call seen at {frame.where} is not in the file now; run it again")

    def around(self, call: ast.Call) -> list[Any]:
        """The function or module that holds a call, then the statements in it that do, innermost last."""
        around: list[Any] = [self._tree]
        for node in ast.walk(self._tree):
            if isinstance(node, ast.stmt) and call in ast.walk(node):
                around = [node] if isinstance(node, ast.FunctionDef) else [*around, node]
        return around

    # ------------------------------------------------------------ editing

    def arguments(self, call: ast.Call, settings: str, order: Sequence[str]) -> Iterator[Edit]:
        """Sets arguments, such as `lr=1 fused=True`: adds them, or replaces their literals.

        `order`: arguments that may be given by their places.
        """
        given = dict(zip(order, call.args, strict=False)) | {part.arg: part.value for part in call.keywords}
        for setting in settings.split():
            name, code = setting.split("=", 1)
            value = given.get(name)
            if isinstance(value, ast.Constant):
                yield Edit(self.path, *self._span(value), code)
            elif value:
                raise Refused(f"{self.where(value)}: {name} is {self.code(value)}; set that to {code}")
            elif None in given:
                options = self.code(given[None])
                raise Refused(f"{self.where(call)}: set {settings} in the dictionary given as **{options}")
            else:
                # After the last argument; the parentheses of a generator may be those of the call.
                end = self._span(call)[1] - 1
                places = [min(self._span(part)[1], end) for part in (*call.args, *call.keywords)]
                yield self._insert(max(places, default=end), ", " * bool(places) + setting)

    def _span(self, node: Any) -> tuple[int, int]:
        """The first byte of a node, and the first one after it."""
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _insert(self, at: int, text: str) -> Edit:
        return Edit(self.path, at, at, text)

    def line_before(self, statement: ast.stmt, line: str) -> Edit:
        """A line above a statement."""
        return self._insert(self._starts[statement.lineno - 1], self._indent(statement) + line + self._end)

    def line_after_imports(self, line: str) -> Edit:
        """A line after the last import at the top of the file."""
        imports = [node for node in self._tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if not imports:
            raise Refused(f"{self.name}: put `{line}` before the training")
        return self._insert(self._starts[imports[-1].end_lineno or 0], line + self._end)

    def wrap(self, first: ast.stmt, after: ast.stmt, header: str) -> Iterator[Edit]:
        """A `with` around the statements from the first one to that before `after`."""
        yield self.line_before(first, f"{header}:")
        unit = "\t" if "\t" in self._indent(first) else "    "
        for number in range(first.lineno - 1, after.lineno - 1):
            if re.search(rb"'''|\"\"\"|\\\r?\n", self.lines[number]):
                raise Refused(f"{self.name}:{number + 1}: a text may span lines; put it above the loop")
            if self.lines[number].strip():
                yield self._insert(self._starts[number], unit)

    def _indent(self, statement: ast.stmt) -> str:
        before = self.lines[statement.lineno - 1][: statement.col_offset]
        if before.strip():
            raise Refused(f"{self.where(statement)}: put each statement on a line of its own")
        return before.decode()

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The file with those of the edits that are its own, and with an import of torch if they need one."""
        own, result = [edit for edit in edits if edit.path == self.path], self.data
        is_imported = re.search(r"^import torch(\.\w+)*\s*(,|#|$)", self.text, re.MULTILINE)
        if not is_imported and any("torch." in edit.text for edit in own):
            own.insert(0, self.line_after_imports("import torch"))
        for edit in sorted(own, key=lambda edit: edit.start)[::-1]:
            result = result[: edit.start] + edit.text.encode() + result[edit.end :]
        try:
            ast.parse(result)
        except SyntaxError as problem:
            raise Refused(f"the edited file would not be valid Python: {problem.msg}") from None
        return result
