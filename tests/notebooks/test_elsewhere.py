"""Chapters on machines that are not here: the ladder on a simulated GPU, ranks on one GPU, on two, on a Mac."""

import ast
from pathlib import Path

import jupytext
import pytest
import torch

from perfkit import notebook as pk
from perfkit.machine import devices
from perfkit.studies import rungs

OTHERS = (
    "%",
    "RecipePanel",
    "pk.profile",
    "pk.memory",
    "mine.",
    "ledger.",
    "fetch.",
    "streams",
)
FOLDER = Path(__file__).parents[2] / "notebooks" / "src"
SOURCES = sorted(FOLDER.glob("0[1-7]_*.py"))


@pytest.fixture(autouse=True)
def _on_a_simulated_gpu(data_dir, monkeypatch):
    """What the menu of a panel chooses; played from its recording, so that no process is started."""
    monkeypatch.setattr(pk.LadderPanel, "session_device", None)
    pk.use("recorded:sim-v100")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_cells_of_a_stage_run_on_a_simulated_gpu(path):
    """Those before the reader's own file; no panel needs losses. Other cells run in `test_run.py`."""
    scope = {}
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code" and ("pk.my_train" in cell.source or "pk.puzzle" in cell.source):
            break
        if cell.cell_type == "code" and not any(other in cell.source for other in OTHERS):
            exec(compile(ast.parse(cell.source), "cell", "exec"), scope)
    panel = scope["panel"]
    assert panel.runs[-1].simulated, panel.runs[-1].reason


@pytest.mark.parametrize(
    ("gpus", "mps", "device"), [(0, False, "cpu"), (0, True, "cpu"), (1, False, "cpu"), (2, False, "cuda")]
)
def test_two_ranks_train_on_two_gpus_or_else_on_the_cores(gpus, mps, device, monkeypatch):
    """13: no rule refuses what it measures: NCCL needs a GPU for each rank, and MPS has no communication."""
    found = devices.Found(cuda=["H200"] * gpus, mps=mps, bf16=True)
    monkeypatch.setattr(devices, "accelerators", lambda: found)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    cells, scope = jupytext.read(FOLDER / "13_several_gpus.py").cells, {}
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    for source in code[: next(at for at, source in enumerate(code) if "panel =" in source) + 1]:
        exec(source, scope)
    exec(next(cell.source for cell in cells if "merged =" in cell.source).split("merged.run")[0], scope)
    stages = [
        stage
        for panel in (scope["panel"], scope["merged"])
        for stage in rungs.all_stages(rungs.described(panel.plan))
    ]
    assert scope["panel"].plan.subject.device == scope["merged"].plan.subject.device == device
    counts = [(stage.recipe.ranks, stage.recipe.accumulation) for stage in stages]
    assert counts == [(1, 1), (2, 1), (2, 1), (2, 4)]
    assert not any(stage.reason or stage.not_applied for stage in stages)
