"""The standalone script of a recipe: `train.py` with the chosen branches only, and its workload.

The source is edited at the positions of its syntax tree, so that comments and layout stay as they are.
"""

import ast
import difflib
import itertools
import json
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perfkit.recipe import Recipe
from perfkit.workloads import files, reference

_HERE = Path(__file__).parent
_SIBLINGS = ("prefetch", "ranks", "checkpointing")
_SET_UP = {name: getattr(files, name) for name in ("photo_folder", "text_file")}
"""Functions of a workload that are evaluated when its script is written."""
_DEFAULT = (
    r"(collate_fn=None|enabled=True|mode=\"default\"|non_blocking=False|num_workers=0|persistent_workers=False|"
    r"pin_memory=False|prefetch_factor=(None|2)|set_to_none=True)"
)
"""An argument that has torch's own default."""
_FOLDED = {
    "( ->|:) \0": "",
    r"\n+( *)\0": r"\n\1",
    rf"^ *{_DEFAULT},\n": "",
    rf"(?<=\(){_DEFAULT}(?=\))": "",
    rf", {_DEFAULT}(?=[,)])": "",
    r", \*\*\{\}": "",
    r"\*\*\{'(\w+)': (\w+)\}": r"\1=\2",
}
"""No annotations, no empty lines above what was put in (both are marked), no arguments that say nothing."""
_WITHOUT_SCALER = {
    r"^ *scaler(\.update\(\)| = .*)\n": "",
    r"scaler\.scale\((\w+)\)": r"\1",
    r"scaler\.step\((\w+)\)": r"\1.step()",
}
"""The gradient scaler does nothing without fp16."""
_TIDY = {
    r"  # (type|noqa)\b.*": "",
    r"^ *(\w+) = \1\n": "",
    r"[ \t]+\n": "\n",
    r"\n{4,}": "\n\n\n",
    r"\n{3,}(?=    )": "\n\n",
}
"""No comments for tools, no name that is given to itself, few empty lines."""
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
    """
    module, _, name = reference(workload).partition(":")
    sources = [_read(part) for part in ("train", *_SIBLINGS)]
    chosen = {"recipe": SimpleNamespace(**recipe.to_dict())}
    scope: dict[str, Any] = {**chosen, "seed": seed}
    methods: dict[str, str] = {}
    if is_ours := module.partition(".")[0] == "perfkit":
        sources.insert(0, _read(module.removeprefix("perfkit.").replace(".", "/")))
        methods, fields = _workload(sources[0], name)
        scope |= {**_SET_UP, "hasattr": hasattr, "self": SimpleNamespace(**fields | options)}
    definitions: dict[str, str] = {}
    for source in sources:
        definitions |= _texts(source, _nodes(ast.parse(source)))
    tables = {"torch": SimpleNamespace(bfloat16=_Code("torch.bfloat16"), float16=_Code("torch.float16"))}
    for table in ("DTYPES", "IMPLEMENTATIONS"):
        exec(definitions[table], tables)
        scope[table] = tables[table]
    functions = {"endless": definitions["endless"]} | {f"workload.{at}": text for at, text in methods.items()}
    scope["workload"] = SimpleNamespace(**methods)
    loop = _Fold(definitions.pop("train"), scope, functions).all()
    loop = re.sub(r"^def train\(.*\)", "def train(device)", loop)
    if recipe.amp != "fp16":
        loop = _replaced(loop, _WITHOUT_SCALER)
    parts = [loop, _main(recipe, device, steps)]
    definitions = {at: _Fold(text, chosen, {}).all() for at, text in definitions.items()}
    needed = _needed(parts, definitions)
    parts = [text for at, text in definitions.items() if at in needed] + parts
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


class _Code(str):
    """The source of an expression, in the place of a value."""


def _read(module: str) -> str:
    return (_HERE / f"{module}.py").read_text(encoding="utf-8")


def _replaced(text: str, patterns: Mapping[str, str]) -> str:
    for pattern, replacement in patterns.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


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


def _lines(node: Any) -> tuple[int, int]:
    """The first line of a statement, from 1, and its last."""
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ()))), node.end_lineno


def _texts(source: str, nodes: Mapping[str, Any]) -> dict[str, str]:
    lines = source.splitlines()
    spans = {at: _lines(node) for at, node in nodes.items()}
    return {at: textwrap.dedent("\n".join(lines[first - 1 : last])) for at, (first, last) in spans.items()}


def _workload(source: str, name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The methods of a workload of perfkit's own, and its constructor's arguments with their defaults."""
    nodes = _nodes(_nodes(ast.parse(source))[name])
    methods = {at: node for at, node in nodes.items() if isinstance(node, ast.FunctionDef)}
    fields: dict[str, Any] = {at: node for at, node in nodes.items() if isinstance(node, ast.AnnAssign)}
    return _texts(source, methods), {at: ast.literal_eval(node.value) for at, node in fields.items()}


def _needed(texts: Iterable[str], definitions: Mapping[str, str]) -> set[str]:
    """The definitions that some texts refer to, and those that these refer to."""
    wanted: set[str] = set()
    while texts:
        new = set().union(*(_names(ast.parse(text)) for text in texts)) & set(definitions) - wanted
        wanted |= new
        texts = [definitions[name] for name in new]
    return wanted


