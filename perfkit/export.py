"""The standalone script of a recipe: `train.py` with the chosen branches only, and its workload.

The source is edited as a concrete syntax tree, so that comments and layout stay as they are.
"""

import ast
import difflib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libcst as cst
import libcst.matchers as m

from perfkit.errors import WorkloadError
from perfkit.recipe import Recipe
from perfkit.workloads import files, reference

_HERE = Path(__file__).parent
_SIBLINGS = ("prefetch", "ranks", "checkpointing")
_SET_UP = {name: getattr(files, name) for name in ("photo_folder", "text_file")}
"""Functions of a workload that are evaluated when its script is written."""
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
_WITHOUT_SCALER = {
    r"^ *scaler(\.update\(\)| = .*)\n": "",
    r"scaler\.scale\((\w+)\)": r"\1",
    r"scaler\.step\((\w+)\)": r"\1.step()",
}
"""The gradient scaler does nothing without fp16."""
_EVALUATED = (
    cst.Attribute,
    cst.BinaryOperation,
    cst.BooleanOperation,
    cst.Call,
    cst.Comparison,
    cst.Name,
    cst.UnaryOperation,
)
_TIDY = {
    r"  # (type|noqa)\b.*": "",
    r"[ \t]+\n": "\n",
    r"\n{4,}": "\n\n\n",
    r"\n{3,}(?=    )": "\n\n",
}
"""No comments for tools, at most two empty lines between definitions, and one within."""
_FURTHER = "import sys; from itertools import islice; from types import SimpleNamespace"


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
        steps: how many steps it trains by default.

    Raises:
        WorkloadError: a workload of perfkit's own has no such source.
    """
    module, _, name = reference(workload).partition(":")
    train, *siblings = sources = [_parsed(part) for part in ("train", *_SIBLINGS)]
    known = {"recipe": SimpleNamespace(**recipe.to_dict()), "seed": seed}
    methods: dict[str, Any] = {}
    if is_ours := module.partition(".")[0] == "perfkit":
        source = _parsed(module.removeprefix("perfkit.").replace(".", "/"))
        sources = [source, train, *siblings]
        methods, fields = _workload(source, name)
        known |= {**_SET_UP, "hasattr": hasattr, "self": SimpleNamespace(**fields | options)}
    program = _definitions(train)
    table = m.SimpleStatementLine([m.Assign(value=m.Dict()) | m.AnnAssign(value=m.Dict())])
    tables = {at: node.body[0].value for at, node in program.items() if m.matches(node, table)}
    functions = {"endless": program["endless"]} | {f"workload.{at}": node for at, node in methods.items()}
    loop = _text(program["train"], {**known, **tables, "workload": SimpleNamespace(**methods)}, functions)
    if recipe.amp != "fp16":
        loop = _replaced(loop, _WITHOUT_SCALER)
    parts = [loop, _main(recipe, device, steps)]
    definitions = {
        at: _text(node, {"recipe": known["recipe"]})
        for source in sources
        for at, node in _definitions(source).items()
        if at != "train"
    }
    parts = [text for at, text in definitions.items() if at in _needed(parts, definitions)] + parts
    if not is_ours:
        parts.insert(0, _built(name, options, recipe))
    heading = f'"""Trains {name}: {_start(recipe)}"""\n'
    text = "\n\n".join([f"{heading}\n{_imports(sources, parts, module, name)}", *parts])
    return _replaced(text, _TIDY).rstrip("\n") + "\n"


def diff(before: str, after: str, names: tuple[str, str] = ("before", "after")) -> str:
    """A unified diff of two scripts; empty where they are the same."""
    sides = [text.splitlines(keepends=True) for text in (before, after)]
    return "".join(difflib.unified_diff(sides[0], sides[1], names[0], names[1], n=2))


# ---------------------------------------------------------------- the sources


@cache
def _parsed(module: str) -> cst.Module:
    path = _HERE / f"{module}.py"
    if not path.exists():
        place = module.replace("/", ".")
        raise WorkloadError(
            f"no source for 'perfkit.{place}'", "Name a workload that perfkit ships, or your own"
        )
    return cst.parse_module(path.read_text(encoding="utf-8"))


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _text(node: Any, scope: Mapping[str, Any], functions: Mapping[str, cst.FunctionDef] | None = None) -> str:
    return _code(node.visit(_Fold(scope, functions or {}))).strip("\n") + "\n"


def _replaced(text: str, patterns: Mapping[str, str]) -> str:
    for pattern, replacement in patterns.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def _names(text: str) -> set[str]:
    """The names that a source refers to, without attributes and keywords of arguments."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _definitions(block: Any) -> dict[str, Any]:
    """Functions, classes and assignments of a module, or of the body of a class, by name."""
    nodes: dict[str, Any] = {}
    for node in block.body:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            nodes[node.name.value] = node
        elif isinstance(node, cst.SimpleStatementLine):
            line = node.body[0]
            if isinstance(line, cst.Assign):
                nodes[_code(line.targets[0].target)] = node
            elif isinstance(line, cst.AnnAssign):
                nodes[_code(line.target)] = node
    return nodes


