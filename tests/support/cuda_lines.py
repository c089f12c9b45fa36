"""The lines of perfkit that only run where there is a GPU, and which of them a process has run.

A line counts if it is behind a condition on CUDA: in the branch that is taken there, or after a return of the other.
"""

import ast
import os
import sys
import threading
from pathlib import Path

PERFKIT = Path(__file__).parents[2] / "perfkit"
VARIABLE = "TESTS_CUDA_LINES"
"""A file to which processes append what they have run. Named otherwise than what zygotes learn only later."""
APART = ("additions/simulate/", "additions/trace/")
"""What only reads names of devices from files, or from recipes, and has no device."""
MEANINGS = {"on_gpu": True, "uuid": True, "device_prefetch": True, "on_cpu": False}
"""Names in conditions, and whether they are true on a CUDA device."""
ASKING = ("torch.cuda.is_", "is_capturing")
"""Calls that are true on a CUDA device alone."""
WHOLE = {"program.py": ["prefetched"]}
"""Functions that only CUDA runs."""
ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def holds_on_cuda(test):
    """Whether a condition is true on a CUDA device; None where it does not ask for one."""
    truth = None
    match test:
        case ast.UnaryOp(op=ast.Not()):
            inner = holds_on_cuda(test.operand)
            truth = None if inner is None else not inner
        case ast.BoolOp():
            # Behind `cuda and x` there is a GPU, and after `cpu or x`; behind `cuda or x` there may be none.
            parts, wanted = [holds_on_cuda(value) for value in test.values], isinstance(test.op, ast.And)
            truth = wanted if wanted in parts and (not wanted) not in parts else None
        case ast.NamedExpr():
            truth = holds_on_cuda(test.value)
        case ast.Compare():
            truth = _compared(test)
        case ast.Call():
            text = ast.unparse(test)
            if "startswith('cuda')" in text or text.startswith(ASKING):
                truth = True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            truth = MEANINGS.get(name)
    return truth


def _compared(test):
    named = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    if not {"cuda", "cpu"} & named:
        return None
    is_equal = isinstance(test.ops[0], ast.Eq | ast.In)
    return is_equal if "cuda" in named else not is_equal


def _lines(statements):
    nodes = [node for each in statements for node in ast.walk(each) if isinstance(node, ast.stmt)]
    return {
        node.lineno
        for node in nodes
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    }


def in_source(source, whole=()):
    """The numbers of the lines behind conditions on CUDA, and in some whole functions."""
    found = set()
    for block in ast.walk(ast.parse(source)):
        if getattr(block, "name", None) in whole:
            found |= _lines(block.body)
        for statements in (getattr(block, name, None) for name in ("body", "orelse", "finalbody")):
            if not isinstance(statements, list):
                continue
            for at, node in enumerate(statements):
                truth = holds_on_cuda(node.test) if isinstance(node, ast.If) else None
                if truth is not None:
                    found |= _lines(node.body if truth else node.orelse)
                if truth is False and isinstance(node.body[-1], ENDS):
                    found |= _lines(statements[at + 1 :])
    return found


def all_lines():
    """By file, below perfkit."""
    files = {path: str(path.relative_to(PERFKIT)) for path in sorted(PERFKIT.rglob("*.py"))}
    lines = {
        name: in_source(path.read_text("utf-8"), WHOLE.get(name, ()))
        for path, name in files.items()
        if not name.startswith(APART)
    }
    return {name: numbers for name, numbers in lines.items() if numbers}


def trace():
    """Notes from now on, in the file that `VARIABLE` names, which of the lines this process runs."""
    wanted = {str(PERFKIT / name): numbers for name, numbers in all_lines().items()}
    log = os.open(os.environ[VARIABLE], os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def on_line(frame, event, _):
        numbers = wanted[frame.f_code.co_filename]
        if event == "line" and frame.f_lineno in numbers:
            numbers.discard(frame.f_lineno)
            os.write(log, f"{frame.f_code.co_filename}:{frame.f_lineno}\n".encode())
        return on_line

    def on_call(frame, event, _):
        return on_line if wanted.get(frame.f_code.co_filename) else None

    threading.settrace(on_call)
    sys.settrace(on_call)


def missing(log):
    """The lines that no process has run, as `file:line`."""
    ran = set(Path(log).read_text("utf-8").split())
    wanted = [f"{name}:{line}" for name, numbers in all_lines().items() for line in sorted(numbers)]
    return [line for line in wanted if str(PERFKIT / line) not in ran]
