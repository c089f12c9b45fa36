"""The capstone: the slow script and its solution train the same; other trainings get no score."""

from contextlib import suppress
from pathlib import Path

import jupytext
import pytest
import torch

from perfkit import notebook as pk
from perfkit.puzzles import capstone
from perfkit.puzzles.judge import levers
from perfkit.results import parity

SOLUTION = Path(__file__).parents[3] / "notebooks" / "src" / "puzzles" / "capstone_solution.py"


class _Enough(Exception):
    """Some backward passes are done."""


def losses(source, count, monkeypatch):
    """The losses of the first backward passes of a script's `main`."""
    seen = []
    backward = torch.Tensor.backward

    def counted(loss):
        if len(seen) == count:
            raise _Enough
        seen.append(loss.item())
        backward(loss)

    scope = {"__name__": "capstone"}
    exec(source, scope)
    scope["Photos"].__init__.__defaults__ = 128, 1  # drawing all of them takes longer than training
    with monkeypatch.context() as patch, torch.autograd.set_detect_anomaly(False), suppress(_Enough):
        patch.setattr(torch.Tensor, "backward", counted)
        patch.setattr(torch, "compile", lambda function: function)
        scope["main"]()
    return seen


def solution():
    """The script without faults."""
    (code,) = [cell.source for cell in jupytext.read(SOLUTION).cells if cell.cell_type == "code"]
    return code


def test_the_solution_trains_as_the_slow_script(monkeypatch):
    slow = losses(capstone.slow_script().read_text(), 32, monkeypatch)
    steps = [sum(slow[:16]), sum(slow[16:])]
    check = parity.losses(losses(solution(), 2, monkeypatch), steps, "tolerance", sixteen_bits=False)
    assert check.ok, check.evidence


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("", "", []),
        ("num_workers=workers,\n        persistent_workers=True", "num_workers=0", ["workers decode"]),
        (".permute(2, 0, 1)", ".permute(2, 0, 1).float()", ["batches are uint8"]),
        (
            'torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda")',
            "contextlib.nullcontext()",
            ["layers compute in 16 bits"],
        ),
        ("@torch.compile", "", ["compiled"]),
    ],
)
def test_each_lever_is_seen_in_what_the_script_does(old, new, missing):
    source = solution().replace("count=512", "count=64").replace(old, new)
    seen = levers(f"import contextlib\n{source}")
    assert [name for name, in_effect in seen.items() if not in_effect] == missing


def test_the_first_call_makes_the_copy_and_measures_nothing(tmp_path):
    file = tmp_path / "mine.py"
    for _ in range(2):
        assert "Edit it" in pk.capstone(file).data
        assert file.read_bytes() == capstone.slow_script().read_bytes()
