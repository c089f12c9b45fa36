"""A function of the training program with known values in it: constants are evaluated, branches are chosen.

The source is edited as a concrete syntax tree, so that comments and layout stay as they are.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst
import libcst.matchers as m

_EMPTY = cst.Module([])
_UNKNOWN = object()
_EVALUATED = (
    cst.Attribute, cst.BinaryOperation, cst.BooleanOperation, cst.Call, cst.Comparison, cst.Name,
    cst.UnaryOperation,
)  # fmt: skip
_DEFAULTS = {
    "collate_fn": ("None",),
    "enabled": ("True",),
    "mode": ('"default"',),
    "non_blocking": ("False",),
    "num_workers": ("0",),
    "persistent_workers": ("False",),
    "pin_memory": ("False",),
    "prefetch_factor": ("None", "2"),
    "set_to_none": ("True",),
}
"""Arguments that have torch's own default with these values: a script leaves them out."""
_DOCSTRING = m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
_OFF = m.Arg(keyword=m.Name("enabled"), value=m.Name("False"))


def code(node: cst.CSTNode) -> str:
    """The source of a node."""
    return _EMPTY.code_for_node(node)


def names(node: cst.CSTNode) -> set[str]:
    """The names that a node refers to, without attributes and keywords of arguments."""
    found: list[str] = []

    class Finder(cst.CSTVisitor):
        def visit_Attribute(self, node: cst.Attribute) -> bool:
            node.value.visit(self)
            return False

        def visit_Arg(self, node: cst.Arg) -> bool:
            node.value.visit(self)
            return False

        def visit_Name(self, node: cst.Name) -> None:
            found.append(node.value)

    node.visit(Finder())
    return set(found)


