"""`train.py` with one recipe's values folded in: the standalone script, and what a stage changes in it.

The source is edited as a concrete syntax tree, so that comments and layout stay those of `train.py`.
"""

from __future__ import annotations

import ast
import difflib
import json
import operator
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m

from perfkit.errors import WorkloadError
from perfkit.program.recipe import Recipe

_HERE = Path(__file__).parent
_INTERNAL = re.compile(r"^perfkit(\.|$)")
_CLASS_NOTES = {"offers", "presets"}


def script(
    recipe: Recipe, workload: str, options: dict[str, Any], device: str = "cpu", seed: int = 0, steps: int = 8
) -> str:
    """The standalone training script of a recipe: no import of perfkit, the same losses as a measured run.

    Args:
        recipe: every switch, as it acts on the device.
        workload: `package.module:name`; one of perfkit's own is written into the script, others are imported.
        options: the workload's constructor arguments.
        device: where the script trains.
        seed: of weights, order and augmentation.
        steps: how many steps it trains unless told otherwise.

    Raises:
        WorkloadError: a workload of perfkit's own has no such source.
    """
    module_name, _, name = workload.partition(":")
    own = bool(_INTERNAL.match(module_name))
    parts = [_module_source(module_name)] if own else [f"from {module_name} import {name}\n"]
    training = (_HERE / "train.py").read_text(encoding="utf-8")
    parts += [training] if own else [_recipe_object(recipe), training]
    built = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"
        if own or options
        else name
    )
    if not own and not options:
        built = f"{name}() if callable({name}) else {name}"
    main = _main(built, device, seed, steps, recipe.ranks)
    for _ in range(20):
        # Before Python 3.11.8 and 3.12.2 two threads that parse count their depth in one counter, and one of
        # them may end in a SystemError (CPython gh-106905): a notebook's kernel parses every cell.
        with suppress(SystemError):
            return _written(recipe, workload, main, own, *parts)
    return _written(recipe, workload, main, own, *parts)


@lru_cache(maxsize=64)
def _written(recipe: Recipe, workload: str, main: str, own: bool, *parts: str) -> str:
    folded = [_parsed(part).visit(_Fold(recipe, external=not own)) for part in parts]
    return _tidy(_merged_imports(_drop_unused(_join(folded, main, recipe, workload))))


def diff(before: str, after: str, names: tuple[str, str] = ("before", "after")) -> str:
    """A unified diff of two scripts; empty where they are the same. The header comment does not count."""
    sides = [text.split("\n\n", 1)[-1].splitlines(keepends=True) for text in (before, after)]
    return "".join(difflib.unified_diff(sides[0], sides[1], names[0], names[1], n=2))


def _module_source(module_name: str) -> str:
    path = _HERE.parents[1] / (module_name.replace(".", "/") + ".py")
    if not path.exists():
        raise WorkloadError(
            f"no source for '{module_name}'", "Name a workload that perfkit ships, or your own"
        )
    return path.read_text(encoding="utf-8")


def _recipe_object(recipe: Recipe) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in recipe.to_dict().items())
    return f"from types import SimpleNamespace\n\nRECIPE = SimpleNamespace({values})\n"


def _main(built: str, device: str, seed: int, steps: int, ranks: int) -> str:
    start = "python" if ranks == 1 else f"torchrun --nproc-per-node {ranks}"
    return (
        f"def main():\n"
        f'    """Trains some steps and prints the loss of each: `{start} train.py [STEPS]`."""\n'
        f"    workload = {built}\n"
        f"    steps = int(sys.argv[1]) if len(sys.argv) > 1 else {steps}\n"
        f'    for step, loss in enumerate(train(workload, torch.device("{device}"), steps, seed={seed})):\n'
        f'        print(f"step {{step}}: loss {{loss!r}}", flush=True)\n\n\n'
        f'if __name__ == "__main__":\n    main()\n'
    )


@lru_cache(maxsize=32)
def _parsed(source: str) -> cst.Module:
    """Parsing is a third of an export, and its inputs are few: trees are immutable, so they can be shared."""
    return cst.parse_module(source)


