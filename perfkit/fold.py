"""A recipe's values folded into source: constants are evaluated, and only the chosen branches are left.

The source is edited as a concrete syntax tree, so that comments and layout stay as they are.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from functools import lru_cache
from typing import Any

import libcst as cst
import libcst.matchers as m

from perfkit.recipe import Recipe


def fold(source: str, recipe: Recipe, external: bool) -> cst.Module:
    """The source with the values of a recipe in place of `recipe.…`.

    Args:
        source: a module that takes its switches from a name or attribute `recipe`.
        recipe: the values.
        external: the workload is not perfkit's own, so its methods get the object `RECIPE` for `recipe`.
    """
    module, values = _parsed(source), recipe.to_dict()
    body: list[Any] = []
    for statement in module.body:
        used = tuple((name, values[name]) for name in _switches(statement) if name in values)
        body += _folded(statement, used, external)
    return module.with_changes(body=body)


@lru_cache(maxsize=32)
def _parsed(source: str) -> cst.Module:
    """Parsing is a third of an export and its inputs are few; trees are immutable, so they can be shared."""
    return cst.parse_module(source)


@lru_cache(maxsize=512)
def _switches(statement: Any) -> list[str]:
    """The switches that a definition may depend on: the same one is folded again for each recipe."""
    code = cst.Module([statement]).code
    return sorted(set(re.findall(r"recipe\.(\w+)", code)))


@lru_cache(maxsize=1024)
def _folded(statement: Any, values: tuple[tuple[str, Any], ...], external: bool) -> Any:
    return cst.Module([statement]).visit(_Fold(dict(values), external)).body


def _own(name: str) -> m.OneOf[m.Name | m.Attribute]:
    return m.Name(name) | m.Attribute(value=m.Name("self"), attr=m.Name(name))


_RECIPE = _own("recipe")
_WORKLOAD_METHOD = m.Attribute(value=_own("workload"))
_FOR_PERFKIT = m.AssignTarget(target=m.Name("offers") | m.Name("presets"))
"""What a workload's class tells perfkit of itself."""
_OBSERVER = m.AnnAssign(target=m.Name("observer"))
_DROPPED = m.SimpleStatementLine(
    body=[m.Assign(value=_RECIPE) | m.Assign(targets=[_FOR_PERFKIT]) | _OBSERVER]
)
_NULLCONTEXT = m.With(items=[m.WithItem(item=m.Call(func=m.Name("nullcontext")), asname=None)])
_NO_ITERATION = m.Call(func=m.Name("range"), args=[m.Arg(m.Integer("0"))])
_DEFAULTS = {
    "collate_fn": "None", "non_blocking": "False",
    "persistent_workers": "False", "pin_memory": "False", "prefetch_factor": "None",
    "set_to_none": "True",
}  # fmt: skip
"""Arguments that are torch's own defaults with these values: a script leaves them out."""
_DEFAULT_ARGUMENT = m.OneOf(
    *(m.Arg(keyword=m.Name(name), value=m.Name(value)) for name, value in _DEFAULTS.items())
)
_DEFAULT_SETTING = m.SimpleStatementLine(
    body=[m.Assign([m.AssignTarget(m.Attribute(attr=m.Name("benchmark")))], value=m.Name("False"))]
)
_RETURN = m.SimpleStatementLine(body=[m.Return()])

_OPERATORS: dict[type, Any] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
    cst.In: lambda value, allowed: value in allowed,
    cst.NotIn: lambda value, allowed: value not in allowed,
    cst.Subtract: operator.sub,
}
_MAY_BE_LITERAL = (cst.BaseNumber, cst.BaseString, cst.Name, cst.Tuple)


def _literal(node: cst.CSTNode) -> tuple[bool, Any]:
    """Whether a node is a literal, and its value."""
    if not isinstance(node, _MAY_BE_LITERAL):
        return False, None
    try:
        return True, ast.literal_eval(cst.Module([]).code_for_node(node).strip())
    except (ValueError, SyntaxError):
        return False, None


def _node(value: object) -> cst.BaseExpression:
    return cst.parse_expression(json.dumps(value) if isinstance(value, str) else repr(value))


def _evaluated(
    node: cst.BaseExpression, left: cst.CSTNode, sign: cst.CSTNode, right: cst.CSTNode
) -> cst.BaseExpression:
    """The value of an operation on two literals; the node itself where it is none."""
    (left_known, a), (right_known, b) = _literal(left), _literal(right)
    if left_known and right_known and type(sign) in _OPERATORS:
        return _node(_OPERATORS[type(sign)](a, b))
    return node


def _spliced(block: cst.BaseSuite, leading: Any) -> Any:
    """The statements of a block in place of the statement that held it, below its comments."""
    lines = list(block.body)
    if lines and hasattr(lines[0], "leading_lines"):
        lines[0] = lines[0].with_changes(leading_lines=[*leading, *lines[0].leading_lines])
    return cst.FlattenSentinel(lines)


