"""Every notebook, top to bottom, without a click; then its exercise, as it is and with the answer."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = [pytest.mark.usefixtures("no_orphans"), pytest.mark.timeout(600)]


def text(cell):
    """What a cell shows, as one text."""
    shown = []
    for output in cell.get("outputs", []):
        shown.append(output.get("text", ""))
        shown += [str(part) for kind, part in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(shown)


def tagged(notebook, tag):
    """The cell with a tag, or None."""
    return next((cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])), None)


def answered(notebook):
    """The loop of the exercise with the lines of the answer in the place of those marked `# edit`.

    Neighbouring marked lines are replaced together; groups of an answer are separated by empty lines.
    """
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    (answer,) = re.findall(r"<summary>Answer</summary>\n\n```python\n(.*?)\n```", prose, re.DOTALL)
    groups = iter(answer.split("\n\n"))
    lines = []
    was_marked = False
    for line in tagged(notebook, "exercise").source.splitlines():
        is_marked = "# edit" in line
        if is_marked and not was_marked:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + part for part in next(groups).splitlines()]
        elif not is_marked:
            lines.append(line)
        was_marked = is_marked
    assert next(groups, None) is None, "the answer has more parts than the loop has marked lines"
    # The compiler's backend is tested elsewhere; here it would take longer than the chapter.
    return "\n".join(lines).replace("torch.compile(model", "torch.compile(backend='eager', model=model")


def execute(notebook, folder, monkeypatch):
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
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    exercise = tagged(notebook, "exercise")
    if exercise:
        check = tagged(notebook, "check").source
        notebook.cells += [nbformat.v4.new_code_cell(source) for source in (answered(notebook), check)]
    execute(notebook, tmp_path, monkeypatch)
    assert not list(tmp_path.iterdir()), "a notebook leaves nothing beside it"
    for cell in notebook.cells:
        if cell.cell_type == "code" and re.search(r"pk\.puzzle\(.*\)\.check\(", cell.source):
            assert "still the starter" in text(cell)
    if exercise:
        assert "samples/s" in text(exercise), "%%watch saw the loop"
        assert "Your turn" in text(tagged(notebook, "check"))
        assert "Right" in text(notebook.cells[-1])


def test_a_chapter_whose_panel_fails_fails(tmp_path, monkeypatch):
    cells = [
        "from perfkit import notebook as pk",
        "pk.StagePanel('amp', workload='tests.support.toy:RaisingData').run()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.raises(CellExecutionError, match="sample 7 is broken"):
        execute(notebook, tmp_path, monkeypatch)
