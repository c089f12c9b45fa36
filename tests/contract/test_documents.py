"""What the documents and the notebooks name exists: commands and options, files, links, make targets."""

import json
import pkgutil
import re
from pathlib import Path

import pytest
import typer.main

from perfkit import cli
from perfkit.results import Pairing, Raw, Run

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "notebooks" / "src"
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/teaching/*.md")]
PAGES = [*TEXTS, *SOURCES.rglob("*.py")]
GROUP = typer.main.get_command(cli.app)
COMMANDS = {name: GROUP.get_command(None, name) for name in cli.COMMANDS}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands(text):
    """The words after `perfkit` in lines of shell code and in code spans, up to a comment or a pipe."""
    lines = re.findall(r"^perfkit ([^#>|\n]+)", text, re.MULTILINE)
    spans = re.findall(r"`perfkit ([^`#>|]+)[^`]*`", text)
    # What follows `--` are the arguments of a user's script.
    return [line.partition(" -- ")[0].split() for line in lines + spans]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    for name, *words in commands(text):
        assert name in COMMANDS, f"perfkit {name}"
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, f"perfkit {name}"
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert targets <= TARGETS
    places = re.findall(r"`((?:perfkit|notebooks|tests|data|docs|benchmarks|\.ci)/[\w./]*)`", text)
    assert [place for place in places if not (ROOT / place).exists()] == []
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(((?!http|#)[^)\s]+)\)", prose)]
    # A notebook is opened one folder above its source.
    folder = page.parent if page.suffix == ".md" else SOURCES.parent / page.relative_to(SOURCES).parent
    assert [link for link in links if not (folder / link).exists()] == []


HOUSE = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "ARCHITECTURE.md"]
BASES = ("", "perfkit", "perfkit/additions/scripts", "perfkit/additions/shared", "data", "data/puzzles")
"""Where the paths in these two documents begin."""


@pytest.mark.parametrize("page", HOUSE, ids=lambda page: page.name)
def test_each_path_and_each_name_of_the_code_exists(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    places = re.findall(r"`([\w.][\w./]*(?:/|\.(?:py|toml|md|html|txt|json)))`", text)
    assert len(places) > 20
    assert [place for place in places if not any((ROOT / base / place).exists() for base in BASES)] == []
    for name, place in re.findall(r"`(\w+)` (?:in|of) `([\w/.]+\.py)`", text):
        (file,) = (ROOT / base / place for base in BASES if (ROOT / base / place).exists())
        defined = rf"^ *(?:class|def) {name}\b|^{name}\b.* = "
        assert re.search(defined, file.read_text(encoding="utf-8"), re.MULTILINE), f"{name} in {place}"
    for name in re.findall(r"`(perfkit(?:\.\w+)+)`", text):
        assert pkgutil.resolve_name(name)
    code = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("perfkit", "tests")
        for file in (ROOT / folder).rglob("*.py")
        if file != Path(__file__)
    )
    names = re.findall(r"`([A-Za-z_]\w*)(?:=\w+)?`", text)
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


@pytest.mark.parametrize("kind", [Run, Raw, Pairing])
def test_each_field_of_a_recording_is_described(kind):
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    assert [name for name in kind.__struct_fields__ if f"`{name}`" not in text] == []
    assert "lists are empty where the two were only measured apart" in text


def test_the_readme_names_every_command_and_the_architecture_every_folder():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 120
    assert set(COMMANDS) <= {words[0] for words in commands(readme)}
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = [init.parent.name for init in (ROOT / "perfkit").glob("*/__init__.py")]
    shared = [file.name for file in (ROOT / "perfkit/additions/shared").glob("[!_]*.py")]
    assert [name for name in shared if f"`{name}`" not in text] == []
    assert {folder for folder in folders if f"`{folder}/" in text} == set(folders)


def test_the_container_calls_what_the_makefile_has():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    tool, *targets = container["postCreateCommand"].split()
    assert tool == "make" and {target for target in targets if "=" not in target} <= TARGETS
    python = container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    venv = re.search(r"^VENV *\?= (\S+)", makefile, re.MULTILINE)[1]
    assert python == f"${{containerWorkspaceFolder}}/{venv}/bin/python"


def test_the_skill_has_the_exit_codes_of_the_page_for_agents():
    skill = (ROOT / "docs" / "SKILL.md").read_text(encoding="utf-8")
    agents = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    assert skill.startswith("---\nname: perfkit\ndescription: ") and len(skill.splitlines()) <= 60
    listed = [set(re.findall(r"^\| (\d) \|", text, re.MULTILINE)) for text in (skill, agents)]
    assert listed[0] == listed[1] == {"0", "1", "2", "3", "4"}