# ---------------------------------------------------------------- folding


class _Fold:
    """A source with known values put in and only the chosen branches left; type annotations go.

    Args:
        text: the source.
        scope: names with their values, or with the `_Code` that replaces them. An expression of nothing else
            is replaced by its value if that is a literal.
        functions: by the name they are called by; their statements replace the call.
    """

    def __init__(self, text: str, scope: Mapping[str, Any], functions: Mapping[str, str]) -> None:
        self.text, self.scope, self.functions = f"{text}\n", dict(scope), functions
        self.starts = [0, *itertools.accumulate(map(len, self.text.splitlines(keepends=True)))]
        self.tree: Any = ast.parse(self.text)
        self.written: dict[Any, str] = {}
        """Nodes whose new source is known."""
        for node in ast.walk(self.tree):
            for name in ("annotation", "returns"):
                self.written[getattr(node, name, None)] = "\0"

    def all(self) -> str:
        """The whole source."""
        return _replaced(self.between(0, len(self.text), [self.tree]), _FOLDED)

    def between(self, start: int, end: int, nodes: Iterable[Any]) -> str:
        """The source between two positions, with what becomes of the nodes that lie there."""
        pieces = []
        for node in sorted(_placed(nodes), key=self.bounds):
            at, after = self.bounds(node)
            pieces += [self.text[start:at], self.of(node)]
            start = after
        return "".join([*pieces, self.text[start:end]])

    def bounds(self, node: Any) -> tuple[int, int]:
        """Start and end of a node; of a statement, those of its lines."""
        if isinstance(node, ast.stmt):
            first, last = _lines(node)
            return self.starts[first - 1], self.starts[last]
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: Any) -> str:
        """The new source of a node."""
        if node not in self.written:
            self.written[node] = self.value(node) or self.rewritten(node)
        return self.written[node]

    def rewritten(self, node: Any) -> str:
        """The new source of a node that is no known value: the chosen branch, the body of an idle `with`."""
        if isinstance(node, ast.If | ast.IfExp):
            chosen: Any = {"True": node.body, "False": node.orelse}.get(self.of(node.test))
            if chosen is not None:
                return self.block(chosen, node) if isinstance(node, ast.If) else self.of(chosen)
        if isinstance(node, ast.With):
            context = self.of(node.items[0].context_expr)
            if context.startswith("record_function(") or "enabled=False" in context:
                return self.block(node.body, node)
        before = self.inlined(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ""
        return before + self.as_it_is(node)

    def as_it_is(self, node: Any) -> str:
        """The source of a node, but for its parts."""
        return self.between(*self.bounds(node), ast.iter_child_nodes(node))

    def value(self, node: Any) -> str:
        """The literal that an expression stands for whose names are all known; empty where it is none."""
        names = _names(node) if isinstance(node, ast.expr) else ()
        if not names or not names <= self.scope.keys():
            return ""
        codes = [self.scope[name] for name in names if isinstance(self.scope[name], _Code)]
        if codes:
            return str(codes[0]) if isinstance(node, ast.Name) else ""
        try:  # perfkit's own source, never a user's
            value = eval(ast.unparse(node), {"__builtins__": {}}, self.scope)
        except (AttributeError, TypeError):  # a method of the workload, which is folded by itself
            return ""
        if isinstance(value, str) and not isinstance(value, _Code):
            return json.dumps(value)
        return str(value) if isinstance(value, _Code | bool | int | float | dict | None) else ""

    def block(self, statements: Sequence[Any], outer: Any) -> str:
        """The statements of a block, with the comments above, in the place of the statement that held it."""
        if not statements:
            return ""
        start, end = self.bounds(statements[0])[0], self.bounds(statements[-1])[1]
        while (comment := self.text.rindex("\n", 0, start - 1) + 1) and (
            self.text[comment:start].lstrip().startswith("#")
        ):
            start = comment
        deeper = statements[0].col_offset - outer.col_offset
        return re.sub(rf"^ {{{deeper}}}", "", self.between(start, end, statements), flags=re.MULTILINE)

    def inlined(self, statement: Any) -> str:
        """The statements of a function that a statement calls, but the last: that is what the call gives."""
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) not in self.functions:
                continue
            fold = _Fold(self.functions[ast.unparse(call.func)], self.scope, {})
            function = fold.tree.body[0]
            names = [param.arg for param in function.args.args if param.arg != "self"]
            names += [function.args.kwarg.arg for _ in call.keywords]
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            for name, value in zip(names, values, strict=True):
                if name != "recipe":
                    fold.scope[name] = _Code(self.of(value))
            *body, end = function.body[ast.get_docstring(function) is not None :]
            self.written[call] = fold.of(end.value)
            before = fold.between(fold.bounds([*body, end][0])[0], fold.bounds(end)[0], body)
            return re.sub("^    ", " " * statement.col_offset + "\0", before, flags=re.MULTILINE)
        return ""


def _placed(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes that have a place in the source; of others, their parts."""
    for node in nodes:
        if hasattr(node, "lineno"):
            yield node
        else:
            yield from _placed(ast.iter_child_nodes(node))


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
