"""The standalone script of a recipe: `train.py` with the chosen branches only, and its workload.

The training function is rewritten as a syntax tree; what it refers to is copied as it stands.
"""

import ast
import difflib
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perfkit.recipe import Recipe
from perfkit.workloads import files, reference

_HERE = Path(__file__).parent
_FILES = {"photo_folder": files.photo_folder, "text_file": files.text_file}
"""Functions of a workload that are evaluated when its script is written."""
_DEFAULTS = {
    "enabled=True", 'mode="default"', "non_blocking=False", "num_workers=0", "persistent_workers=False",
    "pin_memory=False", "prefetch_factor=None", "prefetch_factor=2", "set_to_none=True",
}  # fmt: skip
"""Arguments that have torch's own defaults."""
_WITHOUT_SCALER = {
    r"^ *scaler(\.update\(\)| = .*)\n": "",
    r"scaler\.scale\((\w+)\)": r"\1",
    r"scaler\.step\((\w+)\)": r"\1.step()",
}
"""The gradient scaler does nothing without fp16."""
_LONGEST = 100
"""Characters of a line; of a longer call, each argument gets a line of its own."""
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

    Args:
        recipe: every switch, as it acts on the device.
        workload: `package.module:name`; one of perfkit's own is written into the script, others are imported.
        options: the workload's constructor arguments.
        device: where the script trains.
        seed: of weights, order and augmentation.
        steps: how many steps it trains by default.
        set_up: whether the photos that it reads are made; a diff of scripts needs none.
    """
    module, _, name = reference(workload).partition(":")
    sources = [_read(part) for part in ("train", "parallel")]
    scope: dict[str, Any] = {"recipe": SimpleNamespace(**recipe.to_dict()), "seed": seed}
    methods: dict[str, Any] = {}
    if is_ours := module.partition(".")[0] == "perfkit":
        sources.insert(0, _read(module.removeprefix("perfkit.").replace(".", "/")))
        methods, fields = _workload(sources[0], name)
        scope |= {**_FILES, "hasattr": hasattr, "self": SimpleNamespace(**fields | options)}
        scope["workload"] = SimpleNamespace(**methods)
        if not set_up:
            scope["photo_folder"] = files.photo_place
    nodes: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for source in sources:
        own = _nodes(ast.parse(source))
        nodes |= own
        texts |= {at: _text(source, node) for at, node in own.items()}
    for table in ("DTYPES", "IMPLEMENTATIONS"):
        pairs = zip(nodes[table].value.keys, nodes[table].value.values, strict=True)
        scope[table] = {key.value: value for key, value in pairs}
    functions = {"endless": nodes["endless"]} | {f"workload.{at}": node for at, node in methods.items()}
    loop = _laid_out(_Chosen(scope, functions).visit(nodes["train"]))
    if recipe.amp != "fp16":
        for pattern, replacement in _WITHOUT_SCALER.items():
            loop = re.sub(pattern, replacement, loop, flags=re.MULTILINE)
    parts = [loop, _main(recipe, device, steps)]
    if not is_ours:
        parts.insert(0, _built(name, options, recipe))
    del texts["train"]
    needed = _needed(parts, texts)
    parts = [text for at, text in texts.items() if at in needed] + parts
    heading = f'"""Trains {name}: {_start(recipe)}"""\n\n{_imports(sources, parts, module, name)}'
    return "\n\n\n".join(part.strip("\n") for part in [heading, *parts]) + "\n"


def diff(before: str, after: str, names: tuple[str, str] = ("before", "after")) -> str:
    """A unified diff of two scripts; empty where they are the same."""
    sides = [text.splitlines(keepends=True) for text in (before, after)]
    return "".join(difflib.unified_diff(sides[0], sides[1], names[0], names[1], n=2))


# ---------------------------------------------------------------- the sources


def _read(module: str) -> str:
    return (_HERE / f"{module}.py").read_text(encoding="utf-8")


def _names(tree: ast.AST) -> set[str]:
    """The names that a source refers to, without attributes and keywords of arguments."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _nodes(block: Any) -> dict[str, Any]:
    """Functions, classes and assignments of a module, or of a class, by name."""
    nodes: dict[str, Any] = {}
    for node in block.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            nodes[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            nodes[ast.unparse(target)] = node
    return nodes


def _text(source: str, node: Any) -> str:
    """A definition as it stands, without comments for tools."""
    first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
    lines = source.splitlines()[first - 1 : node.end_lineno]
    return "\n".join(re.sub(r"  # (type|noqa)\b.*", "", line) for line in lines)


def _workload(source: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The methods of a workload of perfkit's own, and its constructor's arguments with their defaults."""
    nodes = _nodes(_nodes(ast.parse(source))[name])
    methods = {at: node for at, node in nodes.items() if isinstance(node, ast.FunctionDef)}
    fields = {at: node for at, node in nodes.items() if isinstance(node, ast.AnnAssign)}
    return methods, {at: ast.literal_eval(node.value) for at, node in fields.items() if node.value}


def _needed(texts: Iterable[str], definitions: Mapping[str, str]) -> set[str]:
    """The definitions that some texts refer to, and those that these refer to."""
    wanted: set[str] = set()
    while texts:
        new = set().union(*(_names(ast.parse(text)) for text in texts)) & set(definitions) - wanted
        wanted |= new
        texts = [definitions[name] for name in new]
    return wanted


# ---------------------------------------------------------------- the training function


class _Text(str):
    """A string in double quotes."""

    def __repr__(self) -> str:
        return json.dumps(str(self), ensure_ascii=False)


class _Chosen(ast.NodeTransformer):
    """Puts in what is known, and leaves only the chosen branches; type annotations go.

    Args:
        scope: names with their values, or with the expression that replaces them.
        functions: by the name they are called by; their statements replace the call.
    """

    def __init__(self, scope: Mapping[str, Any], functions: Mapping[str, Any]) -> None:
        self.scope, self.functions = scope, functions
        self.before: list[Any] = []
        """The statements of a function whose call was replaced: they precede the statement with the call."""

    def visit(self, node: Any) -> Any:
        known = self.known(node) if isinstance(node, ast.expr) else None
        return known or super().visit(node)

    def known(self, node: ast.expr) -> Any:
        """The literal, or other expression, that an expression stands for; None where it is not known."""
        names = _names(node)
        if not names or not names <= self.scope.keys():
            return None
        try:  # perfkit's own source, never a user's
            value = eval(ast.unparse(node), {"__builtins__": {}}, dict(self.scope))
        except (AttributeError, TypeError):  # a method of the workload, whose call is replaced
            return None
        if isinstance(value, bool | int | float | str | None):
            return self.visit_Constant(ast.Constant(value))
        return value if isinstance(value, ast.expr) else None

    def visit_Constant(self, node: ast.Constant) -> Any:
        return ast.Constant(_Text(node.value)) if isinstance(node.value, str) else node

    def visit_If(self, node: ast.If) -> Any:
        test = self.visit(node.test)
        if not isinstance(test, ast.Constant):
            return self.generic_visit(node)
        return self.all(node.body if test.value else node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        if not isinstance(test, ast.Constant):
            return self.generic_visit(node)
        return self.visit(node.body if test.value else node.orelse)

    def visit_With(self, node: ast.With) -> Any:
        context = ast.unparse(self.visit(node.items[0]))
        if context.startswith("record_function(") or "enabled=False" in context:
            return self.all(node.body)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.args.args = [ast.arg(each.arg) for each in node.args.args if each.arg == "device"]
        node.args.defaults, node.returns = [], None
        node.body = self.all(node.body)
        return node

    def visit_AnnAssign(self, node: Any) -> Any:
        return self.visit(ast.Assign([node.target], node.value, lineno=0))

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.before = []
        self.generic_visit(node)
        is_idle = ast.unparse(node.targets[0]) == ast.unparse(node.value)
        return self.before + [node] * (not is_idle)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        function = self.functions.get(ast.unparse(node.func))
        if not function:
            return node
        names = [each.arg for each in function.args.args if each.arg != "self"]
        scope = {**self.scope, **dict(zip(names, node.args, strict=True))}
        if function.args.kwarg:
            given: list[Any] = [ast.Constant(each.arg) for each in node.keywords]
            scope[function.args.kwarg.arg] = ast.Dict(given, [each.value for each in node.keywords])
        scope["recipe"] = self.scope["recipe"]
        body = function.body[ast.get_docstring(function) is not None :]
        *self.before, end = _Chosen(scope, {}).all(body)
        return end.value

    def visit_keyword(self, node: ast.keyword) -> Any:
        self.generic_visit(node)
        if node.arg is None and isinstance(node.value, ast.Dict):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return [ast.keyword(key.value, value) for key, value in pairs]  # type: ignore[union-attr]
        return None if ast.unparse(node) in _DEFAULTS else node

    def all(self, statements: list[ast.stmt]) -> list[Any]:
        """What becomes of some statements."""
        return self.generic_visit(ast.Module(statements, [])).body  # type: ignore[attr-defined, no-any-return]


def _laid_out(function: ast.FunctionDef) -> str:
    """The source of a function; each argument of a long call with keywords has a line of its own."""
    text = ast.unparse(function)
    for node in function.body:
        line, call = f"    {ast.unparse(node)}", getattr(node, "value", None)
        # A long path alone breaks no line: the layout would depend on where data lie.
        if (
            len(line) > _LONGEST
            and isinstance(node, ast.Assign)
            and isinstance(call, ast.Call)
            and call.keywords
        ):
            arguments = "".join(f"        {ast.unparse(each)},\n" for each in (*call.args, *call.keywords))
            start = f"    {ast.unparse(node.targets[0])} = {ast.unparse(call.func)}("
            text = text.replace(line, f"{start}\n{arguments}    )")
    return text


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


def _imports(sources: Iterable[str], parts: Iterable[str], module: str, name: str) -> str:
    """The imports of what the parts use: the standard library, then others; plain ones first."""
    used, wanted = _names(ast.parse("\n".join(parts))), defaultdict[str, set[str]](set)
    for line in ast.parse("\n".join([_FURTHER, f"from {module} import {name}", *sources])).body:
        place = getattr(line, "module", "")
        for alias in getattr(line, "names", ()):
            text = ast.unparse(alias)
            if place.startswith("perfkit") or (alias.asname or text.partition(".")[0]) not in used:
                continue
            if place:
                wanted[f"from {place} import "].add(text)
            else:
                wanted[f"import {text}"].add("")

    def is_further(text: str) -> bool:
        return text.split()[1].partition(".")[0] not in sys.stdlib_module_names

    texts = [start + ", ".join(sorted(what)) for start, what in wanted.items()]
    texts.sort(key=lambda text: (is_further(text), text.startswith("from "), text.lower()))
    return "\n".join(
        "".join(f"{text}\n" for text in group) for _, group in itertools.groupby(texts, is_further)
    )
