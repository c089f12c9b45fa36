"""Scripts as they stand, the difficult ones too: watched, toggled, ended; nothing of them is left behind."""

import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfkit.cli import app
from perfkit.errors import Cancelled, InvalidValue
from perfkit.results.run import Communication
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation, ScriptFacts
from perfkit.scripts.watched import ScriptFailed, WatchedScript
from perfkit.worker.messages import Block, Peak, ProfileReport, SyncReport, Trained

pytestmark = pytest.mark.usefixtures("no_orphans")

PLAIN = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main():
    print("started", __name__, sys.argv[1:], os.getcwd(), os.environ.get("PERFKIT_WATCH"), flush=True)
    print("to stderr", sys.path[0], file=sys.stderr)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 3, 8, 8), torch.randint(4, (256,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(288, 4))
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for epoch in range(100_000):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            loss.item()
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()

if __name__ == "__main__":
    main()
"""
LOOP = """
import os, sys, torch
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def step():
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which scripts are started."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def started(code: str, *arguments: str, limit_s: float = 120.0, **more: Any) -> Iterator[WatchedScript]:
    Path("train.py").write_text(code)
    script = WatchedScript(Launch("train.py", arguments), deadline=time.monotonic() + limit_s, **more)
    try:
        yield script
    finally:
        script.stop()
        assert not Path(script._folder).exists()


def train(script: WatchedScript, steps: int = 6) -> Trained:
    return script.ask("train", Trained, loss_steps=steps, warmup_s=0.05)


def test_a_script_is_watched_from_its_first_step_to_its_clean_end(folder: Path):
    with started(PLAIN, "--lr", "1", seed=0) as script:
        trained = train(script)
        assert trained.samples_per_step == 16
        assert trained.first.samples == 6 * 16 and len(trained.first.step_s) == 6
        assert len(trained.losses) == 6
        assert trained.batch_bytes_per_sample == 3 * 8 * 8 * 4 + 8
        assert trained.recipe["batch_size"] == 16 and trained.recipe["workers"] == 0
        block = script.ask("block", Block, samples=64)
        assert block.samples == 64 and len(block.step_s) == 4
        assert all(wait <= step for wait, step in zip(block.data_wait_s, block.step_s, strict=True))
        seen = script.ask("observe", Observation, steps=40)
        assert seen.block.samples == len(seen.block.step_s) * 16 >= 40 * 16
        assert {"evaluation + new epoch"} == set(seen.outside)  # at each 16th step
        held = script.ask("ceiling", Block, samples=64)
        assert held.samples == 64 and sum(held.data_wait_s) < 0.5 * held.seconds
        assert script.ask("try_amp", Block, samples=64, limit_s=60.0).samples == 64
        assert (script.ask("peak", Peak).allocated or 0) > 1e7
        places = script.ask("syncs", SyncReport, steps=3).places
        assert [(place.where, place.call, place.count) for place in places] == [("train.py:22", "item", 3)]
        trace = folder / "steps.json"
        options = {"wait": 0, "warmup": 1, "active": 2, "shapes": True, "memory": False, "stacks": False}
        assert len(script.ask("profile", ProfileReport, path=str(trace), **options).marks) == 3
        facts = script.ask("describe", ScriptFacts)
        assert (facts.device, facts.models, facts.optimizers) == ("cpu", ["Sequential"], ["Adam"])
        assert facts.loader == "TensorDataset" and facts.convolves and not facts.refused.keys() & {"amp"}
        assert "uint8" in facts.refused["uint8_copy"]
        lines = PLAIN.splitlines()
        for role, text in {
            "loader": "DataLoader(data, batch_size=16, shuffle=True)",
            "optimizer": "torch.optim.Adam(model.parameters())",
            "forward": "model(x)",
            "backward": "scaler.scale(loss).backward()",
        }.items():
            frame = next(site.frames[0] for site in facts.sites if site.role == role)
            assert frame.file == str(folder / "train.py")
            assert lines[frame.line - 1][frame.column : frame.end_column] == text
        with pytest.raises(ScriptFailed, match="cannot be asked for memory"):
            script.ask("memory", Block)
        assert script.ask("observe", Observation, steps=1).block.samples  # it goes on
        here = script._folder
    said = script.output[0]
    assert said.startswith("started __main__ ['--lr', '1']") and said.endswith("None")
    assert str(folder) in said and here not in said  # a mirror of it, which is not shown
    assert script.log[0] == f"to stderr {folder}"
    assert trace.exists()
    assert {path.name for path in folder.iterdir()} == {"train.py", "steps.json"}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_memory_that_goes_back_to_the_system_is_fetched_again_in_each_step(folder: Path):
    frees = PLAIN.replace("loss.item()", "loss.item(); torch.ones(10 * 2**20)")
    pages = 40 * 2**20 / os.sysconf("SC_PAGESIZE")
    suggested = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
    for environment, kept in (({}, False), (suggested, True)):
        with started(frees, environment=environment) as script:
            train(script)
            seen = script.ask("observe", Observation, steps=24)
            steps = len(seen.block.step_s) + sum(count for count, _ in seen.outside.values())
            assert (seen.page_faults / steps < pages / 2) is kept  # the heap may grow in some steps
            assert seen.system_s > 0 or kept


def test_autocast_is_tried_for_some_steps_and_leaves_nothing(folder: Path):
    told = PLAIN.replace(
        "loss = nn.functional.cross_entropy(model(x), y)",
        """out = model(x)
            print(out.dtype, x.data_ptr(), flush=True)
            loss = nn.functional.cross_entropy(out, y)""",
    )
    with started(told) as script:
        train(script)
        script.output.clear()
        block = script.ask("try_amp", Block, samples=64, limit_s=60.0)
        tried = [line.split() for line in script.output]
        script.output.clear()
        script.ask("observe", Observation, steps=4)
        after = [line.split() for line in script.output]
        own = script.ask("describe", ScriptFacts).settings
    assert block.samples == 64
    assert {kind for kind, _ in tried[1:]} == {"torch.bfloat16"}
    assert len({at for _, at in tried[3:]}) == 1, "the same batch each time"
    assert {kind for kind, _ in after[1:]} == {"torch.float32"}
    assert own["amp"] == "off"


def test_toggles_prove_themselves_and_change_no_loss_where_they_are_exact(folder: Path):
    with started(PLAIN, seed=0) as script:
        plain = train(script)
        loader = next(
            site for site in script.ask("describe", ScriptFacts).sites if site.role == "loader"
        ).frames[0]
    toggles = {"workers": 1, "optimizer_impl": "foreach", "cpu_threads": 1}
    places = [[loader.file, loader.line, loader.column]]
    with started(PLAIN, toggles=toggles, loaders=places, seed=0) as script:
        toggled = train(script)
    assert {proof.switch: proof.ok for proof in toggled.mechanisms} == dict.fromkeys(toggles, True)
    assert toggled.losses == pytest.approx(plain.losses, rel=1e-5)
    assert toggled.recipe["workers"] == 1
    toggles = {"amp": "bf16", "channels_last": True, "optimizer_impl": "fused", "batch_size": 32}
    with started(PLAIN, toggles=toggles, seed=0) as script:
        toggled = train(script)
    assert {proof.switch: proof.ok for proof in toggled.mechanisms} == dict.fromkeys(toggles, True)
    assert toggled.samples_per_step == 32
    assert toggled.losses != plain.losses


def test_what_cannot_be_set_is_refused_with_the_reason(folder: Path):
    toggles = {"amp": "fp16", "channels_last": True, "workers": 2, "optimizer_impl": "fused"}
    loop = LOOP.replace("SGD(", "Rprop(") + "while True:\n    step()\n"
    with started(loop, toggles=toggles) as script:
        mechanisms = train(script).mechanisms
        refused = script.ask("describe", ScriptFacts).refused
    assert not any(proof.ok for proof in mechanisms)
    assert "GradScaler" in refused["amp"]
    assert "4-dimensional" in refused["channels_last"]
    assert "no DataLoader" in refused["workers"]
    assert "Rprop has no fused" in refused["optimizer_impl"]
    with pytest.raises(InvalidValue, match=r"uint8_copy.*the edit|uint8_copy.*return uint8"):
        WatchedScript(Launch("train.py"), {"uint8_copy": True})


def test_fp16_uses_the_scaler_that_the_script_has(folder: Path):
    with started(PLAIN, toggles={"amp": "fp16"}, seed=0) as script:
        trained = train(script)
    assert [(proof.switch, proof.ok) for proof in trained.mechanisms] == [("amp", True)]


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (
            "for i in range(5): step()\nraise ValueError('no')",
            r"raised ValueError after \d+ steps: no.*train.py:11",
        ),
        ("step()\nprint('bye')", "ended after one training step"),
        ("print('no training here')", "ended without training"),
        ("for i in range(4): step()\nos._exit(3)", "exit status 3"),
        ("os._exit(0)", "exit status 0 before its second"),
        ("name = input('run name? ')", "asks for input.*train.py:10"),
        ("import nothing_of_this_name", "ModuleNotFoundError.*train.py:10"),
        ("def broken(:", "exit status 1"),
    ],
)  # fmt: skip
def test_a_script_that_fails_says_so_in_its_own_words(folder: Path, ending: str, said: str):
    with started(LOOP + ending + "\n") as script, pytest.raises(ScriptFailed, match=said) as failure:
        script.ask("observe", Observation, steps=50)
    assert "perfkit" not in failure.value.output
    if "raise" in ending:
        assert "ValueError: no" in failure.value.output


