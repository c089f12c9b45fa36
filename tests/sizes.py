"""How large the project is, by room, against limits in pyproject.toml that may only be lowered.

Tokens are names, operators, numbers and strings, without comments, docstrings and layout.
"""

import ast
import io
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYOUT = ["COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER"]


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


def rooms():
    """The sizes of every top folder, and of every folder of the package."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    sizes: dict[str, Counter[str]] = {}
    for name in listed.stdout.split():
        path = ROOT / name
        if not path.exists():
            continue
        parts = Path(name).parts
        size = measure(path.read_text(encoding="utf-8"))
        for room in {parts[0], "/".join(parts[:2]) if parts[0] == "perfkit" else parts[0]}:
            sizes.setdefault(room, Counter()).update(size)
    return sizes


def main():
    """Prints the table; 1 where a room is above its limit."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["perfkit"]["sizes"]
    above = False
    for room, size in sorted(rooms().items()):
        limit = limits.get(room, {})
        over = [f"{what} at most {most:,}" for what, most in limit.items() if size[what] > most]
        above |= bool(over)
        figures = f"{size['lines']:8,} lines {size['tokens']:9,} tokens {size['files']:4} files"
        print(f"{room:28}{figures}   {'ABOVE: ' + ', '.join(over) if over else ''}")
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
