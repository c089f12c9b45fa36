"""One source file of a user as a concrete syntax tree: finds what was seen at run time, edits only that.

Comments, layout, tabs, line ends and the encoding stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from perfkit.errors import PerfkitError
from perfkit.scripts.patch_calls import Frame

Statement = cst.BaseStatement | cst.BaseSmallStatement
Block = cst.Module | cst.IndentedBlock
_Node = TypeVar("_Node", bound=cst.CSTNode)


class Refused(Exception):
    """An edit that cannot be made for the user; the text says why, and what to change by hand."""


class Source:
    """A parsed file and the edits planned for it; all nodes are those of the file as it was read.

    Args:
        path: where it is.
        data: its content.

    Raises:
        PerfkitError: it is not valid Python.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data = path, data
        try:
            module = cst.parse_module(data)
        except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError) as problem:
            reason = str(problem).partition("\n")[0]
            raise PerfkitError(f"cannot read {path} as Python: {reason}", "Fix what it reports") from None
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._all = list(_walk(self.module))
        self._parents = {child: node for node in self._all for child in node.children}
        self._lines = self.module.code.split("\n")
        self.changes: dict[cst.CSTNode, list[Callable[[Any], Any]]] = {}
        """For a node, functions from the node (its parts already edited) to its replacement."""
        self.blocks: dict[cst.CSTNode, list[_BlockEdit]] = {}
        self._inserted: set[tuple[cst.CSTNode, str]] = set()

    # ------------------------------------------------------------ finding

    def line(self, node: cst.CSTNode) -> int:
        """The line of its first character, from 1."""
        return int(self._positions[node].start.line)

    def where(self, node: cst.CSTNode) -> str:
        """`train.py:12`."""
        return f"{Path(self.path).name}:{self.line(node)}"

    def code(self, node: cst.CSTNode) -> str:
        """Its text."""
        return self.module.code_for_node(node)

    def nodes(self, kind: type[_Node], within: cst.CSTNode | None = None) -> Iterator[_Node]:
        """All nodes of a kind, in the order of the file, also those of nested functions."""
        for node in self._all if within is None else _walk(within):
            if isinstance(node, kind):
                yield node

    def call_at(self, frame: Frame) -> cst.Call:
        """The call expression that was running.

        Raises:
            Refused: there is none at that place (the file was changed meanwhile).
        """
        start, end = self._place(frame.line, frame.column), self._place(frame.end_line, frame.end_column)
        for call in self.nodes(cst.Call):
            position = self._positions[call]
            if (position.end.line, position.end.column) != end:
                continue
            starts = [position.start]
            if isinstance(call.func, cst.Attribute):  # Python gives a chain over several lines its last part
                starts.append(self._positions[call.func.attr].start)
            if start in [(one.line, one.column) for one in starts]:
                return call
        raise Refused(
            f"the call seen at {Path(self.path).name}:{frame.line} is not in the file now; run it again"
        )

    def _place(self, line: int, column: int) -> tuple[int, int]:
        """From Python's bytes of UTF-8 to characters."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return line, len(text.encode()[:column].decode(errors="ignore"))

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around it, the innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Lambda | None:
        """The innermost function around it; None at the top of the file."""
        around = (one for one in self.parents(node) if isinstance(one, cst.FunctionDef | cst.Lambda))
        return next(around, None)

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The innermost class around it."""
        return next((one for one in self.parents(node) if isinstance(one, cst.ClassDef)), None)

    def steps(self, node: cst.CSTNode) -> list[tuple[Block, int]]:
        """The blocks around it, the innermost first, each with the number of the statement that holds it."""
        found, inner = [], node
        for outer in self.parents(node):
            if isinstance(outer, cst.Module | cst.IndentedBlock):
                at = next((i for i, one in enumerate(outer.body) if one is inner), None)
                if at is not None:
                    found.append((outer, at))
            inner = outer
        return found

    def common_block(self, nodes: Sequence[cst.CSTNode]) -> tuple[Block, list[int]]:
        """The innermost block that holds them all, and the number of each one's statement in it.

        Raises:
            Refused: they are in no common block (`if x: y` on one line has none).
        """
        for block, _ in self.steps(nodes[0]):
            places = [next((at for one, at in self.steps(node) if one is block), None) for node in nodes]
            if None not in places:
                return block, [at for at in places if at is not None]
        raise Refused(f"{self.where(nodes[0])} is in no block of its own; put each statement on a line")

    def imports_end(self) -> int:
        """The number of the statement at the top of the file that follows its last import."""
        imports = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
        return max((at + 1 for at, one in enumerate(self.module.body) if m.matches(one, imports)), default=0)

    def __contains__(self, node: cst.CSTNode) -> bool:
        """Whether a node is one of this file's."""
        return node in self._positions

    # ------------------------------------------------------------ editing

    def planned(self) -> tuple[Any, Any, Any]:
        """What is planned so far, to compare or restore."""
        blocks = {node: [*edits] for node, edits in self.blocks.items()}
        return {node: [*edits] for node, edits in self.changes.items()}, blocks, {*self._inserted}

    def restore(self, planned: tuple[Any, Any, Any]) -> None:
        """Back to what was planned then."""
        self.changes, self.blocks, self._inserted = planned

    def change(self, node: cst.CSTNode, edit: Callable[[Any], Any]) -> None:
        """Plans a replacement of a node."""
        self.changes.setdefault(node, []).append(edit)

    def replace(self, node: cst.BaseExpression, code: str) -> None:
        """Plans another expression in its place."""
        if self.code(node) != code:
            self.change(node, lambda _: cst.parse_expression(code, self.module.config_for_parsing))

    def insert(self, block: Block, at: int, lines: Sequence[str], apart: bool = False) -> None:
        """Plans statements before the statement with this number, unless they are in the block already.

        Args:
            block: a block of this file.
            at: the number; that of the last statement and one more for its end.
            lines: the statements.
            apart: whether an empty line goes before them.
        """
        there = {self.code(one).strip() for one in block.body}
        new = [line for line in lines if line not in there and (block, line) not in self._inserted]
        if not new:
            return
        self._inserted.update((block, line) for line in new)
        statements = [self.statement(line) for line in new]
        if apart:
            statements[0] = statements[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        self.rebuild(block, at, at, lambda _: statements)

    def wrap(self, block: Block, first: int, end: int, header: str) -> None:
        """Plans a `with` around the statements from `first` up to, but not including, `end`."""
        self.rebuild(block, first, end, lambda statements: [self.with_block(header, statements, block)])

    def rebuild(self, block: Block, first: int, end: int, build: Callable[[list[Any]], list[Any]]) -> None:
        """Plans other statements for those from `first` to before `end`."""
        self.blocks.setdefault(block, []).append(_BlockEdit(first, end, build))

    def statement(self, code: str) -> Any:
        """A statement in this file's style."""
        return cst.parse_statement(code, self.module.config_for_parsing)

    def with_block(self, header: str, statements: list[Any], block: Block) -> Any:
        """`with header:` around statements, indented as in the block that holds it."""
        inner = [statements[0].with_changes(leading_lines=[]), *statements[1:]]
        return cst.With(
            [cst.WithItem(cst.parse_expression(header, self.module.config_for_parsing))],
            cst.IndentedBlock(inner, indent=block.indent if isinstance(block, cst.IndentedBlock) else None),
            leading_lines=statements[0].leading_lines,
        )

    def edited(self) -> bytes:
        """The file with all planned edits."""
        if not self.changes and not self.blocks:
            return self.data
        edited = self.module.visit(_Editor(self))
        assert isinstance(edited, cst.Module)
        return edited.bytes


class _BlockEdit(NamedTuple):
    first: int
    end: int
    build: Callable[[list[Any]], list[Any]]


class _Editor(cst.CSTTransformer):
    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        for edit in self.source.changes.get(original_node, ()):
            updated_node = edit(updated_node)
        if original_node in self.source.blocks:
            body = list(updated_node.body)
            # From the end of the block to its start, so that the numbers stay right.
            edits = reversed(self.source.blocks[original_node])
            for first, end, build in sorted(edits, key=lambda one: (-one.first, one.end == one.first)):
                body[first:end] = build(body[first:end])
            updated_node = updated_node.with_changes(body=body)
        return updated_node


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)


def expression_names(node: cst.CSTNode) -> set[str]:
    """The variables that it uses: `loss` and `scaler` of `scaler.scale(loss)`, not `scale`."""
    if isinstance(node, cst.Attribute):
        return expression_names(node.value)
    if isinstance(node, cst.Arg):
        return expression_names(node.value)
    if isinstance(node, cst.Name):
        return {node.value}
    return set().union(*(expression_names(child) for child in node.children))


def targets(node: cst.CSTNode) -> set[str]:
    """What its assignments set, as text: `model`, `self.model`."""
    assigned: set[str] = set()
    for one in m.findall(node, m.AssignTarget() | m.AnnAssign() | m.AugAssign() | m.NamedExpr()):
        target = one.target  # type: ignore[attr-defined]
        parts = target.elements if isinstance(target, cst.Tuple | cst.List) else [target]
        for part in parts:
            value = part.value if isinstance(part, cst.BaseElement) else part
            assigned.add(cst.Module([]).code_for_node(value.with_changes(lpar=[], rpar=[])))
    return assigned
