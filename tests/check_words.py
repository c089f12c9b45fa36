"""Reports words that are not plain English: in comments, docstrings, messages and Markdown.

The words, and what to write instead, are in the table between `<!-- words -->` and `<!-- /words -->` in
CONTRIBUTING.md. Code in backticks does not count. Neither does a line with `words: quoted`, which is for
titles and messages of other projects. Run from anywhere: `python tests/check_words.py`.
"""

from __future__ import annotations

import io
import re
import sys
import token
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"<!-- words -->\n(.*?)<!-- /words -->", re.DOTALL)
QUOTED = "words: quoted"
PYTHON = ("perfkit/**/*.py", "notebooks/src/**/*.py", "benchmarks/**/*.py", "docs/**/*.py", "tests/**/*.py")
TEXT = (
    "*.md",
    "docs/**/*.md",
    "perfkit/**/*.md",
    "perfkit/**/*.js",
    "perfkit/**/*.jinja",
    "Makefile",
    "pyproject.toml",
    "data/puzzles/*.toml",
)
PARTS_OF_STRINGS = {token.STRING, getattr(token, "FSTRING_MIDDLE", token.STRING)}
"""Before Python 3.12 an f-string is one token, from 3.12 its text comes in parts."""


def blank(text: str, fill: str = "\0") -> str:
    """Text of the same length and lines, with nothing in it that a pattern could match."""
    return re.sub(r"[^\n]", fill, text)


def prose_of_text(source: str) -> str:
    """The source with code spans and the table of words blanked; fenced code stays, for its comments."""
    source = TABLE.sub(lambda match: blank(match.group()), source)
    return re.sub(r"(?<!`)`[^`\n]+`(?!`)", lambda match: blank(match.group()), source)


def prose_of_python(source: str, strings: bool) -> str:
    """The source with all but comments and strings blanked.

    Args:
        source: of a module.
        strings: whether string literals count; otherwise only docstrings and comments.
    """
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    kept, at, at_start = [], 0, True
    for part in tokenize.generate_tokens(io.StringIO(source).readline):
        begin = starts[part.start[0] - 1] + part.start[1]
        end = starts[part.end[0] - 1] + part.end[1]
        is_string = part.type in PARTS_OF_STRINGS
        if part.type == token.COMMENT or (is_string and (strings or at_start)):
            kept += [_between(source[at:begin]), _text(source[begin:end], is_string)]
            at = end
        if part.type not in (token.COMMENT, token.NL, token.ENCODING):
            at_start = part.type in (token.NEWLINE, token.INDENT, token.DEDENT)
    return "".join(kept) + blank(source[at:])


def _between(code: str) -> str:
    """What separates two texts: white space joins them, anything else keeps them apart."""
    return code if not code.strip() else blank(code)


def _text(part: str, is_string: bool) -> str:
    """A comment or a string literal with its marks as spaces, and without code in backticks or braces."""
    if is_string and (start := re.match(r"(?i)([rbfu]*)(\"\"\"|'''|\"|')", part)):
        quotes = len(start.group(2))
        part = " " * start.end() + part[start.end() : -quotes] + " " * quotes
        if "f" in start.group(1).lower():
            part = re.sub(r"\{[^{}]*\}", lambda match: blank(match.group()), part)
    else:
        part = part.replace("#", " ", 1)
    return re.sub(r"`[^`]+`", lambda match: blank(match.group()), part)


def words(contributing: str) -> dict[re.Pattern[str], str]:
    """What to write instead, by pattern; several forms of a word are separated by commas.

    Raises:
        ValueError: the file has no such table.
    """
    table = TABLE.search(contributing)
    if table is None:
        raise ValueError("CONTRIBUTING.md has no table between <!-- words --> and <!-- /words -->")
    rows = [line.strip().strip("|").split("|") for line in table.group(1).splitlines() if "|" in line]
    patterns = {}
    for forms, better in rows[2:]:
        phrases = [r"\s+".join(map(re.escape, phrase.split())) for phrase in forms.split(",")]
        patterns[re.compile(rf"(?<![\w-])(?:{'|'.join(phrases)})(?![\w-])", re.IGNORECASE)] = better.strip()
    return patterns


def findings(path: Path, better: dict[re.Pattern[str], str]) -> Iterator[str]:
    """One line of report for each forbidden word in a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        prose = prose_of_python(source, strings=ROOT / "tests" not in path.parents)
    else:
        prose = prose_of_text(source)
    lines = source.splitlines()
    for pattern, instead in better.items():
        for match in pattern.finditer(prose):
            line = prose.count("\n", 0, match.start()) + 1
            if QUOTED not in lines[line - 1]:
                word = " ".join(match.group().split())
                yield f"{path.relative_to(ROOT)}:{line}: “{word}”, better: {instead}"


def main() -> int:
    """Prints the findings; 1 if there are any."""
    better = words((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    files = sorted({path for pattern in (*PYTHON, *TEXT) for path in ROOT.glob(pattern)})
    report = [line for path in files for line in findings(path, better)]
    print(*report, sep="\n")
    print(f"{len(files)} files, {len(better)} words, {len(report)} to replace")
    return 1 if report else 0


if __name__ == "__main__":
    sys.exit(main())
