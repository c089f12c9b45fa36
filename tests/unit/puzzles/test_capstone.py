"""The capstone: the slow script and its solution train the same; other trainings get no score."""

from contextlib import suppress
from pathlib import Path

import jupytext
import pytest
import torch

from perfkit import notebook as pk
from perfkit.puzzles import capstone
from perfkit.puzzles.judge import levers

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


def run(own, samples=64):
    """As much of a run as the comparison reads."""
    return type("OneRun", (), {"losses": own, "samples_per_step": samples})()


SLOW = run([0.06] * 32 + [0.05] * 32)


def test_the_solution_trains_as_the_slow_script(monkeypatch):
    slow = losses(capstone.slow_script().read_text(), 32, monkeypatch)
    check = capstone.same_training(run(losses(solution(), 2, monkeypatch)), run(slow))
    assert check.ok, check.evidence
    assert "first 2 steps" in check.evidence


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


def test_a_step_may_have_any_number_of_parts():
    for own in ([0.96, 0.96, 0.80, 0.80], [0.48] * 4 + [0.4] * 4, [0.061] * 32 + [0.05] * 32):
        assert capstone.same_training(run(own), SLOW).ok


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (run([0.96, 0.7]), "step 2 has the loss 0.7000 and should have 0.9600"),
        (run([]), "no losses"),
        (run([0.96] * 4, samples=32), "32 samples and should have 64"),
        (run([float("nan")] * 4), "step 1"),
    ],
)
def test_other_training_is_refused(own, says):
    check = capstone.same_training(own, SLOW)
    assert not check.ok
    assert says in check.evidence


def test_the_first_call_makes_the_copy_and_measures_nothing(tmp_path):
    file = tmp_path / "mine.py"
    for _ in range(2):
        assert "Edit it" in pk.capstone(file).data
        assert file.read_bytes() == capstone.slow_script().read_bytes()
