"""The check of words finds what it should, and nothing in code."""

from __future__ import annotations

import re

import pytest

from tests import check_words

MEND = re.compile(r"(?<![\w-])mend(?![\w-])")


def _lines(prose: str) -> list[int]:
    return [prose.count("\n", 0, match.start()) + 1 for match in MEND.finditer(prose)]


def test_the_table_of_words_is_read() -> None:
    better = check_words.words((check_words.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(better) >= 20
    assert [instead for pattern, instead in better.items() if pattern.search("Please MEND it")] == ["fix"]
    assert not [pattern for pattern in better if pattern.search("we recommend it")]


def test_words_in_docstrings_comments_and_messages_are_found() -> None:
    source = '"""Say mend."""\nx = 1  # mend\ny = f"{mend} mend"\nz = ("to "\n  "mend it")\n'
    assert _lines(check_words.prose_of_python(source, strings=True)) == [1, 2, 3, 5]
    assert _lines(check_words.prose_of_python(source, strings=False)) == [1, 2]


@pytest.mark.parametrize(
    "source", ["mend(1)\n", "x.mend = 1\n", "# see `mend`\n", 'f"{mend(1)}"\n', "x = a_mend\n"]
)
def test_code_is_not_prose(source: str) -> None:
    assert not _lines(check_words.prose_of_python(source, strings=True))


def test_a_phrase_may_wrap_but_not_span_code() -> None:
    phrase = re.compile(r"in\s+turn")
    assert phrase.search(check_words.prose_of_python("# in\n# turn\n", strings=True))
    assert phrase.search(check_words.prose_of_python('x = ("in "\n     "turn")\n', strings=True))
    assert not phrase.search(check_words.prose_of_python('f("in", "turn")\n', strings=True))


def test_markdown_without_its_code_is_prose() -> None:
    assert _lines(check_words.prose_of_text("a\n`mend` mend\n```sh\nls  # mend\n```\n")) == [2, 4]
