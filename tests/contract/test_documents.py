"""What README, CONTRIBUTING and the notebooks name exists: commands and options, files, make targets."""

import re
from pathlib import Path

import pytest
import typer.main

from perfkit.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/measuring.md", "docs/workloads.md")),
    *sorted((ROOT / "docs" / "teaching").glob("*.md")),
    *sorted((ROOT / "notebooks" / "src").glob("*.py")),
]
NOT_IN_GIT = {"tests/browser/artefacts/"}
"""A folder that the tests make."""
GROUP = typer.main.get_command(app)
COMMANDS = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def commands(text):
    """The words after `perfkit` in lines of shell code and in code spans, up to a comment or a pipe."""
    lines = re.findall(r"^perfkit ([^#>|\n]+)", text, re.MULTILINE)
    spans = re.findall(r"`perfkit ([^`#>|]+)[^`]*`", text)
    # What follows `--` are the arguments of a user's script.
    return [line.partition(" -- ")[0].split() for line in lines + spans]


def test_the_readme_names_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    named = {words[0] for words in commands(text)}
    assert set(COMMANDS) <= named, f"not in the README: {sorted(set(COMMANDS) - named)}"


@each_page
def test_commands_and_their_options_exist(page):
    for name, *words in commands(page.read_text(encoding="utf-8")):
        assert name in COMMANDS, f"perfkit {name}"
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        unknown = {word for word in words if word.startswith("--")} - options
        assert not unknown, f"perfkit {name}: {unknown}"


@each_page
def test_files_and_folders_exist(page):
    text = page.read_text(encoding="utf-8")
    places = re.findall(r"`((?:perfkit|notebooks|tests|data|docs|benchmarks|\.ci)/[\w./]*)`", text)
    links = re.findall(r"\]\(((?!http)[\w./]+)\)", text)
    missing = [place for place in places if not (ROOT / place).exists()]
    missing += [
        link
        for link in links
        if not any((folder / link).exists() for folder in (ROOT, page.parent, ROOT / "notebooks"))
    ]
    assert [place for place in missing if place not in NOT_IN_GIT] == []


@each_page
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets


def test_the_architecture_names_files_that_exist():
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = [init.parent.name for init in (ROOT / "perfkit").glob("*/__init__.py")]
    places = re.findall(rf"`((?:{'|'.join(folders)})/[\w./]*|\w+\.py)`", text)
    assert len(places) > 30
    assert [
        place for place in places if not (ROOT / "perfkit" / place).exists() and place != "train.py"
    ] == []
    described = {place.partition("/")[0] for place in places}
    assert {folder for folder in folders if not folder.startswith("_")} <= described