def _join(modules: list[cst.Module], main: str, recipe: Recipe, workload: str) -> str:
    """One module: header, the imports of all parts, their definitions, then `main`."""
    imports: list[str] = []
    bodies: list[str] = []
    for module in modules:
        for statement in module.body:
            code = module.code_for_node(statement).strip("\n")
            if m.matches(statement, _IMPORT):
                imports += [line for line in _single_imports(statement) if line not in imports]
            elif not (_is_docstring(statement) or _is_main(statement)):
                bodies.append(code)
    head = f'"""Training script written by perfkit: {workload}, {recipe.describe()}."""\n\n'
    future = [line for line in imports if "__future__" in line]
    plain = sorted(line for line in imports if line.startswith("import ") and line not in future)
    named = sorted(line for line in imports if line.startswith("from ") and line not in future)
    lines = [line for line in plain + named if "from perfkit" not in line]
    return head + "\n".join(lines) + "\n\n\n" + "\n\n\n".join([*bodies, main])


def _single_imports(statement: cst.CSTNode) -> list[str]:
    """An import statement as lines of one name each, so that names can go one by one."""
    (node,) = ast.parse(cst.Module([]).code_for_node(statement).strip()).body
    assert isinstance(node, ast.Import | ast.ImportFrom)
    start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
    return [f"{start} {ast.unparse(alias)}" for alias in node.names]


def _merged_imports(text: str) -> str:
    """`from a import b` and `from a import c` as one line again."""
    return re.sub(
        r"^(from \S+ import )(.+)\n(?:\1.+\n)+",
        lambda found: (
            found[1] + ", ".join(line.split(" import ")[1] for line in found[0].splitlines()) + "\n"
        ),
        text,
        flags=re.MULTILINE,
    )


_IMPORT = m.SimpleStatementLine(body=[m.OneOf(m.Import(), m.ImportFrom())])


def _is_docstring(statement: cst.CSTNode) -> bool:
    return m.matches(
        statement, m.SimpleStatementLine(body=[m.Expr(m.OneOf(m.SimpleString(), m.ConcatenatedString()))])
    )


def _is_main(statement: cst.CSTNode) -> bool:
    return m.matches(statement, m.FunctionDef(name=m.Name("main"))) or m.matches(
        statement, m.If(test=m.Comparison(left=m.Name("__name__")))
    )


def _tidy(text: str) -> str:
    within = re.sub(r"\n{3,}(?= )", "\n\n", text)  # what a method that went leaves inside its class
    return re.sub(r"\n{4,}", "\n\n\n", within).rstrip("\n") + "\n"


_RECIPE = m.Name("recipe") | m.Attribute(value=m.Name("self"), attr=m.Name("recipe"))
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


_MAY_BE_LITERAL = (
    cst.BaseNumber,
    cst.BaseString,
    cst.Name,
    cst.Tuple,
    cst.List,
    cst.Set,
    cst.Dict,
    cst.UnaryOperation,
)


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