class Fold(cst.CSTTransformer):
    """Puts values in and leaves only the chosen branches; type annotations go.

    Args:
        scope: names with known values. Parameters of these names go, and expressions of nothing else are
            replaced by their value if it is a literal.
        tables: dictionaries of the program by name; an element with a known key is put in its place.
    """

    def __init__(self, scope: Mapping[str, Any], tables: Mapping[str, cst.Dict]) -> None:
        super().__init__()
        self.scope, self.tables = dict(scope), tables
        self.branches: set[cst.CSTNode] = set()
        """`elif` and `else` parts, which can be replaced by one node only."""

    def value(self, node: cst.CSTNode) -> Any:
        """The value of an expression whose names are all known."""
        used = names(node)
        if not used or not used <= set(self.scope):
            return _UNKNOWN
        try:
            return eval(code(node), {"__builtins__": {}}, self.scope)  # perfkit's own source, never a user's
        except (AttributeError, TypeError):  # a method of the workload, which is folded by itself
            return _UNKNOWN

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Evaluates what is known."""
        updated_node = super().on_leave(original_node, updated_node)
        if isinstance(original_node, _EVALUATED):
            value = self.value(original_node)
            if value is None or isinstance(value, bool | int | float | str):
                text = json.dumps(value) if isinstance(value, str) else repr(value)
                return cst.parse_expression(text)
        return updated_node

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> Any:
        table = self.tables.get(code(original_node.value))
        if table is None:
            return updated_node
        key = code(updated_node.slice[0])
        return next(e.value for e in table.elements if isinstance(e, cst.DictElement) and code(e.key) == key)

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        return {"True": updated_node.body, "False": updated_node.orelse}.get(
            code(updated_node.test), updated_node
        )

    def visit_If(self, node: cst.If) -> None:
        if node.orelse is not None:
            self.branches.add(node.orelse)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        test = code(updated_node.test)
        if test not in ("True", "False"):
            return updated_node
        chosen = cst.Else(updated_node.body) if test == "True" else updated_node.orelse
        if chosen is None:
            return cst.RemoveFromParent()
        if original_node in self.branches or isinstance(chosen, cst.If):
            return chosen
        return _in_place(chosen.body, updated_node.leading_lines)

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> Any:
        """Names for the profiler go, and an autocast that is off."""
        kept = [item for item in updated_node.items if not _does_nothing(item.item)]
        if not kept:
            return _in_place(updated_node.body, updated_node.leading_lines)
        if len(kept) == len(updated_node.items):
            return updated_node
        last = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        one_line = updated_node.with_changes(
            items=[*kept[:-1], last], lpar=cst.MaybeSentinel.DEFAULT, rpar=cst.MaybeSentinel.DEFAULT
        )
        return one_line

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Leaves out what has torch's default, and puts `**{"fused": True}` in as `fused=True`."""
        kept: list[cst.Arg] = []
        for argument in updated_node.args:
            if argument.star == "**" and isinstance(argument.value, cst.Dict):
                kept += keywords(argument.value)
            elif not (argument.keyword and code(argument.value) in _DEFAULTS.get(argument.keyword.value, ())):
                kept.append(argument)
        return with_arguments(updated_node, kept)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def visit_Param(self, node: cst.Param) -> bool:
        return False

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> Any:
        if original_node.name.value in self.scope:
            return cst.RemoveFromParent()
        return updated_node.with_changes(annotation=None)

    def leave_Parameters(self, original_node: cst.Parameters, updated_node: cst.Parameters) -> cst.Parameters:
        params = [*updated_node.params]
        if params:
            params[-1] = params[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(params=params)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        return updated_node.with_changes(returns=None)

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> Any:
        if updated_node.value is None:
            return cst.RemoveFromParent()
        return cst.Assign([cst.AssignTarget(updated_node.target)], updated_node.value)

    def leave_TrailingWhitespace(
        self, original_node: cst.TrailingWhitespace, updated_node: cst.TrailingWhitespace
    ) -> cst.TrailingWhitespace:
        comment = updated_node.comment
        if comment and comment.value.startswith(("# type:", "# noqa")):
            return updated_node.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
        return updated_node


def keywords(table: cst.Dict) -> list[cst.Arg]:
    """The elements of a dictionary as arguments."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return [
        cst.Arg(element.value, keyword=cst.Name(json.loads(code(element.key))), equal=equal)
        for element in table.elements
        if isinstance(element, cst.DictElement)
    ]


def with_arguments(call: cst.Call, arguments: Sequence[cst.Arg]) -> cst.Call:
    """A call with other arguments; the last one keeps the layout of the former last one."""
    arguments = list(arguments)
    if arguments and call.args and arguments[-1] is not call.args[-1]:
        comma, end = arguments[-1].comma, call.args[-1].comma
        after = getattr(comma, "whitespace_after", None)
        if isinstance(after, cst.ParenthesizedWhitespace) and isinstance(end, cst.Comma):
            end = end.with_changes(  # a comment behind the comma stays
                whitespace_after=end.whitespace_after.with_changes(first_line=after.first_line)
            )
        arguments[-1] = arguments[-1].with_changes(comma=end)
    return call.with_changes(args=arguments)


def body(function: cst.FunctionDef) -> list[Any]:
    """The statements of a function up to the first `return`, without its docstring."""
    statements = [line for line in function.body.body if not m.matches(line, _DOCSTRING)]
    returns = (at for at, line in enumerate(statements) if m.matches(line, RETURN))
    return statements[: next(returns, len(statements)) + 1]


RETURN = m.SimpleStatementLine(body=[m.Return()])


def _does_nothing(context: cst.BaseExpression) -> bool:
    if not isinstance(context, cst.Call):
        return False
    off = any(m.matches(argument, _OFF) for argument in context.args)
    return off or code(context.func) == "record_function"


def _in_place(block: cst.BaseSuite, leading: Sequence[cst.EmptyLine]) -> Any:
    """The statements of a block in place of the statement that held it, below its comments."""
    lines: list[Any] = list(block.body)
    if lines and hasattr(lines[0], "leading_lines"):
        lines[0] = lines[0].with_changes(leading_lines=[*leading, *lines[0].leading_lines])
    return cst.FlattenSentinel(lines)
