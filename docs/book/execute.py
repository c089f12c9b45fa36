"""Runs a chapter for the book: its panels play a recording; what they cannot play is measured at `smoke`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from perfkit.results import recordings

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "notebooks" / "src"
PLAYED = {"03": "sim-v100", "05": "sim-v100"}
"""The recording of a chapter, where it is not the default: of what the default one has nothing of."""

# A figure as SVG has the colours of the page, light or dark, and is a tenth of the PNG.
_BEFORE = """
from perfkit import notebook as _pk
from perfkit.notebook.shown import Sectioned as _Sectioned, Still as _Still
from perfkit.show import document as _document
from perfkit.show.html import fragment as _fragment
from IPython.display import HTML as _HTML, update_display as _update_display
_Sectioned.plot = lambda self, name="", dark=False: _HTML(
    _fragment([_document.figure(self.sections(), name)]))
def _update(self, figure, contents):
    if self.is_shown:
        pictures = [figure] if figure and not figure.nothing else []
        _update_display(_HTML(_fragment([*pictures, *contents])), display_id=self._ids[1])
_Still.update = _update
_pk.use({device!r})
"""
_AFTER = """
import json as _json
from perfkit.notebook.ladder import LadderPanel as _LadderPanel
print(_json.dumps([[_name, _panel.plan.recorded] for _name, _panel in list(globals().items())
    if isinstance(_panel, _LadderPanel) and _panel.runs and not _name.startswith("_")]))
"""
PANEL = "pk-static"
"""The class of what stands in the place of a panel."""
_STATIC = (
    f'<div class="{PANEL}">Here the notebook shows a panel with controls. '
    "Open the chapter in JupyterLab to use it.</div>"
)


_SMOKE = "this shows what a cell does, in too few rounds for a verdict."


class Failed(Exception):
    """A chapter that does not run from top to bottom."""


def chapters() -> list[Path]:
    """The sources, in the order of reading."""
    return sorted(SOURCES.glob("[0-9]*.py"))


def puzzles() -> list[Path]:
    """The sources of the puzzles, each before its solutions."""
    return sorted(SOURCES.glob("puzzles/*.py")) + sorted(SOURCES.glob("puzzles/solutions/*.py"))


def name(source: Path) -> str:
    """Where the notebook of a source stands in `notebooks/`, without its ending."""
    return source.relative_to(SOURCES).with_suffix("").as_posix()


def executed(source: Path, data: Path, recording: str, cache: Path) -> NotebookNode:
    """The chapter with its outputs and a note on how it was made; kept until its source or perfkit changes.

    Args:
        source: a file of notebooks/src.
        data: the folder for what perfkit generates meanwhile.
        recording: that its panels play.
        cache: the folder of chapters that were executed before.

    Raises:
        Failed: one of its cells fails.
    """
    own, stem = PLAYED.get(source.stem[:2], recording), name(source).replace("/", "-")
    kept = cache / f"{stem}-{_digest(source, own)}.ipynb"
    if not kept.exists():
        notebook = _run(jupytext.read(source), data, own)
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob(f"{stem}-*"):
            old.unlink()
        nbformat.write(notebook, kept)
    return nbformat.read(kept, as_version=4)


def plain(source: Path) -> NotebookNode:
    """The chapter without results, and a note that says so."""
    notebook = jupytext.read(source)
    text = "```{admonition} How this page was made\nIt was not executed. Open the notebook for results.\n```"
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(text))
    return notebook


def _digest(source: Path, recording: str) -> str:
    """Of all that an execution depends on, but for the machine."""
    digest = hashlib.sha256(recording.encode())
    for file in [source, Path(__file__), *sorted((ROOT / "perfkit").rglob("*"))]:
        if file.is_file() and file.suffix != ".pyc":
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _run(notebook: NotebookNode, data: Path, recording: str) -> NotebookNode:
    before = nbformat.v4.new_code_cell(_BEFORE.format(device=f"{recordings.PREFIX}{recording}"))
    after = nbformat.v4.new_code_cell(_AFTER)
    notebook.cells = [before, *notebook.cells, after]
    scratch = data / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {"PERFKIT_DATA": str(data), "PERFKIT_PRESET": "smoke", "PYTHONPATH": path}
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", store_widget_state=False,
        resources={"metadata": {"path": str(scratch)}},
    )  # fmt: skip
    try:
        client.execute(env={**os.environ, **own})
    except CellExecutionError as error:
        raise Failed(str(error)) from None
    panels = json.loads(after.outputs[-1].text)
    notebook.cells = notebook.cells[1:-1]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(_still(cell.outputs))
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(_note(panels)))
    notebook.metadata.pop("widgets", None)
    return notebook


def _still(outputs: list[NotebookNode]) -> Iterator[NotebookNode]:
    """The outputs without a kernel: a sentence in the place of each panel, and no lines of progress."""
    for output in outputs:
        kinds: dict[str, Any] = output.get("data", {})
        if "application/vnd.jupyter.widget-view+json" in kinds:
            yield nbformat.v4.new_output("display_data", {"text/html": _STATIC})
        elif (
            kinds.get("text/markdown") != "done" and output.get("name") != "stderr" and not _is_empty(output)
        ):
            yield output


def _is_empty(output: NotebookNode) -> bool:
    return output.output_type == "display_data" and not any(output.data.values())


def _note(panels: list[tuple[str, str]]) -> str:
    """Where the numbers of this page come from, in words."""
    played = sorted({name for _, name in panels if name})
    lines = ["The results on this page are not yours."]
    for name in played:
        panels_of_it = ", ".join(f"`{panel}`" for panel, where in panels if where == name)
        about = recordings.find(name).provenance.describe()
        lines.append(f"{panels_of_it} played the recording *{name}*. {about}")
    live = [name for name, where in panels if not where]
    if live or not panels:
        what = f"`{'`, `'.join(live)}`" if live else "Whatever is measured here"
        lines.append(f"{what} ran on the machine that built the book, at the preset `smoke`: {_SMOKE}")
    lines.append("Open the notebook to get results of your own.")
    return "\n\n".join(["```{admonition} How this page was made", *lines]) + "\n```"
