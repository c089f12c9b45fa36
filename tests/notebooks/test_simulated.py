"""Chapters of the article's ladder on a simulated GPU: every cell works without losses or compile times.

Chapters 04 to 07 train workloads of their own, and open the recording in a panel of its own (`test_run.py`).
"""

import ast
from pathlib import Path
from typing import Any

import jupytext
import pytest

from perfkit import notebook as pk
from perfkit.notebook import where

SOURCES = sorted((Path(__file__).parents[2] / "notebooks" / "src").glob("0[1238]_*.py"))


@pytest.fixture(autouse=True)
def _on_a_simulated_gpu(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the buttons of a panel choose; played from its recording, so that no process is started."""
    monkeypatch.setattr(where, "_session", (None, None))
    pk.use("recorded:sim-v100")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_chapter_runs_on_a_simulated_gpu(path: Path) -> None:
    scope: dict[str, Any] = {}
    shown = []
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code":
            shown.append(_shown(cell.source, scope))
    panel = scope["panel"]
    assert panel.runs[-1].simulated, panel.runs[-1].reason


def _shown(source: str, scope: dict[str, Any]) -> str:
    """What a cell shows as HTML or Markdown: the value of its last expression."""
    *lines, last = ast.parse(source).body
    exec(compile(ast.Module(lines, []), "cell", "exec"), scope)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), "cell", "exec"), scope)
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
    return str(getattr(value, "data", ""))