def _workload(source: cst.Module, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The methods of a workload of perfkit's own, and its constructor's arguments with their defaults."""
    workload = _definitions(source).get(name)
    if workload is None:
        raise WorkloadError(f"perfkit has no workload '{name}'", "Name one that it ships, or your own")
    methods, fields = {}, {}
    for at, node in _definitions(workload.body).items():
        if isinstance(node, cst.FunctionDef):
            methods[at] = node
        elif m.matches(node, m.SimpleStatementLine([m.AnnAssign()])):
            fields[at] = ast.literal_eval(_code(node.body[0].value))
    return methods, fields


def _needed(texts: Iterable[str], definitions: Mapping[str, str]) -> set[str]:
    """The definitions that some texts refer to, and those that these refer to."""
    wanted: set[str] = set()
    new = set().union(*map(_names, texts)) & set(definitions)
    while new - wanted:
        wanted |= new
        new = set().union(*(_names(definitions[name]) for name in wanted)) & set(definitions)
    return wanted


# ---------------------------------------------------------------- folding


class _Fold(cst.CSTTransformer):
    """Puts known values in and leaves only the chosen branches; type annotations go.

    Args:
        scope: names with their values, or with the expressions that replace them. Parameters of these names
            go; an expression of nothing else is replaced by its value if that is a literal.
        functions: by the name they are called by; their statements replace the statement with the call.
    """

    def __init__(self, scope: Mapping[str, Any], functions: Mapping[str, cst.FunctionDef]) -> None:
        super().__init__()
        self.scope, self.functions = scope, functions

    def evaluated(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """The literal that an expression stands for whose names are all known; None where it is none."""
        text = _code(node)
        known = {name for name, value in self.scope.items() if not isinstance(value, cst.CSTNode)}
        used = _names(f"({text})")
        if not used or not used <= known:
            return None
        try:
            value = eval(text, {"__builtins__": {}}, dict(self.scope))  # perfkit's own source, never a user's
        except (AttributeError, TypeError):  # a method of the workload, which is folded by itself
            return None
        if not isinstance(value, bool | int | float | str | None):
            return None
        return cst.parse_expression(json.dumps(value) if isinstance(value, str) else repr(value))

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Evaluates what is known."""
        updated_node = super().on_leave(original_node, updated_node)
        if isinstance(original_node, cst.Name):
            replacement = self.scope.get(original_node.value)
            if isinstance(replacement, cst.CSTNode):
                return replacement
        if isinstance(original_node, _EVALUATED):
            return self.evaluated(original_node) or updated_node
        return updated_node

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> Any:
        if not isinstance(updated_node.value, cst.Dict):
            return updated_node
        return _items(updated_node.value)[_code(updated_node.slice[0])]

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        chosen = {"True": updated_node.body, "False": updated_node.orelse}
        return chosen.get(_code(updated_node.test), updated_node)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        test = _code(updated_node.test)
        if test == "True":
            return _in_place(updated_node.body, updated_node.leading_lines)
        if test != "False":
            return updated_node
        orelse = updated_node.orelse
        return _in_place(orelse.body, updated_node.leading_lines) if orelse else cst.RemoveFromParent()

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> Any:
        """Names for the profiler go, and an autocast that is off."""
        kept = [item for item in updated_node.items if not _does_nothing(item.item)]
        if not kept:
            return _in_place(updated_node.body, updated_node.leading_lines)
        if len(kept) == len(updated_node.items):
            return updated_node
        last = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        no_parentheses = cst.MaybeSentinel.DEFAULT
        return updated_node.with_changes(items=[*kept[:-1], last], lpar=no_parentheses, rpar=no_parentheses)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Leaves out what has torch's default, and puts `**{"fused": True}` in as `fused=True`."""
        kept: list[cst.Arg] = []
        for argument in updated_node.args:
            if argument.star == "**" and isinstance(argument.value, cst.Dict):
                kept += [_keyword(*item) for item in _items(argument.value).items()]
            elif not argument.keyword or _code(argument.value) not in _DEFAULTS.get(
                argument.keyword.value, ()
            ):
                kept.append(argument)
        if kept and kept[-1] is not updated_node.args[-1]:
            kept[-1] = kept[-1].with_changes(comma=_last_comma(kept[-1].comma, updated_node.args[-1].comma))
        return updated_node.with_changes(args=kept)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Puts the body of a function in the place of the statement that calls it."""
        for call in m.findall(updated_node, m.Call()):
            if (function := self.functions.get(_code(call.func))) is not None:  # type: ignore[attr-defined]
                *before, end = self.inlined(call, function)
                replaced: Any = updated_node.deep_replace(call, end.body[0].value)
                assignment = replaced.body[0]
                idle = isinstance(assignment, cst.Assign) and assignment.targets[0].target.deep_equals(
                    assignment.value
                )
                return cst.FlattenSentinel(before if idle else [*before, replaced])
        return updated_node

    def inlined(self, call: Any, function: cst.FunctionDef) -> list[Any]:
        """The statements of a function up to its first return, for the arguments of a call."""
        params = function.params
        names = [param.name.value for param in params.params if param.name.value != "self"]
        values = {name: arg.value for name, arg in zip(names, call.args, strict=False) if not arg.keyword}
        if params.star_kwarg:
            named = [arg for arg in call.args if arg.keyword]
            items = [cst.DictElement(cst.SimpleString(f'"{arg.keyword.value}"'), arg.value) for arg in named]
            values[params.star_kwarg.name.value] = cst.Dict(items)
        known = {name: value for name, value in self.scope.items() if name not in values or name == "recipe"}
        folded: Any = function.visit(_Fold({**values, **known}, {}))
        lines: list[Any] = []
        for line in folded.body.body:
            if not m.matches(line, m.SimpleStatementLine([m.Expr(m.SimpleString())])):  # the docstring
                lines.append(line)
            if m.matches(line, m.SimpleStatementLine([m.Return()])):
                break
        return lines

    # Names that refer to nothing: of attributes, keywords and parameters.

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

    # Annotations.

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        return updated_node.with_changes(returns=None)

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: Any) -> Any:
        return cst.Assign([cst.AssignTarget(updated_node.target)], updated_node.value)


def _items(table: cst.Dict) -> dict[str, Any]:
    """The values of a dictionary by the source of their keys."""
    return {_code(each.key): each.value for each in table.elements if isinstance(each, cst.DictElement)}


def _keyword(key: str, value: cst.BaseExpression) -> cst.Arg:
    call: Any = cst.parse_expression(f"f({json.loads(key)}={_code(value)})")
    return call.args[0]  # type: ignore[no-any-return]


def _last_comma(comma: Any, end: Any) -> Any:
    """The comma of the former last argument, with the comment behind the one that is last now."""
    after = getattr(comma, "whitespace_after", None)
    if isinstance(after, cst.ParenthesizedWhitespace) and isinstance(end, cst.Comma):
        former: Any = end.whitespace_after
        return end.with_changes(whitespace_after=former.with_changes(first_line=after.first_line))
    return end


def _does_nothing(context: cst.BaseExpression) -> bool:
    text = _code(context)
    return text.startswith("record_function(") or "enabled=False" in text


def _in_place(block: cst.BaseSuite, leading: Sequence[cst.EmptyLine]) -> Any:
    """The statements of a block in place of the statement that held it, below its comments."""
    lines: list[Any] = list(block.body)
    if lines:
        lines[0] = lines[0].with_changes(leading_lines=[*leading, *lines[0].leading_lines])
    return cst.FlattenSentinel(lines)


# ---------------------------------------------------------------- the parts of the script


def _built(name: str, options: Mapping[str, Any], recipe: Recipe) -> str:
    """A user's own workload, and the switches that its methods may ask for."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
    call = f"{name}({arguments})"
    made = call if options or name[:1].isupper() else f"{call} if callable({name}) else {name}"
    values = "".join(f"    {key}={value!r},\n" for key, value in recipe.to_dict().items())
    return f"workload = {made}\nrecipe = SimpleNamespace(\n{values})\n"


def _start(recipe: Recipe) -> str:
    variables = [f"{name}={value}" for name, value in recipe.environment().items()]
    python = "python" if recipe.ranks == 1 else f"torchrun --nproc-per-node {recipe.ranks}"
    return " ".join([*variables, python, "train.py [STEPS]"])


def _main(recipe: Recipe, device: str, steps: int) -> str:
    mean, shown, end = "", "losses):  # read at the end: reading waits for the device", ""
    if recipe.ranks > 1:
        mean = "    losses = mean_over_ranks(torch.stack(losses))\n"
        shown = "losses if distributed.get_rank() == 0 else []):"
        end = "    distributed.destroy_process_group()\n"
    return (
        'if __name__ == "__main__":\n'
        f"    steps = int(sys.argv[1]) if len(sys.argv) > 1 else {steps}\n"
        f'    losses = list(islice(train(torch.device("{device}")), steps))\n{mean}'
        f"    for step, loss in enumerate({shown}\n"
        f'        print(f"step {{step}}: loss {{loss.item()}}")\n{end}'
    )


def _imports(sources: Iterable[cst.Module], parts: Sequence[str], module: str, name: str) -> str:
    """The imports of what the parts use: the standard library, then others; plain ones first."""
    used = _names("\n".join(parts))
    texts = [_FURTHER, f"from {module} import {name}", *(source.code for source in sources)]
    lines: list[Any] = [line for text in texts for line in ast.parse(text).body]
    wanted: dict[str, set[str]] = {}
    for line in lines:
        for alias in getattr(line, "names", []):
            if (alias.asname or alias.name.partition(".")[0]) not in used:
                continue
            if isinstance(line, ast.Import):
                wanted[f"import {ast.unparse(alias)}"] = set()
            elif not line.module.startswith("perfkit"):
                wanted.setdefault(f"from {line.module} import ", set()).add(ast.unparse(alias))
    texts = [start + ", ".join(sorted(what)) for start, what in wanted.items()]
    texts.sort(key=lambda text: (text.startswith("from "), text.lower()))
    standard = [text for text in texts if text.split()[1].partition(".")[0] in sys.stdlib_module_names]
    groups = [standard, [text for text in texts if text not in standard]]
    return "\n".join("".join(f"{text}\n" for text in group) for group in groups)
