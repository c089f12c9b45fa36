"""Which line of the user's a difference between ranks comes from."""

import ast
import linecache
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfkit.additions.inside.lines import text_at
from perfkit.additions.ranks.messages import Stack, State

_MOST_OF_IT = 0.6
"""Of the time by which a rank is late: what a line must explain."""
_RANK = {"rank", "get_rank", "local_rank", "global_rank", "RANK", "LOCAL_RANK", "process_index"}
"""Names by which a script asks which rank it is."""


def place(where: str) -> str:
    """`train.py:41`, of a whole path."""
    return where.rpartition("/")[2]


def quoted(where: str) -> str:
    """`train.py:41: loss.backward()`."""
    text = text_at(where)
    return f"{place(where)}: `{text}`" if text else place(where)


def line_of_difference(late: State, others: Sequence[State], parts: Sequence[str]) -> str:
    """The line of these parts at which the late rank spends more than the others; empty if there is none.

    It is the outermost that only this rank passes, or else the innermost that explains most of the time.
    """
    own = _seconds(late.stacks, parts, late.count)
    rest = [_seconds(other.stacks, parts, other.count) for other in others]
    usual = {line: sum(each.get(line, (0.0, 0))[0] for each in rest) / len(rest) for line in own}
    more = {line: seconds - usual[line] for line, (seconds, _) in own.items()}
    most = max(more.values(), default=0.0)
    telling = [line for line in own if most > 0 and more[line] >= _MOST_OF_IT * most]
    passed = {line for other in others for stack in other.stacks for line in stack.lines}
    alone = [line for line in telling if line not in passed]
    if alone:
        return min(alone, key=lambda line: own[line][1])
    return max(telling, key=lambda line: own[line][1], default="")


def _seconds(stacks: Sequence[Stack], parts: Sequence[str], steps: int) -> dict[str, tuple[float, int]]:
    """Seconds a step of each line with all that it calls, and how deep it is."""
    seconds, depth = defaultdict[str, float](float), dict[str, int]()
    for stack in stacks:
        if stack.part in parts:
            for at, line in enumerate(dict.fromkeys(stack.lines)):
                seconds[line] += stack.seconds / max(1, steps)
                depth[line] = max(at, depth.get(line, 0))
    return {line: (spent, depth[line]) for line, spent in seconds.items()}


def line_of_share(where: str) -> str:
    """The line that gives each rank its own inputs: on the way to this call, it asks for the rank.

    Names are followed back through the assignments of the function; empty if none of them asks.
    """
    file, _, number = where.rpartition(":")
    try:
        tree = ast.parse("".join(linecache.getlines(file)) or Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""
    function = _around(tree, int(number))
    asking, names, seen = _asking(function), _names_at(function, int(number)), set[str]()
    while names:
        seen |= names
        assigned = sorted(
            (each for name in names for each in _assignments(function, name)), key=lambda each: each[0]
        )
        for line, used in assigned:
            if used & asking and not any("seed" in word for word in used):  # which changes no lengths
                return f"{file}:{line}"
        names = {name for _, used in assigned for name in used} - seen - asking
    return ""


def _around(tree: ast.Module, number: int) -> ast.AST:
    """The innermost function with this line, or the module."""
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= number <= (node.end_lineno or 0)
    ]
    return max(functions, key=lambda node: node.lineno, default=tree)


def _names(node: ast.AST) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return names | {
        part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and part.value in _RANK
    }


def _asking(function: ast.AST) -> set[str]:
    """Names that hold which rank this is."""
    asking = set(_RANK)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _names(node.value) & _RANK and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(target.elts, value.elts, strict=False)
                asking |= {name for each, of in pairs if _names(of) & _RANK for name in _names(each)}
            elif isinstance(value, ast.Call) and isinstance(target, ast.Name):
                asking |= {target.id} if _is_plain(value) else set()
    return asking


def _is_plain(call: ast.Call) -> bool:
    """Whether a call gives the rank itself, such as `dist.get_rank()` or `int(os.environ["RANK"])`."""
    return bool(_names(call.func) & _RANK) or _names(call.func) <= {"int", "os", "environ", "get", "getenv"}


def _names_at(function: ast.AST, number: int) -> set[str]:
    found = set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and node.lineno <= number <= (node.end_lineno or 0):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                found |= {part.id for part in ast.walk(argument) if isinstance(part, ast.Name)}
    return found


def _assignments(function: ast.AST, name: str) -> Iterator[tuple[int, set[str]]]:
    """Lines that give a name its value, and the names that they use."""
    for node in ast.walk(function):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = [*zip(node.targets[0].elts, node.value.elts, strict=False)]
        elif isinstance(node, ast.For):
            pairs = [(node.target, node.iter)]
        for target, value in pairs:
            if name in {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}:
                yield value.lineno, _names(value)
