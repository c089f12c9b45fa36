"""Texts that are compared as a whole; `PERFKIT_GOLDEN=1 pytest tests/unit/show` writes them anew."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).with_name("golden")


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares a text with the file of this name."""

    def compare(name: str, text: str) -> None:
        file = FOLDER / f"{name}.txt"
        if os.environ.get("PERFKIT_GOLDEN"):
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8")

    return compare
