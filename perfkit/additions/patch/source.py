"""A file of a script that is edited by position; a byte that is not part of an edit stays as it is.

Positions of `ast` and of `co_positions()` both count lines and bytes of UTF-8, so nothing is converted.
"""

import ast
import codecs
import itertools
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from perfkit.additions.scripts.messages import Frame


class Refused(Exception):
    """An edit that is left to the user: where it belongs, and the edit in words."""


class SourceFile:
    """A file. The methods add to `edits`, or raise `Refused` for what they cannot find or place."""

    def __init__(self, path: str, data: bytes) -> None:
        # Positions do not count the byte order mark that some editors write.
        self._mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        data = data.removeprefix(self._mark)
        self.data, self.name = data, Path(path).name
        self.text = data.decode(errors="replace")
        self.edits: list[tuple[int, int, str]] = []
        """Start and end of the bytes that a text replaces; it is inserted where both are the same."""
        self.lines = data.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self.lines))]
        self._end = "\r\n" if b"\r\n" in data else "\n"

    # ------------------------------------------------------------ finding

    @cached_property
    def _tree(self) -> ast.Module:
        """Parsed when it is edited: the others may be in any encoding that Python knows."""
        try:
            return ast.parse(self.data.decode())
        except (SyntaxError, ValueError) as problem:
            raise Refused(f"{self.name} cannot be read as Python in UTF-8: {problem}") from None

    def call_at(self, frame: Frame) -> ast.Call:
        end = (frame.end_line, frame.end_column)  # where no other call ends
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == end:
                return node
        raise Refused(f"the call seen at {self.name}:{frame.line} is not in the file now; run it again")

    def statement_of(self, call: ast.Call) -> ast.stmt:
        """The innermost statement that has a call in it."""
        statements = [node for node in ast.walk(self._tree) if isinstance(node, ast.stmt)]
        return [node for node in statements if call in ast.walk(node)][-1]

    # ------------------------------------------------------------ editing

    def set_arguments(self, call: ast.Call, add: str, order: Sequence[str] = (), reset: str = "") -> None:
        """Sets arguments, such as `lr=1 fused=True`; some of a call may be given by their `order`."""
        wanted = [*add.split(), *reset.split()]
        given: dict[str | None, ast.expr] = dict(zip(order, call.args, strict=False))
        for place, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred):  # any that follow may be in it
                given |= dict.fromkeys(order[place:], argument.value)
        given |= {part.arg: part.value for part in call.keywords}
        for setting in wanted:
            name, code = setting.split("=", 1)
            value = given.get(name)
            if isinstance(value, ast.Constant):
                self.edits.append((*self._span(value), code))
            elif made := value or given.get(None):  # by a variable, or within a dictionary as `**options`
                where = f"where `{ast.unparse(made)}` comes from"
                raise Refused(f"{self.name}:{made.lineno}: set {' '.join(wanted)} {where}")
            elif setting in add.split():  # those to reset are not there
                # After the last argument; the parentheses of a generator may be those of the call.
                end = self._span(call)[1] - 1
                places = [min(self._span(part)[1], end) for part in (*call.args, *call.keywords)]
                at = max(places, default=end)
                self.edits.append((at, at, f", {setting}" if places else setting))

    def _span(self, node: Any) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def add_before(self, statement: ast.stmt, line: str) -> None:
        before = self.lines[statement.lineno - 1][: statement.col_offset].decode()
        if before.strip():
            raise Refused(f"{self.name}:{statement.lineno}: put each statement on its own line")
        self._add(statement.lineno - 1, before + line)

    def add_after_imports(self, line: str) -> None:
        """Lines after `import torch` and the imports directly below; later ones may follow the training."""
        rest = list(itertools.dropwhile(lambda node: not _imports_torch(node), self._tree.body))
        if not rest:
            raise Refused(f"{self.name}: add `import torch` at its top, then run it again")
        last = rest[0]
        for node in rest[1:]:
            if node.lineno == last.end_lineno:
                raise Refused(f"{self.name}:{last.lineno}: put each statement on its own line")
            if not isinstance(node, ast.Import | ast.ImportFrom):
                break
            last = node
        self._add(last.end_lineno or 0, line)

    def _add(self, number: int, line: str) -> None:
        at = self._starts[number]
        self.edits.append((at, at, f"{line}\n".replace("\n", self._end)))

    def edited(self) -> bytes:
        needs_torch = any("torch." in edit[2] for edit in self.edits)
        if needs_torch and not any(map(_imports_torch, self._tree.body)):
            raise Refused(f"{self.name}: add `import torch` at its top, then run it again")
        result = self.data
        for start, end, text in sorted(dict.fromkeys(self.edits), key=lambda edit: edit[0])[::-1]:
            result = result[:start] + text.encode() + result[end:]
        try:
            ast.parse(result)
        except SyntaxError as problem:
            raise Refused(f"the edited file would not be valid Python: {problem.msg}") from None
        return self._mark + result


def _imports_torch(statement: ast.stmt) -> bool:
    names = statement.names if isinstance(statement, ast.Import) else []
    return any((alias.asname or alias.name.partition(".")[0]) == "torch" for alias in names)
