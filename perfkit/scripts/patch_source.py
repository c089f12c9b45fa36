"""A source file of a user: the calls that were seen while it ran, and text edits between its bytes.

Positions of `ast` and of `co_positions()` both count lines and bytes of UTF-8, so nothing is converted, and a
byte that is not part of an edit stays as it is.
"""

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
            self.tree = ast.parse(data.decode())
        except (SyntaxError, ValueError) as problem:
            raise PerfkitError(f"cannot read {path} as Python in UTF-8: {problem}", "Correct it") from None
        self._lines = data.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]
        self._end = "\r\n" if b"\r\n" in data else "\n"
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._imports = [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]

    # ------------------------------------------------------------ finding

    def span(self, node: Any) -> tuple[int, int]:
        """The first byte of a node, and the first one after it."""
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def code(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def where(self, node: Any) -> str:
        """Such as `train.py:12`."""
        return f"{self.name}:{node.lineno}"

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions, methods and classes with these names."""
        calls = [node for node in self._parents if isinstance(node, ast.Call)]
        return [call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) in names]

    def call_at(self, frame: Frame) -> ast.Call:
        """The call expression that was running."""
        end = (frame.end_line, frame.end_column)  # where no other call ends
        for call in self._parents:
            if isinstance(call, ast.Call) and (call.end_lineno, call.end_col_offset) == end:
                return call
        where = f"{self.name}:{frame.line}"
        raise Refused(f"the call seen at {where} is not in the file now; run it again")

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self._parents:
            node = self._parents[node]
            yield node

    def blocks(self, node: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
        """The blocks around a node, the innermost first, with the number of the statement that holds it."""
        for inner, outer in itertools.pairwise([node, *self.around(node)]):
            for _, block in ast.iter_fields(outer):
                if isinstance(inner, ast.stmt) and isinstance(block, list) and inner in block:
                    yield block, block.index(inner)

    # ------------------------------------------------------------ editing

    def arguments(
        self, call: ast.Call, settings: str, order: Sequence[str], options: Mapping[str, str]
    ) -> Iterator[Edit]:
        """Sets arguments, such as `lr=1 fused=True`: adds them, or replaces their literals.

        `order`: arguments that may be given by their places. `options`: attributes that are options of the
        command line.
        """
        given = dict(zip(order, call.args, strict=False)) | {part.arg: part.value for part in call.keywords}
        for setting in settings.split():
            name, code = setting.split("=", 1)
            match given.get(name):
                case None if None in given:
                    every, name = settings.replace(" ", ", "), self.code(given[None])
                    raise Refused(f"{self.where(call)}: set {every} in the dictionary given as **{name}")
                case None:
                    yield self._added(call, setting)
                case ast.Constant() as value:
                    yield Edit(self.path, *self.span(value), code)
                case value:
                    option = options.get(getattr(value, "attr", ""))
                    how = (
                        f"set it to {code} with the script's option {option}"
                        if option
                        else f"make that {code}"
                    )
                    raise Refused(f"{self.where(value)}: {name} is {self.code(value)}; {how}")

    def _added(self, call: ast.Call, setting: str) -> Edit:
        end = self.span(call)[1] - 1
        if not (parts := [self.span(part) for part in (*call.args, *call.keywords)]):
            return self._insert(end, setting)
        start, at = max(parts)
        at = min(at, end)  # a generator's parentheses may be those of the call
        while self.data[at:end].lstrip().startswith(b")"):  # around the last argument
            at = self.data.index(b")", at) + 1
        before = self.data[:start].rpartition(b"\n")[2].decode()
        space = " " if before.strip() else self._end + before
        return self._insert(at, f",{space}{setting}")

    def _insert(self, at: int, text: str) -> Edit:
        return Edit(self.path, at, at, text)

    def line_before(self, statement: ast.stmt, line: str) -> Edit:
        return self._insert(self._starts[statement.lineno - 1], self._indent(statement) + line + self._end)

    def line_after_imports(self, line: str) -> Edit:
        """A line after the last import at the top of the file."""
        if not self._imports:
            raise Refused(f"{self.name}: put `{line}` before the training")
        return self._insert(self._starts[self._imports[-1].end_lineno or 0], line + self._end)

    def names_torch(self) -> bool:
        """Whether `torch` is imported at the top of the file by its own name."""
        plain = [alias for node in self._imports if isinstance(node, ast.Import) for alias in node.names]
        return any(alias.name.split(".")[0] == "torch" and not alias.asname for alias in plain)

    def wrap(self, statements: Sequence[ast.stmt], header: str) -> Iterator[Edit]:
        """A `with` around statements."""
        first, stop = statements[0], statements[-1].end_lineno or 0
        yield self.line_before(first, f"{header}:")
        for node in itertools.chain(*map(ast.walk, statements)):
            if isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
                raise Refused(f"{self.where(node)}: a text spans several lines; put it above the loop")
        unit = "\t" if "\t" in self._indent(first) else "    "
        for number in range(first.lineno - 1, stop):
            if self._lines[number].strip():
                yield self._insert(self._starts[number], unit)

    def _indent(self, statement: ast.stmt) -> str:
        before = self._lines[statement.lineno - 1][: statement.col_offset]
        if before.strip():
            raise Refused(f"{self.where(statement)}: put each statement on a line of its own")
        return before.decode()

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The file with those of the edits that are its own."""
        result, end = b"", 0
        for edit in sorted((edit for edit in edits if edit.path == self.path), key=lambda edit: edit[1:3]):
            if edit.start < end:
                raise Refused("two edits of one expression")
            result, end = result + self.data[end : edit.start] + edit.text.encode(), edit.end
        result += self.data[end:]
        try:
            ast.parse(result)
        except SyntaxError as problem:
            raise Refused(f"the edited file would not be valid Python: {problem.msg}") from None
        return result
