"""The standalone script of a recipe: `train.py` with the chosen branches only, and its workload.

The training function is rewritten as a syntax tree; what it refers to is copied as it is. This is
made for the shape of `train.py`: `train` has a `device` and a `program`, and ends with a loop over `batches`.
"""

import ast
import copy
import difflib
import keyword
import operator
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from perfkit import lookup
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe, Value
from perfkit.workloads import files, reference

_DEFAULTS: dict[str, dict[str | None, tuple[Value | None, ...]]] = {
    "DataLoader": {"num_workers": (0,), "persistent_workers": (False,), "pin_memory": (False,),
                   "prefetch_factor": (None, 2)},
    "GradScaler": {"enabled": (True,)}, "autocast": {"enabled": (True,)}, "compile": {"mode": ("default",)},
    "to": {"non_blocking": (False,)}, "zero_grad": {"set_to_none": (True,)},
}  # fmt: skip
"""The defaults of arguments of torch's functions, which nobody writes."""
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Eq: operator.eq, ast.Gt: operator.gt, ast.Not: operator.not_,
    ast.NotEq: operator.ne,
}  # fmt: skip
"""What is computed where it has constant operands."""
_TABLES = lookup.toml("perfkit", "export")
_PLACES: dict[str, Callable[[Any], str]] = {"text_file": files.text_file, "photo_folder": files.photo_folder}
_EXAMPLES: dict[str, Callable[[Any], str]] = {"text_file": str, "photo_folder": "photo-folder-{}".format}
"""Where the files of a workload are, and what a script to look at names in their place."""
_OTHER_VERSION = "A recording of another version of perfkit may name one"
_STRING = re.compile(r"""\"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_LONGEST = 100  # characters of a line; in a longer call, each argument has its own line
_Named = dict[str, Any]
_FURTHER = "import sys; from itertools import islice; from types import SimpleNamespace"


def script(
    recipe: Recipe,
    workload: str,
    options: dict[str, Any],
    device: str = "cpu",
    seed: int = 0,
    steps: int = 8,
    set_up: bool = True,
) -> str:
    """The standalone training script of a recipe: no import of perfkit, the same losses as a measured run.

    A workload of perfkit's own is written into the script, others are imported. `options` are all of its
    constructor arguments. A device that torch does not have, such as a simulated GPU, is a CUDA device there.
    `set_up` makes the photos that the script reads, and names their folder; a script to look at needs none,
    and names no place of this machine. An `InvalidValue` refuses what is not a name in Python.
    """
    device = device if re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", device) else "cuda"
    module, _, name = _checked(reference(workload), options).partition(":")
    is_ours = module.startswith("perfkit.")
    sources = [_read(file) for file in ("train", "program")]
    if is_ours:
        sources.insert(0, _read(module.removeprefix("perfkit.").replace(".", "/")))
    nodes, texts = _parsed(sources)
    if is_ours and not isinstance(nodes.get(name), ast.ClassDef):
        raise InvalidValue(f"perfkit has no workload {workload}", _OTHER_VERSION)
    methods, replacements = _workload(nodes[name], options) if is_ours else ({}, {})
    replacements |= _replacements(nodes, recipe, seed)
    end = _TABLES["end"].format(steps=steps, device=device)
    absent = {"program"} if recipe.amp == "fp16" else {"program", "scaler"}
    written = [_loop(nodes, methods, replacements, absent, set_up), end]
    if not is_ours:
        written.insert(0, _built(name, options, recipe))
    del texts["train"]
    written = _needed(written, texts) + written
    imports = _imports([_FURTHER, f"from {module} import {name}", *sources], written)
    variables = "".join(f"{key}={value} " for key, value in recipe.environment().items())
    heading = f'"""Trains {name}: {variables}python train.py [STEPS]"""\n\n{imports}'
    return "\n\n\n".join(part.strip("\n") for part in [heading, *written]) + "\n"


def diff(before: str, after: str, name: str) -> str:
    """A unified diff of the scripts before and with an optimization; empty where they are the same."""
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"train.py before {name}", f"train.py with {name}", n=2))


def _parsed(sources: Iterable[str]) -> tuple[_Named, dict[str, str]]:
    """The definitions of modules by name: their syntax trees, and their texts."""
    nodes: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for source in sources:
        for name, node in _definitions(ast.parse(source)).items():
            nodes[name] = node
            texts[name] = "\n".join(source.split("\n")[node.lineno - 1 : node.end_lineno])
    return nodes, texts


def _replacements(nodes: _Named, recipe: Recipe, seed: int) -> dict[str, ast.expr]:
    """Expressions of `train`, named by their source, and the expressions that replace them."""
    replacements: dict[str, ast.expr] = {"seed": ast.Constant(seed)}
    replacements |= {f"recipe.{name}": ast.Constant(value) for name, value in recipe.to_dict().items()}
    for table, switch in (("DTYPES", "amp"), ("IMPLEMENTATIONS", "optimizer_impl")):
        entries = nodes[table].value
        values = {key.value: value for key, value in zip(entries.keys, entries.values, strict=True)}
        replacements[f"{table}[recipe.{switch}]"] = values[getattr(recipe, switch)]
    return replacements


def _workload(definition: Any, options: Mapping[str, Any]) -> tuple[_Named, dict[str, ast.expr]]:
    """The methods of a workload, and the values of its fields (`self.NAME`) with these options."""
    methods: _Named = {}
    replacements: dict[str, ast.expr] = {}
    for name, node in _definitions(definition).items():
        if isinstance(node, ast.FunctionDef):
            methods[name] = node
        elif isinstance(node, ast.AnnAssign) and node.value:
            replacements[f"self.{name}"] = node.value
    replacements |= {f"self.{name}": ast.Constant(value) for name, value in options.items()}
    replacements["hasattr(workload, 'prepare')"] = ast.Constant("prepare" in methods)
    return methods, replacements


def _checked(workload: str, options: Mapping[str, Any]) -> str:
    """A workload's reference; refuses what is not a name in Python, in it or among the options."""
    words = [*re.split("[.:]", workload), *options]
    for word in words:
        if not word.isidentifier() or keyword.iskeyword(word):
            what = f"the script of {workload} cannot be written: {word!r} is not a name in Python"
            raise InvalidValue(what, "If it is from a recording, do not trust that file")
    return workload


def _read(module: str) -> str:
    try:
        return (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    except OSError:
        raise InvalidValue(f"perfkit has no module {module}", _OTHER_VERSION) from None


def _names(tree: ast.AST) -> set[str]:
    """The names that a source refers to, without attributes and keywords of arguments."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _definitions(block: Any) -> dict[str, Any]:
    """Functions, classes and assignments of a module, or of a class, by name."""
    nodes: dict[str, Any] = {}
    for node in block.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            nodes[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            nodes[ast.unparse(target)] = node
    return nodes


def _needed(parts: list[str], texts: Mapping[str, str]) -> list[str]:
    """The definitions that the parts of a script use, directly or through others."""
    wanted: set[str] = set()
    while new := _names(ast.parse("\n".join(parts))) & (texts.keys() - wanted):
        wanted |= new
        parts = [texts[name] for name in new]
    return [text for name, text in texts.items() if name in wanted]


def _imports(sources: Iterable[str], parts: Iterable[str]) -> str:
    """The imports of what the parts use: the standard library, then others; plain ones first."""
    used = _names(ast.parse("\n".join(parts)))
    plain: set[str] = set()
    wanted: dict[str, set[str]] = defaultdict(set)  # names by their modules
    for line in ast.parse("\n".join(sources)).body:
        for alias in getattr(line, "names", ()):
            if (alias.asname or alias.name.partition(".")[0]) in used:
                names = wanted[line.module or ""] if isinstance(line, ast.ImportFrom) else plain
                names.add(ast.unparse(alias))
    lines = [(module, f"import {module}") for module in sorted(plain)]
    lines += [(name, f"from {name} import {', '.join(sorted(wanted[name]))}") for name in sorted(wanted)]
    not_others = {*sys.stdlib_module_names, "perfkit"}
    standard = [text for module, text in lines if module.partition(".")[0] in sys.stdlib_module_names]
    others = [text for module, text in lines if module.partition(".")[0] not in not_others]
    return "\n".join([*standard, "", *others])


def _loop(nodes: _Named, methods: _Named, replacements: _Named, absent: Set[str], set_up: bool) -> str:
    """The training function, with expressions replaced and the methods of the workload inlined."""
    functions = {f"workload.{name}": node for name, node in methods.items()}
    functions["program.batches"] = nodes["endless"]
    for name in absent:
        for source, plain in _TABLES["without"][name].items():
            replacements[source] = ast.parse(plain, mode="eval").body
    function = nodes["train"]
    for step in (_Inlined(functions), _Replaced(replacements), _Chosen(absent, set_up), _Tidied()):
        function = step.visit(function)
    return _laid_out(_as_written(function))


def _as_written(function: ast.FunctionDef) -> ast.FunctionDef:
    """The training function of one device, whose loop takes its batches from the line before it."""
    *statements, before, loop = function.body
    if not isinstance(loop, ast.For) or ast.unparse(loop.iter) != "batches":
        raise AssertionError("train.py: `train` must end with its loop over `batches`: see perfkit/export.py")
    if isinstance(before, ast.Assign) and ast.unparse(before.targets[0]) == "batches":
        loop.iter = before.value
        function.body = [*statements, loop]
    function.args.args = [ast.arg("device")]
    function.args.defaults = []
    function.returns = None
    return function


class _Replaced(ast.NodeTransformer):
    """Replaces expressions, which are named by their source, with others."""

    def __init__(self, expressions: Mapping[str, ast.expr]) -> None:
        self._expressions = expressions

    def visit(self, node: Any) -> Any:
        replacement = self._expressions.get(ast.unparse(node)) if isinstance(node, ast.expr) else None
        return copy.deepcopy(replacement) if replacement else super().visit(node)


class _Inlined(ast.NodeTransformer):
    """Replaces the calls of functions, which are given by name, with their statements."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self._functions = functions

    def visit_Assign(self, node: Any) -> Any:
        """What a function does comes before the assignment, and what it returns into it."""
        before: list[ast.stmt] = []
        for call in [part for part in ast.walk(node.value) if isinstance(part, ast.Call)]:
            function = self._functions.get(ast.unparse(call.func))
            if function:
                *statements, end = _body(function, call)
                before += statements
                node.value = _Replaced({ast.unparse(call): end.value}).visit(node.value)
        return [*before, node]

    visit_AnnAssign = visit_Assign


def _body(function: ast.FunctionDef, call: ast.Call) -> list[Any]:
    """The statements of a function, without its docstring, for the arguments of a call."""
    names = [argument.arg for argument in function.args.args if argument.arg != "self"]
    arguments = dict(zip(names, call.args, strict=True))
    if function.args.kwarg:
        arguments[function.args.kwarg.arg] = call.keywords[0].value  # a dictionary after two asterisks
    statements = function.body
    if ast.get_docstring(function) is not None:
        statements = statements[1:]
    return [_Replaced(arguments).visit(statement) for statement in statements]


class _Chosen(ast.NodeTransformer):
    """Evaluates constant expressions, keeps the branches that are taken, and drops what uses absent names."""

    def __init__(self, absent: Set[str], set_up: bool) -> None:
        self._absent = absent
        self._places = _PLACES if set_up else _EXAMPLES

    def _evaluated(self, node: Any) -> Any:
        self.generic_visit(node)
        parts = list(ast.iter_child_nodes(node))
        operators = [_OPERATORS[type(part)] for part in parts if type(part) in _OPERATORS]
        operands = [part for part in parts if isinstance(part, ast.expr)]
        if len(operators) == 1 and all(isinstance(operand, ast.Constant) for operand in operands):
            return _computed(node, operators[0], operands)
        return node

    visit_BinOp = visit_Compare = visit_UnaryOp = _evaluated

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        place = self._places.get(_called(node))
        return _computed(node, place, node.args) if place else node

    def visit_If(self, node: ast.If | ast.IfExp) -> Any:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    visit_IfExp = visit_If

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        context = node.items[0].context_expr
        keywords = context.keywords if isinstance(context, ast.Call) else []
        is_disabled = "enabled=False" in map(ast.unparse, keywords)
        return node.body if is_disabled or self._absent & _names(context) else node

    def visit_Assign(self, node: Any) -> Any:
        self.generic_visit(node)
        return None if self._absent & _names(node) else node

    visit_AnnAssign = visit_Expr = visit_Assign


class _Tidied(ast.NodeTransformer):
    """Leaves out what nobody writes: annotations, torch's own defaults, assignments of a name to itself."""

    def visit_AnnAssign(self, node: Any) -> Any:
        return self.visit(ast.Assign([node.target], node.value, lineno=0))

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        return None if ast.unparse(node.targets[0]) == ast.unparse(node.value) else node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        defaults = _DEFAULTS.get(_called(node).rpartition(".")[2], {})
        arguments: list[ast.keyword] = []
        for argument in node.keywords:
            value = argument.value
            if argument.arg is None and isinstance(value, ast.Dict):
                pairs: Any = zip(value.keys, value.values, strict=True)
                arguments += [ast.keyword(key.value, of_key) for key, of_key in pairs]
            elif not (isinstance(value, ast.Constant) and value.value in defaults.get(argument.arg, ())):
                arguments.append(argument)
        node.keywords = arguments
        return node


def _computed(node: ast.expr, function: Callable[..., Any], operands: Iterable[Any]) -> ast.Constant:
    """The value of an expression; an `InvalidValue` if an option of the workload has another type."""
    try:
        return ast.Constant(function(*(operand.value for operand in operands)))
    except TypeError as problem:
        what = f"{ast.unparse(node)} cannot be computed: {problem}"
        raise InvalidValue(what, "Check the options of the workload") from None


def _called(node: ast.AST) -> str:
    """What a call calls, such as `program.part`; empty for anything else."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _laid_out(function: ast.FunctionDef) -> str:
    """The source of a function, with its strings in double quotes."""
    docstring, *statements = function.body
    function.body = [docstring]
    return _STRING.sub(_in_double_quotes, "\n".join([ast.unparse(function), *map(_statement, statements)]))


def _statement(node: ast.stmt) -> str:
    """A statement in a function; each argument of a long call with keywords has its own line."""
    text = ast.unparse(node)
    call = node.value if isinstance(node, ast.Assign) and len(text) + 4 > _LONGEST else None
    # A call without keywords is not broken: a long path would make the layout depend on where the data are.
    if isinstance(call, ast.Call) and call.keywords:
        arguments = "".join(f"    {ast.unparse(argument)},\n" for argument in (*call.args, *call.keywords))
        text = text.replace(ast.unparse(call), f"{_called(call)}(\n{arguments})")
    return textwrap.indent(text, "    ")


def _in_double_quotes(string: re.Match[str]) -> str:
    """A string of the source as people write it: in double quotes, unless it contains one."""
    text = string[0]
    return text if text[0] == '"' or '"' in text else f'"{text[1:-1]}"'


def _built(name: str, options: Mapping[str, Any], recipe: Recipe) -> str:
    """A user's own workload, and the switches that its methods may ask for."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
    workload = f"{name}({arguments})"
    if not options and not name[:1].isupper():
        workload = f"{workload} if callable({name}) else {name}"
    values = "".join(f"    {key}={value!r},\n" for key, value in recipe.to_dict().items())
    return f"workload = {workload}\nrecipe = SimpleNamespace(\n{values})\n"