def _without_last_comma(items: list[Any]) -> list[Any]:
    return [*items[:-1], *(item.with_changes(comma=cst.MaybeSentinel.DEFAULT) for item in items[-1:])]


class _Fold(cst.CSTTransformer):
    """Puts the values in from the leaves up, so that a test is a literal by the time its branch is left."""

    def __init__(self, values: dict[str, Any], external: bool) -> None:
        super().__init__()
        self.values = values
        self.external = external
        self.branches: set[cst.CSTNode] = set()
        """`elif` and `else` parts: such a part is replaced by one node, never by a run of statements."""

    def leave_Attribute(self, old: cst.Attribute, node: cst.Attribute) -> cst.BaseExpression:
        if m.matches(old.value, _RECIPE) and old.attr.value in self.values:
            return _node(self.values[old.attr.value])
        return node

    def leave_Comparison(self, old: cst.Comparison, node: cst.Comparison) -> cst.BaseExpression:
        first, *others = node.comparisons
        return node if others else _evaluated(node, node.left, first.operator, first.comparator)

    def leave_BinaryOperation(
        self, old: cst.BinaryOperation, node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        return _evaluated(node, node.left, node.operator, node.right)

    def leave_BooleanOperation(
        self, old: cst.BooleanOperation, node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        known, value = _literal(node.left)
        if not known:
            return node
        return node.right if bool(value) == isinstance(node.operator, cst.And) else node.left

    def leave_UnaryOperation(self, old: cst.UnaryOperation, node: cst.UnaryOperation) -> cst.BaseExpression:
        known, value = _literal(node.expression)
        return _node(not value) if known and isinstance(node.operator, cst.Not) else node

    def leave_IfExp(self, old: cst.IfExp, node: cst.IfExp) -> cst.BaseExpression:
        known, value = _literal(node.test)
        return (node.body if value else node.orelse) if known else node

    def visit_If(self, node: cst.If) -> None:
        if node.orelse is not None:
            self.branches.add(node.orelse)

    def leave_If(self, old: cst.If, node: cst.If) -> Any:
        known, value = _literal(node.test)
        if not known:
            return node
        chosen = cst.Else(node.body) if value else node.orelse
        if chosen is None:
            return cst.RemoveFromParent()
        if old in self.branches or isinstance(chosen, cst.If):
            return chosen
        return _spliced(chosen.body, node.leading_lines)

    def leave_With(self, old: cst.With, node: cst.With) -> Any:
        return _spliced(node.body, node.leading_lines) if m.matches(node, _NULLCONTEXT) else node

    def leave_For(self, old: cst.For, node: cst.For) -> Any:
        return cst.RemoveFromParent() if m.matches(node.iter, _NO_ITERATION) else node

    def leave_Param(self, old: cst.Param, node: cst.Param) -> Any:
        return cst.RemoveFromParent() if old.name.value == "recipe" else node

    def leave_Parameters(self, old: cst.Parameters, node: cst.Parameters) -> cst.Parameters:
        kept = list(node.params)
        return node.with_changes(params=_without_last_comma(kept) if len(kept) < len(old.params) else kept)

    def leave_Call(self, old: cst.Call, node: cst.Call) -> cst.Call:
        """Drops the argument `recipe`, and those that have torch's default.

        A workload that is not perfkit's own gets the recipe as an object.
        A phase of the step becomes the named range that it is with `nvtx_ranges`, or nothing.
        """
        if m.matches(node.func, m.Name("phase")):
            named_range = cst.Name("nullcontext")
            return cst.Call(named_range, _without_last_comma([node.args[0]]))
        kept: list[cst.Arg] = []
        for argument in node.args:
            if m.matches(argument, _DEFAULT_ARGUMENT):
                continue
            if not m.matches(argument.value, _RECIPE):
                kept.append(argument)
            elif self.external and m.matches(old.func, _WORKLOAD_METHOD):
                kept.append(argument.with_changes(value=cst.Name("RECIPE")))
        on_one_line = isinstance(node.whitespace_before_args, cst.SimpleWhitespace)
        shorter = len(kept) < len(node.args)
        return node.with_changes(args=_without_last_comma(kept) if shorter and on_one_line else kept)

    def leave_SimpleStatementLine(self, old: cst.SimpleStatementLine, node: cst.SimpleStatementLine) -> Any:
        dropped = m.matches(old, _DROPPED) or m.matches(node, _DEFAULT_SETTING)
        return cst.RemoveFromParent() if dropped else node

    def leave_IndentedBlock(self, old: cst.IndentedBlock, node: cst.IndentedBlock) -> cst.IndentedBlock:
        """Drops what follows a `return` in the same block."""
        returns = (at for at, line in enumerate(node.body) if m.matches(line, _RETURN))
        return node.with_changes(body=node.body[: next(returns, len(node.body)) + 1])
