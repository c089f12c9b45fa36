"""Scripts of different make are watched as they stand: steps, samples, toggles, losses; nothing is left."""

import os
import shutil
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


CASES = (
    Case(
        "plain_loop.py", 8, {**DATA, "cpu_threads": 1}, {"amp": "bf16", "channels_last": True},
        {"uint8_copy": "data set", "pin_memory": "CPU"},
        ("--images", "80", "--batch-size", "8", "--size", "32"),
    ),
    Case(
        "trainer_style.py", 32, {"zero_grad_set_to_none": True}, {}, {"channels_last": "4-dimensional"},
        ("--words", "16"), backwards=2, tokens=32 * 16,
    ),
    Case("module_style.py", 16, arguments=("--signals", "96", "--length", "64", "--batch-size", "16")),
    Case("gpt.py", 12, {}, {"amp": "bf16"}, {"workers": "no DataLoader"}, tokens=12 * 32),
    Case("language.py", 5, tokens=5 * 7),
    Case("gan.py", 16, DATA, backwards=3),
    Case("in_backward.py", 16),
    Case("iterable.py", 8, refused={"workers": "iterable"}),
    Case("parcel.train", 4, {}, {"channels_last": True}, arguments=("--batch-size", "4"), module=True),
    Case("lightning_docs.py", 16, DATA),
    Case("hf_docs.py", 16, {}, {"optimizer_impl": "foreach"}, backwards=2, tokens=16 * 32),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)
def test_a_script_is_counted_and_toggled(case: Case, tmp_path: Path, monkeypatch: Any, no_orphans: Any):
    for name, value in {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    for source in (ROOT / "tests/scripts", ROOT / "data/scripts"):
        shutil.copytree(source, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    environment, launch = dict(os.environ), Launch(case.program, case.arguments, case.module, tmp_path)

    def start(toggles: dict[str, Any]) -> WatchedScript:
        script = WatchedScript(launch, toggles)
        script.limit(200)
        return script

    def train(script: WatchedScript) -> Trained:
        return script.ask("train", Trained, loss_steps=LOSS_STEPS, warmup_s=0.0)

    several = [toggles for toggles in (case.exact, case.rounded) if toggles]
    plain, toggled = start({}), [start(toggles) for toggles in several]
    try:
        facts, first = plain.ask("describe", ScriptFacts), train(plain)
        block = plain.ask("block", Block, samples=4 * case.samples, settle=False)
        assert block.samples == case.samples * len(block.step_s), "samples of each step"
        assert len(block.step_s) >= 4 and 0 < sum(block.step_s) <= block.seconds * 1.5
        assert (facts.backwards_per_step, facts.tokens_per_step) == (case.backwards, case.tokens)
        assert first.samples_per_step == case.samples
        assert len(first.losses) == LOSS_STEPS * case.backwards
        for name, reason in case.refused.items():
            assert reason in facts.refused[name]
        for script, toggles in zip(toggled, several, strict=True):
            other = train(script)
            assert {proof.switch: proof.ok for proof in other.mechanisms} == dict.fromkeys(toggles, True)
            recipe, own = Recipe.from_dict(other.recipe), Recipe.from_dict(first.recipe)
            strict = "bitwise" if toggles == case.exact else exactness(recipe, own)
            check = parity.losses(other.losses, first.losses, strict, recipe.amp != "off")
            assert check.ok, check.evidence
    finally:
        for script in (plain, *toggled):
            script.stop()
    assert dict(os.environ) == environment
