"""Every notebook, top to bottom, without a click; then its exercise, first answered wrongly, then rightly."""

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

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


def text(cell: Any) -> str:
    """What a cell shows, as one text."""
    shown = []
    for output in cell.get("outputs", []):
        shown.append(output.get("text", ""))
        shown += [str(part) for kind, part in output.get("data", {}).items() if kind.startswith("text/")]
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


def execute(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs all cells; a cell that fails, such as one whose panel fails, raises."""
    monkeypatch.setenv("PERFKIT_PRESET", "smoke")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, timeout=500, kernel_name="python3", store_widget_state=False, resources=resources
    ).execute()
    for cell in notebook.cells:  # what a thread or a callback has printed
        assert "Traceback" not in text(cell), f"{cell.source}\n{text(cell)}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(path, as_version=4)
    exercise = tagged(notebook, "exercise") is not None
    if exercise:
        add_answers(notebook, path.stem)
    execute(notebook, tmp_path, monkeypatch)
    assert not list(tmp_path.iterdir()), "a notebook leaves nothing beside it"
    if exercise:
        assert "Your turn" in text(tagged(notebook, "check"))
        assert "hint:" in text(notebook.cells[-3]), "the check lets a wrong answer pass"
        assert "Right" in text(notebook.cells[-1])


def test_a_chapter_whose_panel_fails_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        "from perfkit import notebook as pk",
        "pk.StagePanel('amp', workload='tests.support.toy:RaisingData').run()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.raises(CellExecutionError, match="sample 7 is broken"):
        execute(notebook, tmp_path, monkeypatch)
