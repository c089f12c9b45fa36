"""One source file of a user: finds the calls that were seen while it ran, and edits the bytes there.

Positions of `ast` and of `co_positions()` both count lines and bytes of UTF-8, so nothing is converted, and a
byte that is not part of an edit stays as it is.
"""

import ast
import io
import itertools
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfkit.errors import PerfkitError
from perfkit.scripts.patch_calls import Frame

Function = ast.FunctionDef | ast.AsyncFunctionDef
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


class Refused(Exception):
    """An edit that cannot be made for the user; the text says why, and what to change by hand."""


class Source:
    """A parsed file and the edits planned for it.

    Args:
        path: where it is.
        data: its content.

    Raises:
        PerfkitError: it is not valid Python.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.original = data
        try:
            self.encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
            text = data.decode(self.encoding)
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, LookupError) as problem:
            reason = str(problem).partition("\n")[0]
            raise PerfkitError(f"cannot read {path} as Python: {reason}", "Fix what it reports") from None
        self.data = text.encode()
        self._lines = self.data.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]
        self._end = b"\r\n" if self.data.count(b"\r\n") else b"\n"
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.edits: list[tuple[int, int, bytes]] = []

    # ------------------------------------------------------------ finding

    def code(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The first byte of a node, and the one after it."""
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def where(self, node: ast.AST) -> str:
        """`train.py:12`."""
        return f"{Path(self.path).name}:{node.lineno}"  # type: ignore[attr-defined]

    def calls(self) -> Iterator[ast.Call]:
        """Every call of the file."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def call_at(self, frame: Frame) -> ast.Call:
        """The call expression that was running.

        Raises:
            Refused: there is none at that place: the file was changed meanwhile.
        """
        for call in self.calls():
            if (call.end_lineno, call.end_col_offset) == (frame.end_line, frame.end_column):
                places = [(call.lineno, call.col_offset)]
                if isinstance(
                    call.func, ast.Attribute
                ):  # a chain over several lines has its last part's place
                    end = call.func.end_col_offset or 0
                    places.append((call.func.end_lineno or 0, end - len(call.func.attr.encode())))
                if (frame.line, frame.column) in places:
                    return call
        place = f"{Path(self.path).name}:{frame.line}"
        raise Refused(f"the call seen at {place} is not in the file now; run it again")

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around it, the innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function around a node; None at the top of the file."""
        return next((outer for outer in self.parents(node) if isinstance(outer, Function)), None)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around a node."""
        return next((outer for outer in self.parents(node) if isinstance(outer, ast.ClassDef)), None)

    def blocks(self, node: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
        """The blocks around a node, the innermost first, with the number of the statement that holds it."""
        for outer in [node, *self.parents(node)]:
            parent = self._parents.get(outer)
            for _, block in ast.iter_fields(parent) if parent else ():
                if isinstance(block, list) and outer in block and isinstance(outer, ast.stmt):
                    yield block, block.index(outer)

    def assignments(self, name: str, scope: ast.AST | None) -> list[ast.stmt]:
        """The statements of a function, or of the file's top level, that assign a name or an attribute."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
            and self.function(node) is scope
            and name in assigned(node)
        ]

    # ------------------------------------------------------------ editing

    def replace(self, node: ast.AST, code: str) -> None:
        """Plans another text in the place of an expression."""
        if self.code(node) != code:
            self.edits.append((*self.span(node), code.encode()))

    def set_argument(self, call: ast.Call, name: str, code: str, order: Sequence[str] = ()) -> None:
        """Plans the value of an argument: where it is written, else as a new keyword.

        Raises:
            Refused: the argument may be in a `*list` or a `**dictionary`.
        """
        present = argument(call, name, order)
        if present is not None:
            self.replace(present, code)
            return
        if any(isinstance(value, ast.Starred) for value in call.args):
            raise Refused(f"{self.where(call)}: set {name}={code} where *arguments is made")
        packed = next((keyword for keyword in call.keywords if keyword.arg is None), None)
        if packed:
            text = self.code(packed.value)
            raise Refused(f"{self.where(call)}: set {name}={code} in the dictionary given as **{text}")
        text = f"{name}={code}"
        parts = [*call.args, *call.keywords]
        if len(parts) == 1 and isinstance(parts[0], ast.GeneratorExp):
            raise Refused(f"{self.where(call)}: add {text}")
        at, comma = self._end_of_arguments(call)
        if parts:
            begin = self.span(max(parts, key=self.span))[0]
            before = self.data[self._starts[self.data.count(b"\n", 0, begin)] : begin]
            space = " " if before.strip() else self._end.decode() + before.decode()
            text = ("" if comma else ",") + space + text + ("," if comma else "")
        self.edits.append((at, at, text.encode()))

    def _end_of_arguments(self, call: ast.Call) -> tuple[int, bool]:
        """Where the last argument ends, its brackets and comma included, and whether it has a comma."""
        start, end = self.span(call)
        text = self.data[start:end].decode()
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        last = [token for token in tokens if token.type not in _LAYOUT][-2]  # before the closing bracket
        lines = text.splitlines(keepends=True)
        line, column = last.end
        before = "".join(lines[: line - 1]) + lines[line - 1][:column]
        return start + len(before.encode()), last.string == ","

    def remove_argument(self, call: ast.Call, name: str) -> None:
        """Plans the removal of a keyword argument."""
        for at, keyword in enumerate(call.keywords):
            if keyword.arg == name:
                start, end = self.span(keyword)
                before, after = [*call.args, *call.keywords[:at]], call.keywords[at + 1 :]
                if before:
                    start = max(self.span(part)[1] for part in before)
                else:
                    end = self.span(after[0])[0] if after else self._end_of_arguments(call)[0]
                self.edits.append((start, end, b""))

    def insert_after(self, statement: ast.stmt, lines: Sequence[str]) -> None:
        """Plans statements on lines of their own after a statement, those that are not there already."""
        end = statement.end_lineno or statement.lineno
        self._insert(self._starts[end], self._indent(statement), lines)

    def insert_before(self, statement: ast.stmt, lines: Sequence[str]) -> None:
        """Plans statements on lines of their own before a statement."""
        self._insert(self._starts[statement.lineno - 1], self._indent(statement), lines)

    def insert_after_imports(self, lines: Sequence[str]) -> None:
        """Plans statements after the last import at the top of the file, `import torch` first if it lacks."""
        imports = [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.asname or alias.name for node in imports for alias in node.names}
        torch = [] if "torch" in names and self._imports_torch(imports) else ["import torch"]
        wanted = [*torch, *lines]
        if imports:
            self.insert_after(imports[-1], wanted)
        elif wanted:
            self._insert(0, b"", wanted)

    def _imports_torch(self, imports: Sequence[ast.Import | ast.ImportFrom]) -> bool:
        names = [alias for node in imports if isinstance(node, ast.Import) for alias in node.names]
        return any(alias.name.split(".")[0] == "torch" and not alias.asname for alias in names)

    def _insert(self, at: int, indent: bytes, lines: Sequence[str]) -> None:
        present = {line.strip() for line in self._lines} | {text.strip() for _, _, text in self.edits}
        new = [line.encode() for line in lines if line.encode() not in present]
        text = b"".join(indent + line + self._end for line in new)
        if new and at and self.data[at - 1 : at] not in (b"\n", b"\r"):  # the file's last line has no end
            text = self._end + text
        if new:
            self.edits.append((at, at, text))

    def wrap(self, statements: Sequence[ast.stmt], header: str) -> None:
        """Plans a `with` around whole statements.

        Raises:
            Refused: they share a line with others, or a text in them spans several lines.
        """
        first, end = statements[0], statements[-1]
        start, stop = first.lineno - 1, end.end_lineno or end.lineno
        before = self._lines[start][: first.col_offset]
        after = self._lines[stop - 1][end.end_col_offset or 0 :].strip()
        if before.strip() or (after and not after.startswith(b"#")):
            raise Refused(f"{self.where(first)}: put each statement on a line of its own")
        for node in (node for statement in statements for node in ast.walk(statement)):
            if isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
                raise Refused(f"{self.where(node)}: a text spans several lines; put it above the loop")
        indent, unit = self._indent(first), self._unit()
        opening = indent + f"with {header}:".encode() + self._end
        for number in range(start, stop):
            if self._lines[number].strip():
                self.edits.append((self._starts[number], self._starts[number], opening + unit))
            opening = b""

    def split_backward(self, statement: ast.stmt, loss: ast.expr, name: str) -> None:
        """Plans `LOSS.backward()` inside a `with` as `NAME = LOSS`, and `NAME.backward()` after it."""
        start, end = self.span(statement)
        after = self._end + self._indent(statement) + f"{name}.backward()".encode()
        self.edits += [(start, start, f"{name} = ".encode()), (self.span(loss)[1], end, after)]

    def _unit(self) -> bytes:
        """What the file indents a block by."""
        inner = [node for node in ast.walk(self.tree) if isinstance(getattr(node, "body", None), list)]
        for node in inner:
            body = node.body  # type: ignore[attr-defined]
            if not isinstance(node, ast.Module) and body and body[0].lineno != node.lineno:  # type: ignore[attr-defined]
                outer = self._indent(node)
                return self._indent(body[0]).removeprefix(outer)
        return b"    "

    def _indent(self, statement: ast.AST) -> bytes:
        line = self._lines[statement.lineno - 1]  # type: ignore[attr-defined]
        return line[: len(line) - len(line.lstrip())]

    def edited(self) -> bytes:
        """The file with all planned edits."""
        parts, end = [], 0
        for start, stop, text in sorted(self.edits, key=lambda edit: edit[:2]):
            assert start >= end, f"two edits of the same text in {self.path}"
            parts += [self.data[end:start], text]
            end = stop
        whole = b"".join([*parts, self.data[end:]])
        return whole.decode().encode(self.encoding) if self.edits else self.original


def argument(call: ast.Call, name: str, order: Sequence[str] = ()) -> ast.expr | None:
    """The value of an argument, by keyword or by its place in `order`; None if it is not written out."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if name in order and order.index(name) < len(call.args):
        before = call.args[: order.index(name) + 1]
        if not any(isinstance(value, ast.Starred) for value in before):
            return before[-1]
    return None


def assigned(statement: ast.AST) -> set[str]:
    """What the assignments inside a statement set, as text: `model`, `self.model`."""
    names: set[str] = set()
    for node in ast.walk(statement):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                names |= {ast.unparse(part) for part in parts if part is not None}
    return names


def names_in(node: ast.AST) -> set[str]:
    """The variables that an expression uses."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
