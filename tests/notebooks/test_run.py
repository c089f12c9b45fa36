"""Every notebook, top to bottom, without a click; an error anywhere in an output fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.usefixtures("no_orphans")


def test_all_notebooks_are_run() -> None:
    assert len(NOTEBOOKS) >= 9


def texts(cell: Any) -> str:
    """What a cell shows, as one text; an error is marked."""
    said = []
    for output in cell.get("outputs", []):
        said.append(output.get("text", ""))
        said += [str(part) for kind, part in output.get("data", {}).items() if kind.startswith("text/")]
        if output.output_type == "error":
            said.append(f"ERROR {output.ename}: {output.evalue}")
    return "\n".join(said)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=400,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": tmp_path}},
    )
    client.execute()
    for cell in notebook.cells:
        shown = texts(cell)
        assert "ERROR" not in shown
        assert "Traceback" not in shown
        assert "**failed" not in shown, shown
    if path.stem != "00_start_here":
        assert any("image/png" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))
