"""Scripts get the edit for a switch; edited, they train as with the switch set from outside."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfkit.cli import app
from perfkit.scripts import patch as patching
from perfkit.scripts.launch import Launch
from perfkit.scripts.watched import WatchedScript
from perfkit.worker.messages import Trained

pytestmark = pytest.mark.usefixtures("no_orphans", "offline")

ROOT = Path(__file__).parents[2]
CASES: dict[str, tuple[str, list[str], dict[str, Any], list[str]]] = {
    # script, its arguments, switches, what the diff adds
    "plain": (
        "data/scripts/plain_loop.py", ["--images", "40", "--size", "32", "--batch-size", "4"],
        {"workers": 1, "amp": "bf16", "channels_last": True, "optimizer_impl": "fused"},
        [
            "train_loader = DataLoader(Photos(args.images, args.size, seed=1), args.batch_size, shuffle=True, "
            "num_workers=1)",
            "model.to(memory_format=torch.channels_last)",
            "optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, fused=True)",
            'with torch.autocast("cpu", dtype=torch.bfloat16):',
            "loss = criterion(model(images), labels)",
        ],
    ),
    "trainer of a library": (
        "tests/scripts/hf_docs.py", [], {"amp": "bf16", "batch_size": 4},
        ["per_device_train_batch_size=4,", "bf16=True,"],
    ),
}  # fmt: skip


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def first_steps(launch: Launch, toggles: dict[str, Any]) -> Trained:
    script = WatchedScript(launch, toggles)
    try:
        return script.ask("train", Trained, loss_steps=5, warmup_s=0.0)
    finally:
        script.stop()


@pytest.mark.parametrize("case", CASES)
def test_a_patched_script_trains_as_the_toggled_one(case: str, tmp_path: Path) -> None:
    path, arguments, settings, expected = CASES[case]
    script = tmp_path / Path(path).name
    shutil.copy(ROOT / path, script)
    launch = Launch(script.name, arguments, folder=tmp_path)
    before = script.read_bytes()
    result = patching.make(launch, settings)
    assert not result.refused and list(result.edits) == sorted(settings, key=list(result.edits).index)
    lines = result.diff().splitlines()[2:]
    assert [line[1:].strip() for line in lines if line.startswith("+")] == expected
    toggled = first_steps(launch, settings)
    assert {proof.switch for proof in toggled.mechanisms if proof.ok} == set(settings)
    assert first_steps(result.launch, {}).losses == toggled.losses and len(toggled.losses) >= 5
    assert script.read_bytes() == before and [*tmp_path.iterdir()] == [script]


def test_a_module_that_packs_its_loader_s_options_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests/scripts/parcel", tmp_path / "parcel")
    launch = Launch("parcel.train", ["--batch-size", "4"], module=True, folder=tmp_path)
    result = patching.make(launch, {"workers": 1, "zero_grad_set_to_none": True})
    packed = "data.py:21: set num_workers=1 in the dictionary given as **options"
    assert result.refused == {"workers": packed}
    assert (
        "a/parcel/train.py" in result.diff()
        and "+        optimizer.zero_grad(set_to_none=True)" in result.diff()
    )
    toggled = first_steps(launch, {"zero_grad_set_to_none": True})
    assert first_steps(result.launch, {}).losses == toggled.losses


def command(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["patch", *words])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_prints_verifies_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "data/scripts/plain_loop.py", tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    before = (tmp_path / "train.py").read_bytes()
    words = ["train.py", "--set", "optimizer_impl=fused", "--set", "uint8_copy=true", "--budget", "0", "--write",
             "--", "--images", "40", "--size", "16", "--batch-size", "4"]  # fmt: skip
    code, out, err = command(*words)
    # Speed is not asserted: only whether a difference was measured decides over writing.
    is_verified = "NOT verified" not in err
    assert code == (0 if is_verified else 1), err
    assert "losses equal bit for bit" in err
    assert "uint8_copy needs an edit by hand" in err and ("edited" in err) == is_verified
    after = (tmp_path / "train.py").read_bytes()
    (tmp_path / "train.py").write_bytes(before)
    subprocess.run(["patch", "-p1"], input=out.encode(), check=True, capture_output=True)
    edited = (tmp_path / "train.py").read_bytes()
    assert b"momentum=0.9, fused=True)" in edited and (edited == after) == is_verified


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["train.py"], 2, "nothing to set"),
        (["train.py", "--set", "amp=bf16"], 1, "perfkit:"),
    ],
)
def test_misuse_is_one_line(
    words: list[str], code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint('no training here')\n")
    monkeypatch.chdir(tmp_path)
    exit_code, _, err = command(*words)
    assert exit_code == code and reason in err and "Traceback" not in err
