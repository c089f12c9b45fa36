"""How large the project is, by room, against limits in pyproject.toml that may only be lowered.

Tokens are names, operators, numbers and strings, without comments, docstrings and layout. Lines count as ruff
formats them: only tables of data may be laid out by hand.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

from perfkit import additions

ROOT = Path(__file__).parents[1]
LAYOUT = ["COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER"]
TABLE = ast.Dict | ast.List | ast.Set | ast.Tuple


def measure(text):
    """Lines and tokens of one file."""
    nodes = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    strings = (node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    prose = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    count = sum(
        tokenize.tok_name[token.type] not in LAYOUT and token.start[0] not in prose for token in tokens
    )
    return Counter(lines=text.count("\n"), tokens=count, files=1)


def unformatted(text):
    """Lines that turn the format off, except at the end of a table: assigned, or a decorator's last argument."""
    ends = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, TABLE):
            ends.add(node.end_lineno)
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and call.args and isinstance(call.args[-1], TABLE):
                ends.add(call.end_lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        off = token.type == tokenize.COMMENT and re.search(r"fmt: ?(skip|off)|yapf: ?disable", token.string)
        if off and not (off[1] == "skip" and token.start[0] in ends):
            yield token.start[0]


def texts():
    """The project's modules: their names, and what is in them."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split() if (ROOT / name).exists()]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


def rooms(modules):
    """The sizes of every top folder, of every folder of the package, and of its core: all but the additions."""
    sizes: dict[str, Counter[str]] = {}
    for name, text in modules.items():
        parts, size = Path(name).parts, measure(text)
        inside = {"/".join(parts[:2])} if parts[0] == "perfkit" else set()
        if inside and parts[1] not in additions.NAMES:
            inside.add("perfkit, the core")
        for room in {parts[0], *inside}:
            sizes.setdefault(room, Counter()).update(size)
    return sizes


def main():
    """Prints the table; 1 where a room is above its limit, or a line is laid out by hand."""
    modules = texts()
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["perfkit"]["sizes"]
    above = False
    for room, size in sorted(rooms(modules).items()):
        limit = limits.get(room, {})
        over = [f"{what} at most {most:,}" for what, most in limit.items() if size[what] > most]
        above |= bool(over)
        figures = f"{size['lines']:8,} lines {size['tokens']:9,} tokens {size['files']:4} files"
        print(f"{room:28}{figures}   {'ABOVE: ' + ', '.join(over) if over else ''}")
    places = [f"{name}:{line}" for name, text in modules.items() for line in unformatted(text)]
    for place in places:
        print(f"{place}: not a table of data (a literal that gets a name): remove the comment")
    return int(above or bool(places))


if __name__ == "__main__":
    sys.exit(main())
