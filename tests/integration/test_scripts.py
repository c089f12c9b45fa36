"""Scripts of different make: watched as they stand, toggled from outside, edited; nothing is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from perfkit.additions.patch import edits as patching
from perfkit.additions.referee.match import Terms, two_scripts
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.ladder.catalogue import exactness
from perfkit.recipe import Recipe
from perfkit.results import parity
from perfkit.results.store import RunStore
from perfkit.studies.compare import compared
from perfkit.studies.sources import Progress
from tests.support import scripts
from tests.support.cli import ROOT, perfkit
from tests.unit.additions.referee.test_behaviour import TOKENS

LOSS_STEPS = 6
DATA = {"workers": 1, "prefetch_factor": 3}
OFFLINE = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}

pytestmark = pytest.mark.usefixtures("no_orphans")


@dataclass(frozen=True)
class Case:
    """A script, and what one knows of it who has read it."""

    program: str
    samples: int
    """In a step of its optimizer."""
    exact: dict[str, Any] = field(default_factory=dict)
    """Switches after which every loss must be the same."""
    other: dict[str, Any] = field(default_factory=dict)
    """Switches after which losses may differ by rounding, or belong to other batches."""
    refused: dict[str, str] = field(default_factory=dict)
    """Switches that cannot be set, and a part of the reason."""
    arguments: tuple[str, ...] = ()
    backwards: int = 1
    edits: tuple[str, ...] = ()
    """The lines that set `other` in the script itself."""
    by_hand: dict[str, str] = field(default_factory=dict)
    """Switches that no edit can set, and which one a person makes."""


CASES = (
    Case(
        "plain_loop.py", 8, {**DATA, "cpu_threads": 1},
        {"workers": 1, "channels_last": True, "optimizer_impl": "fused"},
        {"uint8_copy": "data set", "pin_memory": "CUDA"},
        ("--images", "80", "--batch-size", "8", "--size", "32"),
        edits=(
            "train_loader = DataLoader(photos, args.batch_size, sampler=order, num_workers=1, "
            "persistent_workers=True)",
            "model.to(memory_format=torch.channels_last)",
            "optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, fused=True)",
        ),
    ),
    Case(
        "trainer_style.py", 32, {"cpu_threads": 1}, {}, {"channels_last": "4-dimensional"},
        ("--words", "16"), backwards=2,
    ),
    Case("module_style.py", 16, arguments=("--signals", "96", "--length", "64", "--batch-size", "16")),
    Case("gpt.py", 8, {}, {"amp": "bf16"}, {"workers": "no DataLoader"}),
    Case("language.py", 5),
    Case("gan.py", 16, DATA, backwards=3),
    Case("in_backward.py", 16, refused={"workers": "iterable"}),
    Case(
        "parcel.train", 4, {}, {"optimizer_impl": "foreach"}, arguments=("--batch-size", "4"),
        edits=("optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, foreach=True)",),
        by_hand={"workers": "data.py:21: set num_workers=1 persistent_workers=True where `options` comes from"},
    ),
    Case("lightning_docs.py", 16, DATA),
    Case(
        "hf_docs.py", 16, {}, {"amp": "bf16", "batch_size": 4}, backwards=2,
    ),
)  # fmt: skip


def start(launch, toggles, known=None):
    script = WatchedScript(launch, toggles, facts=known).start()
    script.timeout_s = 200
    return script


def train(script):
    return script.ask("train", loss_steps=LOSS_STEPS, warmup_s=0.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)
def test_a_script_is_counted_toggled_and_edited(case, tmp_path, monkeypatch):
    scripts.fork(monkeypatch)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    for source in (ROOT / "tests/scripts", ROOT / "data/scripts"):
        shutil.copytree(source, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "gpt.py").write_text(TOKENS)
    monkeypatch.chdir(tmp_path)
    launch = Launch(case.program, case.arguments, not case.program.endswith(".py"))
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.py")}
    environment = dict(os.environ)
    with start(launch, {}) as plain:
        facts, first = plain.ask("describe"), train(plain)
        block = plain.ask("slice", samples=4 * case.samples, seconds=0.0)
        assert block.samples == case.samples * len(block.step_s), "samples of each step"
        assert len(block.step_s) >= 4 and 0 < sum(block.step_s) <= block.seconds * 1.5
        plain.ask("observe", steps=1, seconds=0.0)
        assert first.samples_per_step == case.samples
        assert len(first.losses) == LOSS_STEPS * case.backwards
        for name, reason in case.refused.items():
            assert reason in facts.refused[name]
        for toggles in filter(None, (case.exact, case.other)):
            with start(launch, toggles, facts) as script:
                other = train(script)
            assert {proof.name: proof.ok for proof in other.mechanisms} == dict.fromkeys(toggles, True)
            recipe, own = Recipe.from_dict(other.recipe), Recipe.from_dict(first.recipe)
            strict = "bitwise" if toggles == case.exact else exactness(recipe, own)
            check = parity.check_losses(other.losses, first.losses, strict, recipe.amp != "off")
            assert check.ok or "batch_size" in toggles, check.evidence
        if case.edits:
            patch = patching.make(launch, case.other | dict.fromkeys(case.by_hand, 1))
            assert ({*patch.edited}, patch.refused) == ({*case.other}, case.by_hand)
            lines = [line for line in patch.diff().splitlines() if line[0] == "+" and line[:3] != "+++"]
            assert [line[1:].strip() for line in lines] == [*case.edits]
            with start(patch.launch, {}) as edited:
                assert train(edited).losses == other.losses
    assert dict(os.environ) == environment
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.py")} == files


def test_the_command_prints_and_verifies(tmp_path, monkeypatch):
    scripts.fork(monkeypatch)
    file = tmp_path / "train.py"
    shutil.copy(ROOT / "data/scripts/plain_loop.py", file)
    switches = ("--set", "optimizer_impl=fused", "--set", "uint8_copy=true", "--budget", "1")
    arguments = ("--images", "40", "--size", "16", "--batch-size", "4")
    done = perfkit("patch", file.name, *switches, "--", *arguments, code=None, cwd=tmp_path)
    # Speed is not asserted: only whether a difference was measured decides over the exit status.
    assert done.exit_code == ("NOT verified" in done.stderr), done.stderr
    assert "losses equal bit for bit" in " ".join(done.stderr.split())
    assert "uint8_copy is not in the patch" in done.stderr
    diff = done.stdout.encode()
    # Within a work tree, git would skip the file.
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(["git", "apply"], input=diff, check=True, capture_output=True, cwd=tmp_path, env=outside)
    assert b"momentum=0.9, fused=True)" in file.read_bytes()


def test_ctrl_c_ends_a_comparison_of_scripts_and_keeps_its_rounds(tmp_path, monkeypatch, data_dir):
    scripts.fork(monkeypatch)
    (tmp_path / "a.py").write_text(TOKENS)
    (tmp_path / "b.py").write_text(TOKENS)
    monkeypatch.chdir(tmp_path)

    def press(now):
        if now.stage.startswith("round 3"):
            raise KeyboardInterrupt

    match, store = two_scripts(Launch("a.py"), Launch("b.py"), Terms("smoke")), RunStore()
    with pytest.raises(KeyboardInterrupt):
        match._replace(plan=match.plan.until(30.0)).compare(Progress(press), store)
    runs = {run.title: run for run in store.runs()}
    assert compared([runs["a.py"], runs["b.py"]], None).rounds == 2


WORKER = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for inputs in DataLoader(torch.zeros(1_000_000, 4), 4, num_workers=1):
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
KILLED = """
import json, os, signal
from perfkit.additions.scripts.watched import Launch, WatchedScript

script = WatchedScript(Launch("train.py")).start()
script.ask("observe", steps=3, seconds=60.0)
script.suspend()
print(json.dumps([process.pid for process in script.tree.processes()]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_no_suspended_worker_of_a_script_survives_a_watcher_that_is_killed(tmp_path):
    (tmp_path / "train.py").write_text(WORKER)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = json.loads(done.stdout)
    assert len(pids) == 2, "the script and its worker"
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=60)[1]
