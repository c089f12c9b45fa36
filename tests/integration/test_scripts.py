"""Scripts of different make are watched as they stand: steps, samples, toggles, losses; nothing is left."""

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfkit.ladder.catalogue import exactness
from perfkit.recipe import Recipe
from perfkit.results import parity
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import ScriptFacts
from perfkit.scripts.watched import WatchedScript
from perfkit.worker.messages import Block, Trained

ROOT = Path(__file__).parents[2]
LOSS_STEPS = 6
DATA = {"workers": 1, "prefetch_factor": 3}


@dataclass(frozen=True)
class Case:
    """A script, and what one knows of it who has read it."""

    program: str
    samples: int
    """In a step of its optimizer."""
    exact: dict[str, Any] = field(default_factory=dict)
    """Switches after which every loss must be the same."""
    rounded: dict[str, Any] = field(default_factory=dict)
    """Switches after which losses may differ by rounding."""
    refused: dict[str, str] = field(default_factory=dict)
    """Switches that cannot be set, and a part of the reason."""
    arguments: tuple[str, ...] = ()
    module: bool = False
    backwards: int = 1
    tokens: int = 0
    ranks: int = 1

    def __str__(self) -> str:
        return self.program.replace("torchrun", "ddp")


SHIPPED = "data/scripts"
SCRIPTS = "tests/scripts"
CASES = (
    Case(
        "plain_loop.py", 8, DATA, {"amp": "bf16", "channels_last": True, "optimizer_impl": "fused"},
        {"uint8_copy": "data set", "pin_memory": "CPU"},
        ("--images", "80", "--batch-size", "8", "--size", "32"),
    ),
    Case(
        "trainer_style.py", 32, {**DATA, "zero_grad_set_to_none": True}, {"optimizer_impl": "foreach"},
        {"channels_last": "4-dimensional"}, ("--words", "16"), backwards=2, tokens=32 * 16,
    ),
    Case(
        "module_style.py", 16, {**DATA, "zero_grad_set_to_none": True}, {"amp": "bf16"},
        {"channels_last": "4-dimensional"}, ("--signals", "96", "--length", "64", "--batch-size", "16"),
    ),
    Case(
        "gpt.py", 12, {"zero_grad_set_to_none": False}, {"amp": "bf16"}, {"workers": "no DataLoader"},
        tokens=12 * 32,
    ),
    Case("gan.py", 16, DATA, backwards=3),
    Case("scaler.py", 16, DATA),
    Case("in_backward.py", 16, DATA),
    Case("iterable.py", 8, rounded={"optimizer_impl": "foreach"}, refused={"workers": "iterable"}),
    Case("parcel.train", 4, rounded={"channels_last": True}, arguments=("--batch-size", "4"), module=True),
    Case("torchrun", 32, DATA, arguments=("--nproc-per-node", "2", "ddp.py"), ranks=2),
    Case("lightning_docs.py", 16, DATA),
    Case("hf_docs.py", 16, DATA, backwards=2, tokens=16 * 32),
    Case("timm_docs.py", 8, rounded={"channels_last": True}),
    Case("accelerate_docs.py", 32, DATA, backwards=2),
)  # fmt: skip


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the scripts are started: nothing may be there afterwards that was not before."""
    for source in (ROOT / SCRIPTS, ROOT / SHIPPED):
        shutil.copytree(source, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def started(case: Case, folder: Path, toggles: dict[str, Any]) -> WatchedScript:
    launch = Launch(case.program, case.arguments, case.module, folder)
    return WatchedScript(launch, toggles, seed=0, deadline=time.monotonic() + 200)


def trained(script: WatchedScript) -> Trained:
    return script.ask("train", Trained, loss_steps=LOSS_STEPS, warmup_s=0.0)


def check_counts(case: Case, script: WatchedScript, facts: ScriptFacts, first: Trained):
    """What the script does in a step, against what it says in the file."""
    block = script.ask("block", Block, samples=4 * case.samples, settle=False)
    assert block.samples == case.samples * len(block.step_s), "samples of each step"
    assert len(block.step_s) >= 4 and 0 < sum(block.step_s) <= block.seconds * 1.5
    assert facts.backwards_per_step == case.backwards
    assert facts.tokens_per_step * case.ranks == case.tokens
    assert first.samples_per_step == case.samples
    assert len(first.losses) == LOSS_STEPS * case.backwards
    for name, reason in case.refused.items():
        assert reason in facts.refused[name]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_script_is_counted_and_toggled(case: Case, folder: Path, no_orphans: Any):
    before = dict(os.environ)
    plain = started(case, folder, {})
    toggled = [started(case, folder, toggles) for toggles in (case.exact, case.rounded) if toggles]
    try:
        facts, first = plain.ask("describe", ScriptFacts), trained(plain)
        check_counts(case, plain, facts, first)
        for script, toggles in zip(toggled, filter(None, (case.exact, case.rounded)), strict=True):
            other = trained(script)
            assert {proof.switch for proof in other.mechanisms} == {*toggles}
            assert all(proof.ok for proof in other.mechanisms), other.mechanisms
            recipe, own = Recipe.from_dict(other.recipe), Recipe.from_dict(first.recipe)
            strict = "bitwise" if toggles == case.exact else exactness(recipe, own)
            check = parity.losses(other.losses, first.losses, strict, recipe.amp != "off")
            assert check.ok, check.evidence
    finally:
        for script in (plain, *toggled):
            script.stop()
    assert dict(os.environ) == before