def test_the_way_in_leaves_the_interpreter_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch):
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.own_site = __file__\n")
    monkeypatch.setenv("PYTHONPATH", str(own))
    code = (
        "import os, sys; print('AfterTorch' in str(sys.meta_path), 'PERFKIT_WATCH' in os.environ, own_site)"
    )
    asking = (
        "import json, os, subprocess, sys\n"
        "facts = [own_site, os.environ['PYTHONPATH'], os.environ.get('PERFKIT_WATCH')]\n"
        "facts.append(os.environ['WANDB_MODE'])\n"
        f'child = [sys.executable, "-c", "{code}"]\n'
        "facts.append(subprocess.run(child, capture_output=True, text=True).stdout)\n"
        "print(json.dumps(facts), flush=True)\n"
    )
    with started(asking) as script, pytest.raises(ScriptFailed, match="exit status 0 before its second"):
        script.ask("observe", Observation, steps=5)
    theirs = str(own / "sitecustomize.py")
    child = f"False False {theirs}\n"
    assert json.loads(script.output[0]) == [theirs, str(own), None, "disabled", child]


def test_a_script_that_comes_to_its_end_meanwhile(folder: Path):
    with started(LOOP + "for i in range(9): step()\nsys.exit(0)\n") as script:
        seen = script.ask("observe", Observation, steps=50)
        assert (
            seen.ended and seen.steps == 9 and len(seen.block.step_s) == 7
        )  # the first command came after two
    early = pytest.raises(ScriptFailed, match="ended after 4 steps, before it was measured")
    with started(LOOP + "for i in range(4): step()\n") as script, early:
        train(script)


