"""The standalone script of a recipe: `train.py` and the workload, with only the chosen branches left in."""

from __future__ import annotations

import ast
import difflib
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m

from perfkit.errors import WorkloadError
from perfkit.fold import fold
from perfkit.recipe import Recipe
from perfkit.workloads import reference

_HERE = Path(__file__).parent


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
    workload = reference(workload)  # a stored run may have the former name of one of perfkit's own
    module_name, _, name = workload.partition(":")
    own = module_name.split(".")[0] == "perfkit"
    before = _module_source(module_name) if own else f"from {module_name} import {name}\n"
    parts = [before] if own else [before, _recipe_object(recipe)]
    parts += [(_HERE / name).read_text(encoding="utf-8") for name in ("parts.py", "old_train.py")]
    arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
    built = f"{name}({arguments})" if own or options else f"{name}() if callable({name}) else {name}"
    start = "python" if recipe.ranks == 1 else f"torchrun --nproc-per-node {recipe.ranks}"
    main = _main(built, device, seed, steps, start)
    head = _heading(f"{workload}, {recipe.describe()}", device, start)
    for _ in range(20):
        # Before Python 3.11.8 and 3.12.2 two threads that parse at once share a depth counter, and one of
        # them may end in a SystemError (CPython gh-106905): a notebook's kernel parses every cell.
        with suppress(SystemError):
            return _written(recipe, head, main, own, *parts)
    return _written(recipe, head, main, own, *parts)


@lru_cache(maxsize=64)
def _written(recipe: Recipe, head: str, main: str, own: bool, *parts: str) -> str:
    modules = [fold(part, recipe, external=not own) for part in parts]
    text = head + _join(modules, main)
    return _tidy(_merged_imports(_drop_unused(_without_idle_step(text) if own else text)))


def _without_idle_step(text: str) -> str:
    """Calls a workload's `prepare` without asking whether there is one; not at all if it does nothing."""
    idle = re.search(r'def prepare\(self, images\b[^\n]*\n +"""[^\n]*"""\n +return images\n', text)
    call = "" if idle or "def prepare(" not in text else r"\1\2"
    return re.sub(r'( +)if hasattr\(workload, "prepare"\):\n +(inputs = [^\n]+\n)', call, text)


def _heading(what: str, device: str, start: str) -> str:
    """The docstring of the script, which has no empty line: `diff` skips it."""
    hint = f"""
On Linux start it with `OMP_WAIT_POLICY=PASSIVE {start} train.py`: libgomp's threads spin at barriers, and
beside a busy core or loader workers they take several times as long.
"""
    return f'"""Training script written by perfkit: {what}.{hint if device.startswith("cpu") else ""}"""\n\n'


def diff(before: str, after: str, names: tuple[str, str] = ("before", "after")) -> str:
    """A unified diff of two scripts without their headers; empty where they are the same."""
    sides = [text.split("\n\n", 1)[-1].splitlines(keepends=True) for text in (before, after)]
    return "".join(difflib.unified_diff(sides[0], sides[1], names[0], names[1], n=2))


_LOOP = ("make_loader", "to_device", "forward", "Training")


def excerpt(script: str) -> str:
    """The part of a script that one reads first: its loader and its training loop."""
    lines = script.splitlines(keepends=True)
    chosen = [node for node in ast.parse(script).body if getattr(node, "name", "") in _LOOP]
    return "\n\n".join("".join(lines[_lines(node).start - 1 : _lines(node).stop - 1]) for node in chosen)


def _module_source(module_name: str) -> str:
    path = _HERE.parent / (module_name.replace(".", "/") + ".py")
    if not path.exists():
        raise WorkloadError(
            f"no source for '{module_name}'", "Name a workload that perfkit ships, or your own"
        )
    return path.read_text(encoding="utf-8")


def _recipe_object(recipe: Recipe) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in recipe.to_dict().items())
    return f"from types import SimpleNamespace\n\nRECIPE = SimpleNamespace({values})\n"


def _main(built: str, device: str, seed: int, steps: int, start: str) -> str:
    return (
        f"def main():\n"
        f'    """Trains and prints the loss of each step: `{start} train.py [STEPS]`."""\n'
        f"    workload = {built}\n"
        f"    steps = int(sys.argv[1]) if len(sys.argv) > 1 else {steps}\n"
        f'    for step, loss in enumerate(train(workload, torch.device("{device}"), steps, seed={seed})):\n'
        f'        print(f"step {{step}}: loss {{loss!r}}", flush=True)\n\n\n'
        f'if __name__ == "__main__":\n    main()\n'
    )


_IMPORT = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
_DOCSTRING = m.SimpleStatementLine(body=[m.Expr(m.SimpleString() | m.ConcatenatedString())])
_MAIN = m.FunctionDef(name=m.Name("main")) | m.If(test=m.Comparison(left=m.Name("__name__")))


def _join(modules: list[cst.Module], main: str) -> str:
    """One module: the imports of all parts, their definitions, then `main`."""
    imports: set[str] = set()
    definitions: list[str] = []
    for module in modules:
        for statement in module.body:
            if m.matches(statement, _IMPORT):
                imports |= _single_imports(module.code_for_node(statement))
            elif not m.matches(statement, _DOCSTRING | _MAIN):
                definitions.append(module.code_for_node(statement).strip("\n"))
    lines = [line for line in imports if not line.startswith(("from __future__", "from perfkit"))]
    lines.sort(key=lambda line: (line.startswith("from "), line))
    return "\n".join(lines) + "\n\n\n" + "\n\n\n".join([*definitions, main])


def _single_imports(code: str) -> set[str]:
    """An import statement as one of its own for each name, so that names can be dropped one by one."""
    (node,) = ast.parse(code.strip()).body
    assert isinstance(node, ast.Import | ast.ImportFrom)
    start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
    return {f"{start} {ast.unparse(alias)}" for alias in node.names}


def _merged_imports(text: str) -> str:
    """`from a import b` and `from a import c` as one line again."""

    def merged(lines: re.Match[str]) -> str:
        return lines[1] + ", ".join(line.split(" import ")[1] for line in lines[0].splitlines()) + "\n"

    return re.sub(r"^(from \S+ import )(.+)\n(?:\1.+\n)+", merged, text, flags=re.MULTILINE)


def _tidy(text: str) -> str:
    within = re.sub(r"\n{3,}(?= )", "\n\n", text)  # what a removed method leaves inside its class
    return re.sub(r"\n{4,}", "\n\n\n", within).rstrip("\n") + "\n"


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
        gone = {line for node in unused for line in _lines(node)}
        text = "".join(line for at, line in enumerate(text.splitlines(keepends=True), 1) if at not in gone)


def _lines(node: ast.stmt) -> range:
    """The lines of a definition, with its decorators."""
    parts: list[ast.stmt | ast.expr] = [node, *getattr(node, "decorator_list", [])]
    return range(min(part.lineno for part in parts), (node.end_lineno or node.lineno) + 1)


def _is_unused(node: ast.stmt, used: set[str]) -> bool:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name not in used and not node.name.startswith("__")
    if isinstance(node, ast.Import | ast.ImportFrom):
        return not any((alias.asname or alias.name).split(".")[0] in used for alias in node.names)
    return False