class _Fold(cst.CSTTransformer):
    """Puts a recipe's values in, evaluates what became constant, and leaves only the chosen branches."""

    def __init__(self, recipe: Recipe, external: bool) -> None:
        super().__init__()
        self.values = recipe.to_dict()
        self.external = external
        self.branches: set[cst.CSTNode] = set()
        """The `elif` of other ifs: in their place stands one node, never a run of statements."""

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if m.matches(original_node.value, _RECIPE) and original_node.attr.value in self.values:
            return _node(self.values[original_node.attr.value])
        return updated_node

    def leave_Comparison(
        self, original_node: cst.Comparison, updated_node: cst.Comparison
    ) -> cst.BaseExpression:
        target = updated_node.comparisons[0]
        if len(updated_node.comparisons) > 1:
            return updated_node
        return self._binary(updated_node, updated_node.left, target.operator, target.comparator)

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        return self._binary(updated_node, updated_node.left, updated_node.operator, updated_node.right)

    def _binary(
        self, node: cst.BaseExpression, left: cst.CSTNode, sign: cst.CSTNode, right: cst.CSTNode
    ) -> cst.BaseExpression:
        (known_left, a), (known_right, b) = _literal(left), _literal(right)
        if known_left and known_right and type(sign) in _OPERATORS:
            return _node(_OPERATORS[type(sign)](a, b))
        return node

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        known, value = _literal(updated_node.left)
        if not known:
            return updated_node
        is_and = isinstance(updated_node.operator, cst.And)
        return updated_node.right if bool(value) == is_and else updated_node.left

    def leave_UnaryOperation(
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        known, value = _literal(updated_node.expression)
        return _node(not value) if known and isinstance(updated_node.operator, cst.Not) else updated_node

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        known, value = _literal(updated_node.test)
        return (updated_node.body if value else updated_node.orelse) if known else updated_node

    def visit_If(self, node: cst.If) -> None:
        if node.orelse is not None:
            self.branches.add(node.orelse)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        known, value = _literal(updated_node.test)
        if not known:
            return updated_node
        is_branch = original_node in self.branches
        if value:
            return (
                cst.Else(updated_node.body)
                if is_branch
                else _spliced(updated_node.body, updated_node.leading_lines)
            )
        other = updated_node.orelse
        if other is None:
            return cst.RemoveFromParent()
        return (
            other
            if is_branch or isinstance(other, cst.If)
            else _spliced(other.body, updated_node.leading_lines)
        )

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> Any:
        """`with nullcontext():` is its body."""
        nothing = m.With(items=[m.WithItem(item=m.Call(func=m.Name("nullcontext")), asname=None)])
        return (
            _spliced(updated_node.body, updated_node.leading_lines)
            if m.matches(updated_node, nothing)
            else updated_node
        )

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> Any:
        empty = m.Call(func=m.Name("range"), args=[m.Arg(m.Integer("0"))])
        return cst.RemoveFromParent() if m.matches(updated_node.iter, empty) else updated_node

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> Any:
        return cst.RemoveFromParent() if original_node.name.value == "recipe" else updated_node

    def leave_Parameters(self, original_node: cst.Parameters, updated_node: cst.Parameters) -> cst.Parameters:
        params = list(updated_node.params)
        if params and len(params) < len(original_node.params):
            params[-1] = params[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(params=params)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Calls lose the argument `recipe`; a workload that is not ours gets the recipe as an object."""
        kept: list[cst.Arg] = []
        for argument in updated_node.args:
            if not m.matches(argument.value, _RECIPE):
                kept.append(argument)
            elif self.external and m.matches(original_node.func, _WORKLOAD_METHOD):
                kept.append(argument.with_changes(value=cst.Name("RECIPE")))
        if kept and len(kept) < len(updated_node.args) and not _spans_lines(updated_node):
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(args=kept)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Assignments that only served the recipe, or describe a workload to perfkit, go."""
        for statement in original_node.body:
            if m.matches(statement, m.Assign(value=_RECIPE)):
                return cst.RemoveFromParent()
            name = m.Assign(
                targets=[m.AssignTarget(target=m.Name(m.MatchIfTrue(lambda n: n in _CLASS_NOTES)))]
            )
            if m.matches(statement, name):
                return cst.RemoveFromParent()
        return updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """What stands behind a `return` of the same block cannot be reached."""
        body = list(updated_node.body)
        returns = [
            at for at, line in enumerate(body) if m.matches(line, m.SimpleStatementLine(body=[m.Return()]))
        ]
        return updated_node.with_changes(body=body[: returns[0] + 1]) if returns else updated_node


_WORKLOAD_METHOD = m.Attribute(
    value=m.Name("workload") | m.Attribute(value=m.Name("self"), attr=m.Name("workload"))
)


def _spans_lines(call: cst.Call) -> bool:
    return not isinstance(call.whitespace_before_args, cst.SimpleWhitespace)


def _spliced(block: cst.BaseSuite, leading: Any) -> Any:
    lines = list(block.body)
    if lines and hasattr(lines[0], "leading_lines"):
        lines[0] = lines[0].with_changes(leading_lines=[*leading, *lines[0].leading_lines])
    return cst.FlattenSentinel(lines)


def _drop_unused(text: str) -> str:
    """Removes definitions, methods and imports that nothing refers to, until none is left."""
    while True:
        tree = ast.parse(text)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        methods = [part for node in tree.body if isinstance(node, ast.ClassDef) for part in node.body]
        unused = [node for node in [*tree.body, *methods] if _is_unused(node, used)]
        if not unused:
            return text
        gone = {
            line for node in unused for line in range(_first_line(node), (node.end_lineno or node.lineno) + 1)
        }
        text = "".join(line for at, line in enumerate(text.splitlines(keepends=True), 1) if at not in gone)


def _first_line(node: ast.stmt) -> int:
    """Where a definition starts: at its first decorator."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min(node.lineno, *(decorator.lineno for decorator in decorators)) if decorators else node.lineno


def _is_unused(node: ast.stmt, used: set[str]) -> bool:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name not in used and not node.name.startswith("__")
    if isinstance(node, ast.Import | ast.ImportFrom):
        return not any((alias.asname or alias.name).split(".")[0] in used for alias in node.names)
    return False