def test_a_script_that_catches_everything_is_ended_all_the_same(folder: Path):
    catching = "while True:\n    try:\n        step()\n    except BaseException:\n        pass\n"
    with started(LOOP + catching) as script:
        assert script.ask("observe", Observation, steps=5).steps >= 5


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_that_a_script_starts_itself_are_not_watched(folder: Path, method: str):
    starting = LOOP + (
        "def work():\n"
        "    while True: step()\n"
        "if __name__ == '__main__':\n"
        f"    context = torch.multiprocessing.get_context('{method}')\n"
        "    children = [context.Process(target=work, daemon=True) for _ in range(2)]\n"
        "    for child in children: child.start()\n"
        "    for child in children: child.join(3)\n"
    )
    not_watched = pytest.raises(ScriptFailed, match="processes that it started itself, which are not watched")
    with started(starting) as script, not_watched:
        script.ask("observe", Observation, steps=10**6)


def test_it_can_be_cancelled_while_a_step_takes_for_ever(folder: Path):
    cancelled = threading.Event()
    slow = LOOP + "import time\nstep(); step(); step()\ntime.sleep(1000)\n"
    with started(slow, cancelled=cancelled) as script:
        threading.Timer(0.2, cancelled.set).start()
        with pytest.raises(Cancelled):
            script.ask("observe", Observation, steps=5)


