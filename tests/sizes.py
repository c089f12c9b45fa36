"""How many lines the project has, by room, against the ceilings in pyproject.toml.

Layout is ruff's: only tables of data may be laid out by hand.
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

ROOT = Path(__file__).parents[1]
TABLE = ast.Dict | ast.List | ast.Set | ast.Tuple
OFF = re.compile(r"fmt: ?(skip|off)|yapf: ?disable")


def unformatted(text):
    """Lines that turn the format off, except at the end of a table: assigned, or a decorator's last argument."""
    if not OFF.search(text):  # most files: reading them all as trees and tokens takes seconds
        return
    ends = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, TABLE):
            ends.add(node.end_lineno)
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and call.args and isinstance(call.args[-1], TABLE):
                ends.add(call.end_lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        off = token.type == tokenize.COMMENT and OFF.search(token.string)
        if off and not (off[1] == "skip" and token.start[0] in ends):
            yield token.start[0]


def texts():
    """The project's modules: their names, and what is in them."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split() if (ROOT / name).exists()]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


def rooms(name):
    """The rooms that a file is in: its top folder, and in the package its folder there, and the core."""
    parts = Path(name).parts
    yield parts[0]
    if parts[:2] == ("perfkit", "additions"):
        yield "/".join(parts[:3])
    elif parts[0] == "perfkit":
        yield "/".join(parts[:2])
        yield "perfkit, the core"


def main():
    """Prints the table; 1 where a room or a file is above its ceiling, or a line is laid out by hand."""
    modules = texts()
    ceilings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["perfkit"][
        "sizes"
    ]
    lines, files = Counter(), Counter()
    for name, text in modules.items():
        for room in rooms(name):
            lines[room] += text.count("\n")
            files[room] += 1
    for room in sorted(lines):
        print(f"{room:32}{lines[room]:8,} lines {files[room]:4} files")
    faults = [
        f"{room}: {lines[room]:,} lines, at most {most:,}"
        for room, most in ceilings.items()
        if lines[room] > most
    ]
    for name, text in modules.items():
        if name.startswith("perfkit/") and text.count("\n") > ceilings["file"]:
            faults.append(f"{name}: {text.count(chr(10))} lines, at most {ceilings['file']} in a file")
        for line in unformatted(text):
            faults.append(
                f"{name}:{line}: not a table of data (a literal that gets a name): remove the comment"
            )
    print(*faults, sep="\n", end="\n" if faults else "")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
