"""A source file of a user: the calls that were seen while it ran, and text edits between its bytes.

Positions of `ast` and of `co_positions()` both count lines and bytes of UTF-8, so nothing is converted, and a
byte that is not part of an edit stays as it is.
"""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from perfkit.errors import PerfkitError
from perfkit.scripts.sites import Frame

_SPACE = rb"(?:\s|#[^\n]*\n)*"
_AFTER_ARGUMENT = re.compile(rb"((?:%b\))*)(%b,)?" % (_SPACE, _SPACE))


class Refused(Exception):
    """An edit that is left to the user: where it belongs, and the edit in words."""


class Edit(NamedTuple):
    """Bytes of a file that are replaced; nothing is removed where `start` is `end`."""

    path: str
    start: int
    end: int
    text: bytes


class Source:
    """A parsed file.

    Raises:
        PerfkitError: it is not valid Python in UTF-8.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data = path, data
        try:
            text = data.decode("utf-8-sig")
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError) as problem:
            raise PerfkitError(f"cannot read {path} as Python in UTF-8: {problem}", "Correct it") from None
        self._lines = data.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]
        self._starts[0] = len(data) - len(text.encode())  # a byte order mark
        self._end = b"\r\n" if b"\r\n" in data else b"\n"
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    # ------------------------------------------------------------ finding

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The first byte of a node, and the first one after it."""
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def code(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def where(self, node: ast.AST) -> str:
        """Such as `train.py:12`."""
        return f"{Path(self.path).name}:{node.lineno}"  # type: ignore[attr-defined]

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions, methods and classes with these names; all calls without names."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if not names or name in names:
                    yield node

    def call_at(self, frame: Frame) -> ast.Call:
        """The call expression that was running.

        Raises:
            Refused: there is none at that place.
        """
        for call in self.calls():
            places = [(call.lineno, call.col_offset)]
            if isinstance(call.func, ast.Attribute):  # a chain over several lines is where its last part is
                end, column = call.func.end_lineno or 0, call.func.end_col_offset or 0
                places.append((end, column - len(call.func.attr.encode())))
            ends = (call.end_lineno, call.end_col_offset) == (frame.end_line, frame.end_column)
            if ends and (frame.line, frame.column) in places:
                return call
        place = f"{Path(self.path).name}:{frame.line}"
        raise Refused(f"the call seen at {place} is not in the file now; run it again")

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around it, the innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def blocks(self, node: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
        """The blocks around a node, the innermost first, with the number of the statement that holds it."""
        for inner, outer in itertools.pairwise([node, *self.around(node)]):
            for _, block in ast.iter_fields(outer):
                if isinstance(inner, ast.stmt) and isinstance(block, list) and inner in block:
                    yield block, block.index(inner)

    def value_of(self, name: str) -> ast.expr | None:
        """What a variable is assigned, if only one statement of the file sets a variable of that name."""
        names = [
            node for node in ast.walk(self.tree) if name == getattr(node, "id", getattr(node, "arg", ""))
        ]
        places = [node for node in names if isinstance(getattr(node, "ctx", ast.Store()), ast.Store)]
        places = [node for node in places if not isinstance(node, ast.keyword)]
        holder = self._parents[places[0]] if len(places) == 1 else None
        return holder.value if isinstance(holder, ast.Assign) else None

    # ------------------------------------------------------------ editing

    def insert(self, at: int, text: bytes | str) -> Edit:
        """A text between two bytes."""
        return Edit(self.path, at, at, text if isinstance(text, bytes) else text.encode())

    def replace(self, node: ast.AST, code: str) -> Edit:
        """Another text in the place of an expression."""
        return Edit(self.path, *self.span(node), code.encode())

    def append(self, node: ast.expr, suffix: str) -> list[Edit]:
        """A suffix such as `.to(…)` of an expression, in brackets where it needs them."""
        start, end = self.span(node)
        if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            return [self.insert(end, suffix)]
        return [self.insert(start, "("), self.insert(end, f"){suffix}")]

    def add_keyword(self, call: ast.Call, name: str, code: str) -> Edit:
        """A further argument.

        Raises:
            Refused: the argument may be in a `*list` or a `**dictionary`.
        """
        for packed in (*call.args, *call.keywords):
            if isinstance(packed, ast.Starred):
                raise Refused(f"{self.where(call)}: set {name}={code} where {self.code(packed)} is filled")
            if isinstance(packed, ast.keyword) and packed.arg is None:
                text = self.code(packed.value)
                raise Refused(f"{self.where(call)}: set {name}={code} in the dictionary given as **{text}")
        begin, end = self.span(call)
        if not (call.args or call.keywords):
            return self.insert(end - 1, f"{name}={code}")
        start, at = max(self.span(part) for part in (*call.args, *call.keywords))
        after = _AFTER_ARGUMENT.match(self.data, at, end - 1)
        comma = bool(after and after[2])
        before = self.data[: max(begin, start)].rpartition(b"\n")[2]
        space = " " if before.strip() else (self._end + before).decode()
        text = f"{space}{name}={code}," if comma else f",{space}{name}={code}"
        return self.insert(after.end() if after else at, text)

    def line_before(self, statement: ast.stmt, line: str) -> Edit:
        """A statement before another one.

        Raises:
            Refused: that does not begin its line.
        """
        text = self._indent(statement) + line.encode() + self._end
        return self.insert(self._starts[statement.lineno - 1], text)

    def line_after(self, statement: ast.stmt, line: str) -> Edit:
        """A statement after another one."""
        return self.insert(self._starts[statement.end_lineno or 0], line.encode() + self._end)

    def last_import(self) -> ast.stmt:
        """The last import at the top of the file.

        Raises:
            Refused: `import torch` is not among them, so that the name `torch` is unknown.
        """
        imports = [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [part for node in imports if isinstance(node, ast.Import) for part in node.names]
        if not any(part.name.split(".")[0] == "torch" and not part.asname for part in names):
            raise Refused(f"{Path(self.path).name}:1: add `import torch`, then run it again")
        return imports[-1]

    def wrap(self, statements: Sequence[ast.stmt], header: str) -> Iterator[Edit]:
        """A `with` around statements.

        Raises:
            Refused: they share a line with others, or a text in them spans several lines.
        """
        first, last = statements[0], statements[-1]
        indent, stop = self._indent(first), last.end_lineno or 0
        if not re.match(rb"\s*(#|$)", self._lines[stop - 1][last.end_col_offset :]):
            raise Refused(f"{self.where(last)}: put each statement on a line of its own")
        for node in (node for statement in statements for node in ast.walk(statement)):
            if isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
                raise Refused(f"{self.where(node)}: a text spans several lines; put it above the loop")
        unit = b"\t" if b"\t" in indent else b"    "
        yield self.insert(self._starts[first.lineno - 1], indent + header.encode() + b":" + self._end)
        for number in range(first.lineno - 1, stop):
            if self._lines[number].strip():
                yield self.insert(self._starts[number], unit)

    def _indent(self, statement: ast.stmt) -> bytes:
        before = self._lines[statement.lineno - 1][: statement.col_offset]
        if before.strip():
            raise Refused(f"{self.where(statement)}: put each statement on a line of its own")
        return before

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The file with those of the edits that are its own.

        Raises:
            Refused: they overlap, or what they give is not valid Python.
        """
        parts, end = [], 0
        for edit in sorted((edit for edit in edits if edit.path == self.path), key=lambda edit: edit[1:3]):
            if edit.start < end:
                raise Refused("two edits of one expression")
            parts += [self.data[end : edit.start], edit.text]
            end = edit.end
        result = b"".join([*parts, self.data[end:]])
        try:
            ast.parse(result)
        except SyntaxError as problem:
            raise Refused(f"the edited file would not be valid Python: {problem.msg}") from None
        return result


def argument(call: ast.Call, name: str, order: Sequence[str] = ()) -> ast.expr | None:
    """The value of an argument, by keyword or by its place in `order`; None if it is not written out."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    before = call.args[: order.index(name) + 1] if name in order else []
    if before and len(before) == order.index(name) + 1:
        return None if any(isinstance(value, ast.Starred) for value in before) else before[-1]
    return None
