"""Chapters on machines that are not here: the ladder on a simulated GPU."""

import ast
from pathlib import Path

import jupytext
import pytest

from perfkit import notebook as pk
from perfkit.notebook import ladder

OTHERS = (
    "%",
    "RecipePanel",
    "pk.profile",
    "pk.memory",
    "mine.",
    "ledger.",
    "fetch.",
    "streams",
    '"cifar_resnet18"',  # simulated by itself, and not played
    "perfkit.compare",
    '"channels_last"',  # these stages are not in the recording
    '"cpu_threads"',
    '"amp_fewer_threads"',
    '"scaled_decode"',
    "small_ones",
    "waits",  # an exercise in plain PyTorch
)
FOLDER = Path(__file__).parents[2] / "notebooks" / "src"
SOURCES = sorted(FOLDER.glob("0[1-7]_*.py"))


@pytest.fixture(autouse=True)
def _on_a_simulated_gpu(data_dir, monkeypatch):
    """What the menu of a panel chooses; played from its recording, so that no process is started."""
    monkeypatch.setattr(ladder.PlanPanel, "kernel_device", None)
    pk.use("recorded:sim-v100")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_cells_of_a_stage_run_on_a_simulated_gpu(path):
    """But for the reader's own file, up to the puzzles; no panel needs losses. Other cells: `test_run.py`."""
    scope = {"pk": pk}
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code" and "pk.puzzle" in cell.source:
            break
        if cell.cell_type == "code" and not any(other in cell.source for other in (*OTHERS, "pk.my_train")):
            exec(compile(ast.parse(cell.source), "cell", "exec"), scope)
    panel = scope["panel"]
    assert panel.runs[-1].simulated, panel.runs[-1].reason
