"""Every notebook, top to bottom, without a click; then its exercise, first answered wrongly, then rightly."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WRONG = {"answer": "-1.0", "trial": "panel"}
TEMPTING = {
    "03_pinning": "1.0",  # the copy is short beside a CPU's step: one may round the gain away
    "14_hidden_transfers": "1",
    "16_nvtx_and_nsight": '{"A": "data", "B": "host", "C": "device"}',
}
"""Wrong answers that one might give without having calculated or looked."""

pytestmark = [pytest.mark.usefixtures("no_orphans"), pytest.mark.timeout(600)]


def test_all_notebooks_are_run() -> None:
    assert len(NOTEBOOKS) >= 9


def text(cell: Any) -> str:
    """What a cell shows, as one text; an error is marked."""
    shown = []
    for output in cell.get("outputs", []):
        shown.append(output.get("text", ""))
        shown += [str(part) for kind, part in output.get("data", {}).items() if kind.startswith("text/")]
        if output.output_type == "error":
            shown.append(f"ERROR {output.ename}: {output.evalue}")
    return "\n".join(shown)


def tagged(notebook: Any, tag: str) -> Any:
    """The one cell with a tag, or None."""
    return next((cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])), None)


def add_answers(notebook: Any, chapter: str) -> None:
    """Appends to a chapter: a wrong answer and the check, then the answer in its details and the check."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    answers = re.findall(r"<details>.*?```python\n(.*?)```.*?</details>", prose, re.DOTALL)
    assert len(answers) == 1, "an exercise shows one answer"
    name = tagged(notebook, "exercise").source.split(" = None")[0]
    check = tagged(notebook, "check").source
    indented = "\n".join(f"    {line}" for line in check.splitlines())
    fails = f"try:\n{indented}\nexcept AssertionError as hint:\n    print('hint:', hint)"
    for source in (f"{name} = {TEMPTING.get(chapter, WRONG[name])}", fails, answers[0], check):
        notebook.cells.append(nbformat.v4.new_code_cell(source))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_PRESET", "smoke")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(path, as_version=4)
    exercise = tagged(notebook, "exercise") is not None
    if exercise:
        add_answers(notebook, path.stem)
    client = NotebookClient(
        notebook,
        timeout=500,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    for cell in notebook.cells:
        shown = text(cell)
        for bad in ("ERROR", "Traceback", "**failed", "**cancelled"):
            assert bad not in shown, f"{cell.source}\n{shown}"
    assert not list(tmp_path.iterdir()), "a notebook leaves nothing beside it"
    if exercise:
        assert "Your turn" in text(tagged(notebook, "check"))
        assert "hint:" in text(notebook.cells[-3]), "the check lets a wrong answer pass"
        assert "Right" in text(notebook.cells[-1])
        assert any("image/png" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))
