"""Scripts get the edit for a switch; edited, they train as with the switch set from outside."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfkit.cli import app
from perfkit.scripts import patch_study as patching
from perfkit.scripts.launch import Launch
from perfkit.scripts.patch import Patch
from perfkit.scripts.watched import WatchedScript
from perfkit.worker.messages import Trained

pytestmark = pytest.mark.usefixtures("no_orphans")

ROOT = Path(__file__).parents[2]
CASES: dict[str, tuple[str, list[str], dict[str, Any], list[str]]] = {
    # script, its arguments, switches, what must stand in the diff
    "plain": (
        "data/scripts/plain_loop.py", ["--images", "40", "--size", "32", "--batch-size", "4"],
        {"workers": 1, "amp": "bf16", "channels_last": True, "optimizer_impl": "fused"},
        [
            "+    train_loader = DataLoader(Photos(args.images, args.size, seed=1), args.batch_size, "
            "shuffle=True, num_workers=1)",
            '+            with torch.autocast("cpu", dtype=torch.bfloat16):',
            "+                loss = criterion(model(images.to(memory_format=torch.channels_last)), labels)",
            "+    model.to(memory_format=torch.channels_last)",
            "momentum=0.9, fused=True)",
        ],
    ),
    "two models": (
        "tests/scripts/gan.py", [], {"amp": "bf16", "batch_size": 8},
        ["+            fake = generator(", "+        loss.backward()", "batch_size=8"],
    ),
    "trainer of a library": (
        "tests/scripts/hf_docs.py", [], {"amp": "bf16", "batch_size": 4},
        ["+        per_device_train_batch_size=4,", "+        bf16=True,"],
    ),
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of the user's."""
    return tmp_path


def first_steps(launch: Launch, toggles: dict[str, Any]) -> Trained:
    script = WatchedScript(launch, toggles, seed=0, environment={"HF_HUB_OFFLINE": "1"})
    try:
        return script.ask("train", Trained, loss_steps=5, warmup_s=0.0)
    finally:
        script.stop()


@pytest.mark.parametrize("case", CASES)
def test_a_patched_script_trains_as_the_toggled_one(case: str, project: Path) -> None:
    path, arguments, settings, expected = CASES[case]
    script = project / Path(path).name
    shutil.copy(ROOT / path, script)
    launch = Launch(script.name, arguments, folder=project)
    before = script.read_bytes()
    result = patching.make(launch, settings)
    diff = result.diff(project)
    for line in expected:
        assert line in diff
    assert not result.refused and set(result.edits) == set(settings)
    toggled = first_steps(launch, settings)
    assert {proof.switch for proof in toggled.mechanisms if proof.ok} == set(settings)
    assert first_steps(patching.patched(launch, result), {}).losses == toggled.losses
    assert len(toggled.losses) >= 5
    assert script.read_bytes() == before and [*project.iterdir()] == [script]


def test_a_module_that_packs_its_loader_s_options_elsewhere(project: Path) -> None:
    shutil.copytree(ROOT / "tests/scripts/parcel", project / "parcel")
    launch = Launch("parcel.train", ["--batch-size", "4"], module=True, folder=project)
    result = patching.make(launch, {"workers": 1, "zero_grad_set_to_none": True})
    assert result.refused["workers"].startswith("data.py:21: set num_workers=1 in the dictionary")
    assert "a/parcel/train.py" in result.diff(project) and "set_to_none=True" in result.diff(project)
    toggled = first_steps(launch, {"zero_grad_set_to_none": True})
    assert first_steps(patching.patched(launch, result), {}).losses == toggled.losses


def patch_at_the_command_line(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["patch", *words])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_prints_verifies_and_writes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "data/scripts/plain_loop.py", project / "train.py")
    monkeypatch.chdir(project)
    before = (project / "train.py").read_bytes()
    words = ["train.py", "--set", "optimizer_impl=fused", "--set", "uint8_copy=true", "--preset", "smoke",
             "--budget", "0", "-o", "edit.diff", "--json", "result.json", "--write", "--",
             "--images", "40", "--size", "16", "--batch-size", "4"]  # fmt: skip
    code, out, err = patch_at_the_command_line(*words)
    record = json.loads((project / "result.json").read_text())
    # Speed is not asserted: only whether a difference was measured decides over writing.
    verified = record["verification"]["ratio"]["verdict"] not in ("faster", "slower")
    assert code == (0 if verified else 1), err
    assert record["verification"]["losses"]["ok"] is True
    assert "uint8_copy needs an edit by hand" in err
    assert "+    optimizer = torch.optim.SGD(" in out and "fused=True" in out
    if verified:
        assert b"fused=True" in (project / "train.py").read_bytes()
        assert "edited" in err
    (project / "train.py").write_bytes(before)
    subprocess.run(["git", "apply", "edit.diff"], cwd=project, check=True, capture_output=True)
    assert b"fused=True" in (project / "train.py").read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["train.py"], "nothing to set"),
        (["train.py", "--set", "amp=half"], "unknown value"),
        (["absent.py", "--set", "amp=bf16"], "no script"),
    ],
)
def test_misuse_is_one_line(words: list[str], reason: str, project: Path, monkeypatch: Any) -> None:
    (project / "train.py").write_text("pass\n")
    monkeypatch.chdir(project)
    code, _, err = patch_at_the_command_line(*words)
    assert code == 2 and reason in err and "Traceback" not in err


def test_a_script_that_ends_before_it_trains(project: Path, monkeypatch: Any) -> None:
    (project / "train.py").write_text("import torch\nprint('no training here')\n")
    monkeypatch.chdir(project)
    code, _, err = patch_at_the_command_line("train.py", "--set", "amp=bf16")
    assert code == 1 and "Traceback" not in err and "perfkit:" in err


def test_the_patch_of_nothing_is_no_diff() -> None:
    assert Patch([], []).diff("/") == ""
