"""The standalone script of a recipe: `train.py` with the chosen branches only, and its workload."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libcst as cst
import libcst.matchers as m

from perfkit.errors import WorkloadError
from perfkit.fold import RETURN, Fold, body, code, names, with_arguments
from perfkit.recipe import Recipe
from perfkit.workloads import files, reference

_HERE = Path(__file__).parent
_SIBLINGS = ("prefetch", "ranks", "checkpointing")
_IMPORT = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
_METHOD = m.Call(func=m.Attribute(value=m.Name("workload")))
_SET_UP = {name: getattr(files, name) for name in ("photo_folder", "text_file")}
"""Functions of a workload that are evaluated when its script is written."""


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
    train = _parsed("train")
    program: Any
    scope: dict[str, Any] = {"recipe": SimpleNamespace(**recipe.to_dict()), "seed": seed}
    sources, built = [train, *map(_parsed, _SIBLINGS)], ""
    if module.split(".")[0] == "perfkit":
        source = _parsed(module.removeprefix("perfkit.").replace(".", "/"))
        program = _inlined(_function(train, "train"), source, name, options, scope)
        sources = [source, *sources]
    else:
        built = _built(module, name, options, recipe)
        program = _function(train, "train").visit(_fold(train, {**scope, "workload": object()}))
    endless = _function(train, "endless")
    program = program.visit(_Inline({"endless": endless}, m.Call(func=m.Name("endless"))))
    if recipe.amp != "fp16":
        program = program.visit(_WithoutScaler())
    definitions = _definitions(sources, scope)
    main = _main(recipe, device, steps)
    wanted = _needed([code(program), main], definitions)
    functions = [definitions[one] for one in definitions if one in wanted]
    parts = [*filter(None, [built]), *map(_source, functions), _source(program), main]
    heading = f'"""Trains {name}: {_start(recipe)}"""\n\n'
    return _tidy(heading + _imports(sources, parts, module if built else "", name) + "\n\n".join(parts))


def diff(before: str, after: str, names: tuple[str, str] = ("before", "after")) -> str:
    """A unified diff of two scripts; empty where they are the same."""
    sides = [text.splitlines(keepends=True) for text in (before, after)]
    return "".join(difflib.unified_diff(sides[0], sides[1], names[0], names[1], n=2))


def excerpt(script: str) -> str:
    """The part of a script that one reads first: loader, model and training loop."""
    return script[script.index("def train(") : script.index('if __name__ == "__main__"')].rstrip() + "\n"


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


def _function(module: cst.Module | cst.ClassDef, name: str) -> Any:
    """A function or class of a module, or a method of a class."""
    inside = module.body.body if isinstance(module, cst.ClassDef) else module.body
    return next((node for node in inside if getattr(getattr(node, "name", None), "value", "") == name), None)


def _fold(train: cst.Module, scope: Mapping[str, Any]) -> Fold:
    tables = {
        code(target): node.value
        for line in train.body
        if isinstance(line, cst.SimpleStatementLine)
        for node in line.body
        if isinstance(node, cst.Assign | cst.AnnAssign) and isinstance(node.value, cst.Dict)
        for target in ([node.target] if isinstance(node, cst.AnnAssign) else [t.target for t in node.targets])
    }
    return Fold(scope, tables)


def _definitions(sources: Iterable[cst.Module], scope: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a script may need, by name, in the order of the sources."""
    found: dict[str, Any] = {}
    for module in sources:
        for node in module.body:
            if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.name.value != "train":
                found[node.name.value] = node.visit(Fold({"recipe": scope["recipe"]}, {}))
            elif isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Assign):
                found[code(node.body[0].targets[0].target)] = node
    return found


def _needed(texts: Iterable[str], definitions: Mapping[str, Any]) -> set[str]:
    """The definitions that some texts refer to, and those that these refer to."""
    wanted: set[str] = set()
    new = set().union(*(names(cst.parse_module(text)) for text in texts)) & set(definitions)
    while new - wanted:
        wanted |= new
        new = set().union(*(names(definitions[name]) for name in wanted)) & set(definitions)
    return wanted


# ---------------------------------------------------------------- a workload of perfkit's own


def _inlined(
    train: cst.FunctionDef, source: cst.Module, name: str, options: dict[str, Any], scope: dict[str, Any]
) -> Any:
    """The program with the methods of a workload in place of their calls."""
    workload = _function(source, name)
    if workload is None:
        raise WorkloadError(f"perfkit has no workload '{name}'", "Name one that it ships, or your own")
    known = {**scope, **_SET_UP, "self": SimpleNamespace(**_fields(workload) | options)}
    methods: dict[str, Any] = {
        node.name.value: node.visit(Fold(known, {}))
        for node in workload.body.body
        if isinstance(node, cst.FunctionDef)
    }
    named = {"workload": SimpleNamespace(**dict.fromkeys(methods, object())), "hasattr": hasattr}
    folded: Any = train.visit(_fold(_parsed("train"), {**scope, **named}))
    return folded.visit(_Inline(methods))


def _fields(workload: cst.ClassDef) -> dict[str, Any]:
    """The constructor's arguments with their defaults: the fields of a dataclass."""
    lines = [line.body[0] for line in workload.body.body if isinstance(line, cst.SimpleStatementLine)]
    return {
        code(line.target): eval(code(line.value), {"__builtins__": {}})
        for line in lines
        if isinstance(line, cst.AnnAssign) and line.value
    }