def test_two_ranks_are_watched_together(folder: Path):
    Path("ddp.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo')\n"
        "model = DistributedDataParallel(torch.nn.Linear(8, 4))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "while True:\n"
        "    model(torch.randn(16, 8)).sum().backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
    )
    launch = Launch("torchrun", ("--nproc-per-node", "2", "--standalone", "ddp.py"))
    script = WatchedScript(launch, deadline=time.monotonic() + 120)
    try:
        assert train(script).samples_per_step == 32
        block = script.ask("block", Block, samples=320)
        assert block.samples == 320 and len(block.step_s) == 10
        assert [answer["samples"] for answer in script.answers] == [160, 160]
        communication = script.ask("communication", Communication, samples=320)
        assert communication.bytes_per_step == (8 * 4 + 4) * 4 and len(communication.rank_compute_s) == 2
        assert script.ask("describe", ScriptFacts).world == 2
        assert len(script.ranks) == 2
    finally:
        script.stop()


WRITING = (
    LOOP
    + """
os.makedirs("out/new", exist_ok=True)
for name in ("out/new/a.txt", "out/old.txt", "log.txt"):
    with open(name, "a") as file:
        file.write("more\\n")
torch.save(model.state_dict(), "out/model.pt")
print(open("log.txt").read().split(), open("../beside.txt").read(), sorted(os.listdir("out")), flush=True)
for i in range(int(sys.argv[1])):
    step()
if len(sys.argv) > 2:
    open(sys.argv[2], "w").write("escaped")
"""
)


def test_what_a_measured_script_writes_is_thrown_away(folder: Path):
    (folder / "out").mkdir()
    for name in ("out/old.txt", "out/model.pt", "log.txt", "../beside.txt"):
        (folder / name).write_text("before")
    with started(WRITING, "1000") as script:
        script.ask("observe", Observation, steps=5)
    assert script.output[0] == "['beforemore'] before ['model.pt', 'new', 'old.txt']"
    outside = folder.parent / "escaped.txt"
    refused = pytest.raises(ScriptFailed, match="a copy of its folder")
    with started(WRITING, "1", str(outside)) as script, refused as failure:
        script.ask("observe", Observation, steps=5)
    assert "--in-place" in failure.value.remedy
    assert not outside.exists() and not (folder / "out/new").exists()
    assert {p.read_text() for p in folder.rglob("*") if p.is_file() and p.name != "train.py"} == {"before"}


def test_released_it_runs_on_and_writes_where_it_would(folder: Path):
    (folder.parent / "beside.txt").write_text("")
    with started(WRITING, "20", scratch=False) as script:
        assert script.ask("observe", Observation, steps=5).block.samples == 5 * 16
        script.ask("release", type(None))
        assert script.wait() == 0
    assert (folder / "out/new/a.txt").read_text() == "more\n" and (folder / "out/model.pt").exists()


def test_the_command_says_where_the_time_goes(folder: Path):
    (folder / "train.py").write_text(PLAIN)
    before = dict(os.environ)
    done = CliRunner().invoke(app, ["watch", "train.py", "--steps", "12", "--json", "seen.json", "--", "x"])
    assert done.exit_code == 0, done.output
    for text in ("samples/s on a held batch", "waiting for data", "What to try", "train.py:22", "Sequential"):
        assert text in done.output
    assert (folder / "seen.json").exists() and dict(os.environ) == before
    failed = CliRunner().invoke(app, ["watch", "train.pyy"])
    assert failed.exit_code == 2 and "Did you mean 'train.py'?" in failed.output
