"""Writes into every notebook what Colab and Kaggle need, where they open one file and no repository.

`python -m docs.elsewhere OWNER/NAME`, which `make notebooks` calls. Without an address, in the command or as
`Repository` of `[project.urls]` in pyproject.toml, a notebook has none of it.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[1]
TAG = "elsewhere"
BADGES = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{repository}/blob/main/notebooks/{path}) "
    "[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]"
    "(https://kaggle.com/kernels/welcome?src=https://github.com/{repository}/blob/main/notebooks/{path})"
)
CELL = """\
# On Colab and Kaggle (with Internet on) this fetches perfkit, and torch stays. Elsewhere it does nothing.
import importlib.util, subprocess, sys

found = importlib.util.find_spec("perfkit")
if found is None or found.origin is None:  # a folder of this name is not the package
    wanted = ["msgspec", "nvidia-ml-py", "git+https://github.com/{repository}"]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", *wanted], check=True)
    importlib.invalidate_caches()"""
HARDWARE = {"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}}
"""What Colab starts a notebook on."""


def setting() -> str:
    """OWNER/NAME of the repository by pyproject.toml; empty where it names none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project.get("urls", {}).get("Repository", "")).removeprefix("https://github.com/")


def prepare(notebook: Any, path: str, repository: str) -> None:
    """Puts badges and the guarded cell before the first cell, or takes them away without a repository."""
    notebook.cells = [cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", ())]
    for name in HARDWARE:
        notebook.metadata.pop(name, None)
    if not repository:
        return
    tags = {"tags": [TAG, "remove-cell"]}  # the book leaves them out
    badges = BADGES.format(repository=repository, path=path)
    first = nbformat.v4.new_markdown_cell(badges, id="badges", metadata=tags)
    guarded = nbformat.v4.new_code_cell(CELL.format(repository=repository), id="guarded", metadata=tags)
    notebook.cells = [first, guarded, *notebook.cells]
    notebook.metadata.update(HARDWARE)


def main(folder: Path = ROOT / "notebooks") -> None:
    """Does it for every notebook of the folder."""
    repository = "".join(sys.argv[1:]) or setting()
    if repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        sys.exit(f"REPOSITORY is '{repository}'. Write OWNER/NAME, as on GitHub")
    for path in [*folder.glob("*.ipynb"), *folder.glob("puzzles/*.ipynb")]:
        notebook = nbformat.read(path, as_version=4)
        before = nbformat.writes(notebook)
        prepare(notebook, path.relative_to(folder).as_posix(), repository)
        if nbformat.writes(notebook) != before:
            path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