class _Inline(cst.CSTTransformer):
    """Puts the body of a method in the place of the statement that calls it."""

    def __init__(self, methods: Mapping[str, cst.FunctionDef], calls: Any = _METHOD) -> None:
        super().__init__()
        self.methods, self.calls = methods, calls

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        calls: Sequence[Any] = m.findall(updated_node, self.calls)
        if not calls:
            return updated_node
        method = self.methods[code(calls[0].func).rpartition(".")[2]]
        *before, last = self._statements(calls[0], method)
        assert m.matches(last, RETURN), f"{method.name.value} ends without a return"
        replaced: Any = updated_node.deep_replace(calls[0], last.body[0].value)
        assignment = replaced.body[0]
        idle = isinstance(assignment, cst.Assign) and code(assignment.targets[0].target) == code(
            assignment.value
        )
        return cst.FlattenSentinel([*before, *([] if idle else [replaced])])

    @staticmethod
    def _statements(call: cst.Call, method: cst.FunctionDef) -> list[Any]:
        lines = body(method)
        params = [param.name.value for param in method.params.params if param.name.value != "self"]
        positional = [argument for argument in call.args if not argument.keyword]
        values = {name: argument.value for name, argument in zip(params, positional, strict=False)}
        star = method.params.star_kwarg
        extra = [argument for argument in call.args if argument.keyword]
        put = _Substitute(values, star.name.value if star else "", extra)
        return [line.visit(put) for line in lines]


class _Substitute(cst.CSTTransformer):
    """Puts arguments in the place of parameters."""

    def __init__(self, values: Mapping[str, cst.BaseExpression], star: str, extra: list[cst.Arg]) -> None:
        super().__init__()
        self.values, self.star, self.extra = values, star, extra

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        return self.values.get(original_node.value, updated_node)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        kept = [arg for arg in updated_node.args if not (arg.star == "**" and code(arg.value) == self.star)]
        if len(kept) == len(updated_node.args):
            return updated_node
        return with_arguments(updated_node, [*kept, *self.extra])


class _WithoutScaler(cst.CSTTransformer):
    """Takes the gradient scaler out, which does nothing without fp16."""

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        function = code(updated_node.func)
        if function == "scaler.scale":
            return updated_node.args[0].value
        if function == "scaler.step":
            return cst.parse_expression("optimizer.step()")
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        text = code(updated_node).strip()
        gone = text.startswith("scaler = ") or text == "scaler.update()"
        return cst.RemoveFromParent() if gone else updated_node


# ---------------------------------------------------------------- the parts of the script


def _built(module: str, name: str, options: Mapping[str, Any], recipe: Recipe) -> str:
    """A user's own workload, and the switches that its methods may ask for."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
    call = f"{name}({arguments})"
    made = call if options or name[:1].isupper() else f"{call} if callable({name}) else {name}"
    values = "".join(f"    {key}={value!r},\n" for key, value in recipe.to_dict().items())
    return f"workload = {made}\nrecipe = SimpleNamespace(\n{values})\n"


def _start(recipe: Recipe) -> str:
    variables = " ".join(f"{name}={value}" for name, value in recipe.environment().items())
    python = "python" if recipe.ranks == 1 else f"torchrun --nproc-per-node {recipe.ranks}"
    return " ".join(filter(None, [variables, python, "train.py [STEPS]"]))


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


def _source(node: cst.CSTNode) -> str:
    return code(node).strip("\n") + "\n"


def _imports(sources: Iterable[cst.Module], parts: Sequence[str], module: str, name: str) -> str:
    """The imports of what the parts use: the standard library, then others; plain ones first."""
    used = names(cst.parse_module("\n".join(parts)))
    found = {("import sys", "sys"), ("from itertools import islice", "islice")}
    found |= {(f"from {module} import {name}", name)} if module else set()
    found |= {("from types import SimpleNamespace", "SimpleNamespace")}
    for source in sources:
        for statement in source.body:
            if m.matches(statement, _IMPORT):
                found |= set(_bound(statement))
    wanted: dict[str, set[str]] = {}
    for line, bound in found:
        start, _, what = line.rpartition(" import ")
        if bound in used and "perfkit" not in start:
            wanted.setdefault(f"{start} import " if start else line, set()).add(what if start else "")
    lines = [start + ", ".join(sorted(what)) for start, what in wanted.items()]
    standard = [line for line in lines if line.split()[1].split(".")[0] in sys.stdlib_module_names]
    groups = [standard, [line for line in lines if line not in standard]]
    return "\n".join("".join(f"{line}\n" for line in sorted(group, key=_order)) for group in groups) + "\n\n"


def _order(line: str) -> tuple[bool, str]:
    return line.startswith("from "), line.lower()


def _bound(line: Any) -> Iterator[tuple[str, str]]:
    """Single imports of a statement, each with the name that it binds."""
    statement: Any = line.body[0]
    start = f"from {code(statement.module)} " if hasattr(statement, "module") else ""
    for alias in statement.names:
        what = code(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        yield f"{start}import {what}", what.rpartition(" ")[2].split(".")[0]


def _tidy(text: str) -> str:
    """At most two empty lines between definitions, and one within."""
    text = re.sub(r"\n{4,}", "\n\n\n", re.sub(r"[ \t]+\n", "\n", text))
    return re.sub(r"\n{3,}(?=    )", "\n\n", text).rstrip("\n") + "\n"
