"""The drawing shows the code: few rooms, few floors, no circle. No file is long, and every test is run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_drawing_shows_the_imports() -> None:
    command = [sys.executable, "docs/draw.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_house_is_small() -> None:
    drawing = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    rooms = re.findall(r'<text x="[^"]*" y="[^"]*">(\w+)</text>', drawing)
    floors = set(re.findall(r'<rect x="[^"]*" y="([^"]*)"', drawing))
    assert 10 < len(rooms) < 20
    assert 4 < len(floors) <= 10


def test_no_file_is_long() -> None:
    files = [*(ROOT / "perfkit").rglob("*.py")]
    assert len(files) > 50
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}
    assert not {name: length for name, length in lengths.items() if length > 350}


def test_the_suite_runs_every_test_file() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    paths = [ROOT / path for path in settings["tool"]["pytest"]["ini_options"]["testpaths"]]
    files = list((ROOT / "tests").rglob("test_*.py"))
    assert len(files) > 100
    assert [file for file in files if not any(file.is_relative_to(path) for path in paths)] == []
