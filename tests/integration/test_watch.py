"""Scripts as they stand, the difficult ones too: watched, ended; nothing that they see may differ."""

import json
import os
import py_compile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfkit.additions.inside import SYNCS
from perfkit.additions.referee.behaviour import BEHAVIOUR, WITNESS
from perfkit.additions.scripts import watching
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.additions.shared.looking import PROFILE
from perfkit.errors import Cancelled, RunFailed
from tests.support import scripts
from tests.support.cli import perfkit

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
    model[0].register_forward_hook(lambda _, given, out: print(out.dtype, given[0].data_ptr(), flush=True))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(100_000):
        for x, y in loader:
            optimizer.zero_grad()
            out = model(x)
            loss = nn.functional.cross_entropy(out, y.to("cpu"))
            loss.backward()
            optimizer.step()
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


IN_A_THREAD = """
import threading, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.randn(8)

def train():
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        for x in DataLoader(Slow(), 8):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

thread = threading.Thread(target=train, daemon=True)
thread.start()
thread.join()
"""


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """The folder in which scripts are started."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@pytest.fixture
def folder(alone, monkeypatch):
    """The same, for scripts that need no interpreter of their own."""
    scripts.fork(monkeypatch)
    return alone


@contextmanager
def started(code, *arguments, program="train.py", **more):
    Path("train.py").write_text(code)
    with WatchedScript(Launch(program, arguments), **more).start() as script:
        script.timeout_s = 120
        yield script
    assert not script.folder.exists()


def train(script, steps=6):
    return script.ask("train", loss_steps=steps, warmup_s=0.05)


def observe(script, steps):
    return script.ask("observe", steps=steps)


def test_a_training_in_a_thread_of_its_own_is_seen_to_wait_for_its_data(folder):
    with started(IN_A_THREAD) as script:
        train(script)
        assert min(observe(script, 12).block.data_wait_s) >= 0.008, "eight samples of 1 ms"
        assert not [note for note in script.ask("describe").notes if "thread" in note]


def test_a_script_is_watched_from_its_first_step_to_its_clean_end(alone):
    with started(PLAIN, "--lr", "1") as script:
        trained = train(script)
        assert script.written("err")[0] == f"to stderr {alone}"
        assert script.written("out")[0] == f"started __main__ ['--lr', '1'] {alone} None"  # not its mirror
        assert (trained.samples_per_step, len(trained.losses)) == (16, 6)
        assert trained.warmup.samples >= 7 * 16
        assert trained.recipe["batch_size"] == 16 and trained.recipe["workers"] == 0
        block = script.ask("slice", samples=64, seconds=0.0)
        assert (block.samples, len(block.step_s)) == (64, 4)
        assert all(wait <= step for wait, step in zip(block.data_wait_s, block.step_s, strict=True))
        seen = observe(script, 40)
        assert seen.block.samples == len(seen.block.step_s) * 16 >= 40 * 16
        account = script.ask("account")
        assert account.evaluations >= 2 and len(account.epochs) >= 2  # at each 16th step
        assert (script.ask("peak").allocated or 0) > 1e7
        places = script.ask(SYNCS, steps=3).places
        assert [(place.where, place.call, place.count) for place in places] == [("train.py:22", "item", 3)]
        trace = script.folder / "steps.json"
        options = {"wait": 0, "warmup": 1, "active": 2, "stacks": False}
        assert script.ask(PROFILE, path=str(trace), **options) == str(trace)
        train(script)
        assert {line.split()[0] for line in script.written("out")[-4:]} == {"torch.float32"}
        facts = script.ask("describe")
        assert "data" not in trained.facts
        assert (facts.device, facts.models, facts.optimizers) == ("cpu", ["Sequential"], ["Adam"])
        assert facts.loader == "TensorDataset" and facts.convolves and facts.settings["amp"] == "off"
        lines = PLAIN.splitlines()
        for role, text in {
            "loader": "DataLoader(data, batch_size=16, shuffle=True)",
            "optimizer": "torch.optim.Adam(model.parameters())",
            "forward": "model(x)",
            "backward": "loss.backward()",
        }.items():
            frame = next(site.frames[0] for site in facts.sites if site.role == role)
            assert frame.file == str(alone / "train.py")
            assert lines[frame.line - 1][frame.column : frame.end_column] == text
    assert {path.name for path in alone.iterdir()} == {"train.py"}


def test_what_cannot_be_set_is_refused_with_the_reason(folder):
    toggles = {"channels_last": True, "workers": 2, "optimizer_impl": "fused"}
    loop = LOOP.replace("SGD(", "Rprop(") + "while True:\n    step()\n"
    with started(loop, toggles=toggles) as script:
        assert not any(proof.ok for proof in train(script).mechanisms)
        refused = script.ask("describe").refused
    assert "4-dimensional" in refused["channels_last"]
    assert "no DataLoader" in refused["workers"]
    assert "optimizer_impl" not in refused
    assert "return uint8" in refused["uint8_copy"]


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("class Wrong(list):\n    def __getitem__(self, _): raise ValueError('no')\n"
         "for i in range(5): step()\nnext(iter(torch.utils.data.DataLoader(Wrong([1]))))",
         r"after \d+ steps: the training raised ValueError: no.*:11.*without cpu_threads"),
        ("step()\nprint('bye')", "ended before its second training step"),
        ("print('no training here')", "training step .* 0 backward passes"),
        ("for i in range(20): model(torch.randn(16, 8)).sum().backward()", "training step .* 20 backward passes"),
        ("for i in range(4): step()\nos._exit(3)", "exit status 3.*no os._exit"),
        ("name = input('run name? ')", "before its second step: .*raised EOFError.*train.py:10.*redirect"),
    ],
)  # fmt: skip
def test_a_script_that_fails_says_so_in_its_own_words(alone, ending, said, monkeypatch):
    if "bye" not in ending:
        scripts.fork(monkeypatch)
    failing = started(LOOP + ending + "\n", toggles={"cpu_threads": 1})
    with failing as script, pytest.raises(RunFailed, match=said) as failure:
        observe(script, 50)
    assert "raise" not in ending or "ValueError: no" in failure.value.output


def test_the_way_in_leaves_the_interpreter_as_it_was(alone, monkeypatch):
    own = alone / "own"
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
    theirs = str(own / "sitecustomize.py")
    with started(asking) as script:
        with pytest.raises(RunFailed, match="exit status 0.*import torch"):
            observe(script, 5)
        facts = json.loads(script.written("out")[0])
    assert facts == [theirs, str(own), None, "disabled", f"False False {theirs}\n"]


def test_a_script_that_comes_to_its_end_meanwhile(folder):
    unseen = LOOP.replace("model(torch", "model.forward(torch")
    with started(unseen + "for i in range(9): step()\nsys.exit(0)\n") as script:
        seen = observe(script, 50)
        assert seen.ended and script.ask("account").last == 9
        assert len(seen.block.step_s) >= 3  # those since the end of what was complete
        facts = script.ask("describe")
        assert (facts.optimizers, facts.models, facts.parameters) == (["SGD"], [], 8 * 4 + 4)
        assert "no call of a model was observed" in facts.refused["amp"]
        with pytest.raises(RunFailed, match="before it was measured, after 9 steps of .* each"):
            train(script)


def test_processes_that_a_script_forks_are_not_watched(folder):
    starting = LOOP + (
        "def work():\n"
        "    for i in range(9): step()\n"
        "context = torch.multiprocessing.get_context('fork')\n"
        "children = [context.Process(target=work, daemon=True) for _ in range(2)]\n"
        "for child in children: child.start()\n"
        "for child in children: child.join()\n"
    )
    not_watched = pytest.raises(RunFailed, match="processes that it starts itself are not watched")
    with started(starting) as script, not_watched:
        observe(script, 10**6)


def test_it_can_be_cancelled_while_a_step_takes_for_ever(folder):
    cancelled = threading.Event()
    slow = LOOP + "import time\nstep(); step(); step()\ntime.sleep(1000)\n"
    with started(slow, cancelled=cancelled) as script:
        threading.Timer(0.2, cancelled.set).start()
        with pytest.raises(Cancelled):
            observe(script, 5)


WRITING = (
    LOOP
    + """
from pathlib import Path
from lib.place import here
root = Path(__file__).resolve().parent
here.with_name("note.txt").write_text("more")
(root / "out" / "new").mkdir(exist_ok=True)
for name in ("out/new/a.txt", "out/old.txt", root / "log.txt"):
    with open(name, "a") as file:
        file.write("more\\n")
torch.save(model.state_dict(), root / "out" / "model.pt")
print(open("log.txt").read().split(), open("../beside.txt").read(), sorted(os.listdir("out")), flush=True)
for i in range(int(sys.argv[1])):
    step()
open("../../escaped.txt" if len(sys.argv) == 2 else sys.argv[2], "w").write("escaped")
"""
)


def test_what_a_measured_script_writes_is_thrown_away(folder):
    for name in ("out", "lib"):
        (folder / name).mkdir()
    (folder / "lib/place.py").write_text("from pathlib import Path\nhere = Path(__file__).resolve()\n")
    py_compile.compile(str(folder / "lib/place.py"))  # Python does not read a source that it has compiled
    for name in ("out/old.txt", "out/model.pt", "log.txt", "../beside.txt"):
        (folder / name).write_text("before")
    with started(WRITING, "1000", program=str(folder / "train.py")) as script:
        train(script)
        assert script.written("out") == ["['beforemore'] before ['model.pt', 'new', 'old.txt']"]
    outside = folder.parent / "escaped.txt"
    refused = pytest.raises(RunFailed, match="a copy of its folder")
    with started(WRITING, "1", str(outside)) as script, refused:
        observe(script, 5)
    assert not outside.exists() and not (folder / "out/new").exists()
    assert {p.read_text() for p in folder.rglob("*.*t")} == {"before"}


def test_a_file_that_is_replaced_may_lie_anywhere_on_the_path(folder, monkeypatch):
    file = folder.parent / "library/rate.py"
    file.parent.mkdir()
    file.write_text("rate = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(file.parent))
    Path("train.py").write_text(LOOP + "import rate\nfor i in range(9): step()\nprint(rate.rate)\n")
    with WatchedScript(Launch("train.py", replaced=((file, b"rate = 2\n"),))).start() as script:
        observe(script, 50)
        assert script.written("out") == ["2"]


LINKED = """
from pathlib import Path
import rate
print(rate.rate, sys.path[0], sys.argv[0], flush=True)
for name in ("log.txt", Path(__file__).resolve().with_name("log.txt")):
    Path(name).write_text("more")
for i in range(9): step()
"""


def test_a_script_that_is_a_link_runs_in_the_mirror_of_the_folder_that_it_leads_to(alone):
    """Else what a person has replaced would not be run, and what it writes beside itself be refused."""
    real = alone.parent / "library"
    real.mkdir()
    for name, text in (("train.py", LOOP), ("rate.py", "rate = 1\n")):
        (real / name).write_text(text)
    Path("train.py").symlink_to(real / "train.py")
    replaced = ((real / "train.py", (LOOP + LINKED).encode()), (real / "rate.py", b"rate = 2\n"))
    with WatchedScript(Launch("train.py", replaced=replaced)).start() as script:
        observe(script, 50)
        assert script.written("out") == [f"2 {real} train.py"]
        assert script.ask("describe").sites[-1].frames[0].file == str(real / "train.py")
    assert not [*alone.parent.rglob("log.txt")]


def test_without_an_optimizer_a_step_ends_outside_of_its_backward_pass(folder):
    code = """
import torch
model = torch.nn.Linear(8, 4)
while True:
    model.zero_grad()
    loss = model(torch.randn(16, 8)).pow(2).mean()
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.01)
    loss.item()
"""
    with started(code) as script:
        places = script.ask(SYNCS, steps=3).places
        assert [(place.where, place.count) for place in places] == [("train.py:10", 3)]
        assert script.ask("describe").step_is == "a backward pass"


GRADIENTS = """
import torch
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def loss(weights, x):
    return functional_call(model, weights, (x,)).sum()
weight = torch.ones(8)
while True:
    for x in DataLoader(torch.randn(32, 8), 8):
"""
BY_SAMPLE = """
        gradients = vmap(grad(loss), (None, 0))(dict(model.named_parameters()), x)
        for name, p in model.named_parameters():
            p.grad = gradients[name].detach().mean(0)
        optimizer.step()
"""
META_LEARNING = """
        weights = dict(model.named_parameters())
        for _ in range(2):
            gradients = grad(loss)(weights, x)
            weights = {name: p - 0.1 * gradients[name] for name, p in weights.items()}
        loss(weights, x).backward()
        optimizer.step()
"""
AUTOGRAD = """
        gradients = torch.autograd.grad(model(x).sum(), model.parameters())
        for p, gradient in zip(model.parameters(), gradients):
            p.grad = gradient
        optimizer.step()
"""


@pytest.mark.parametrize(("code", "losses"), [(BY_SAMPLE, 0), (META_LEARNING, 6), (AUTOGRAD, 0)])
def test_steps_whose_gradients_come_without_backward(folder, code, losses):
    with started(GRADIENTS + code) as script:
        trained, facts = train(script), script.ask("describe")
    assert (facts.step_is, trained.samples_per_step) == ("a step of SGD", 8)
    assert len(set(trained.losses)) == losses
    assert facts.loader == "Tensor"


def test_a_functional_training_without_an_optimizer_ends_in_a_sentence(folder):
    code = """
        weight = weight - 0.1 * grad(lambda weight: (x @ weight).pow(2).mean())(weight)
"""
    said = "no backward pass and no optimizer.s step in 1000 gradients by torch.func"
    alone = GRADIENTS.replace("optimizer = torch.optim.SGD(model.parameters(), 0.1)\n", "")
    with started(alone + code) as script, pytest.raises(RunFailed, match=said):
        train(script)


def test_a_closure_that_an_optimizer_calls_again_is_no_step(folder):
    code = """
import time, torch
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
x, y = torch.randn(16, 8), torch.randn(16, 4)
def closure():
    time.sleep(0.02)
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
    torch.nn.init.normal_(model.weight)
"""
    with started(code) as script:
        trained, facts = train(script), script.ask("describe")
        observe(script, 4)
        step = script.ask("account").of_step
    assert facts.step_is == "a step of LBFGS" and len(trained.losses) > 12 and not facts.notes
    assert 0 < step["optimizer"] < 0.5 * sum(step.values()), "forward and backward are not its own work"


@pytest.mark.parametrize("compiling", ["model = torch.compile(model)", "model.compile()", ""])
def test_watching_compiles_nothing_again(folder, compiling):
    """What the script compiles, or the switch: nothing that watches the first steps is traced."""
    counted = """
import functools, torch
backend = lambda graph, inputs: print("compiled", flush=True) or graph
torch.compile = functools.partial(torch.compile, backend=backend)
"""
    code = f"{counted}{LOOP}{compiling}\nwhile True:\n    step()\n"
    with started(code, toggles={} if compiling else {"compile": True}) as script:
        train(script)
        assert script.ask("slice", samples=64, seconds=0.0).samples == 64
        assert script.written("out") == ["compiled"]


def test_headers_that_torch_compiles_for_a_script_are_kept_for_the_next(folder):
    looks = "from torch._inductor import codecache\nprint(os.path.realpath(codecache._HEADER_DIR))\n"
    with started(f"{LOOP}{looks}while True:\n    step()\n") as script:
        train(script)
        cache = os.path.realpath(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert script.written("out") == [f"{cache}/precompiled_headers"]


EPOCHS = """
import importlib.util, itertools, sys
importlib.util.find_spec("torch")  # as transformers does
import torch
from torch.utils.data import DataLoader, TensorDataset
class Noisy(TensorDataset):
    def __getitem__(self, index):
        return (torch.randn(8),)
data = Noisy(torch.randn(48, 8))
try:
    DataLoader(data, prefetch_factor=2)
except ValueError:
    print(sys.stdin.read(), flush=True)
class Endless(DataLoader):  # one iterator for all epochs, as in timm
    def __len__(self):
        return 6
    def __iter__(self):
        batches = self.__dict__.setdefault("batches", super().__iter__())
        return (next(batches) for _ in range(6))
loader = DataLoader(data, batch_size=8, num_workers=int(sys.argv[1]))
if sys.argv[2:]:
    loader = Endless(data, batch_sampler=itertools.cycle([[*range(8)]]))
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    for number, (x,) in enumerate(loader):
        assert number < len(loader), "an epoch with more batches than it has"
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert number == len(loader) - 1, "an epoch with fewer batches than it has"
"""


@pytest.mark.parametrize("arguments", ["0", "1", "0 endless"])
def test_an_epoch_is_as_long_as_it_was_and_torch_s_errors_stay(folder, arguments):
    (folder / "input.txt").write_text("as in the file")
    before, given = os.dup(0), os.open("input.txt", os.O_RDONLY)
    os.dup2(given, 0)
    try:
        with started(EPOCHS, *arguments.split()) as script:
            train(script)
            for _ in range(8):  # it begins at each batch of an epoch, the last one among them
                assert script.ask("slice", samples=24, seconds=0.0).samples >= 24
            assert script.written("out") == ["as in the file"]
            assert train(script).facts["data"] == "drawn"
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(given)


def test_a_loader_of_another_library_is_watched_and_its_switches_are_refused(folder):
    code = """
import torch
from torch.utils.data import _DatasetKind, TensorDataset, dataloader

class FakeLoader:  # as fastai's, which is no DataLoader
    _IterableDataset_len_called, _auto_collation, drop_last = None, False, False
    _dataset_kind, _index_sampler, generator = _DatasetKind.Iterable, iter(lambda: 0, 1), None
    num_workers, prefetch_factor, pin_memory, pin_memory_device, timeout = 0, 2, False, "", 0
    persistent_workers, collate_fn, worker_init_fn = False, staticmethod(lambda batch: batch), None
    multiprocessing_context = None
    def __init__(self, loader): self.d, self.dataset = loader, self
    def __iter__(self): return iter(self.d)
class Loader(list):
    def __iter__(self):
        yield from dataloader._SingleProcessDataLoaderIter(FakeLoader(self.batches()))
    def batches(self): return [(torch.randn(16, 8), torch.randn(16, 4)) for _ in range(5)]
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    for number, (x, y) in enumerate(Loader()):
        assert number < 5
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    with started(code) as script:
        train(script)
        assert "uses its own loader" in script.ask("describe").refused["workers"]
        assert script.ask("slice", samples=64, seconds=0.0).samples >= 64


@pytest.mark.parametrize(("asks", "is_refused"), [("get_worker_info()", False), ("None", True)])
def test_workers_are_refused_to_an_iterable_data_set_that_does_not_divide_itself(folder, asks, is_refused):
    code = f"""
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Stream(IterableDataset):
    def __iter__(self):
        worker = {asks}
        return iter(torch.randn(64, 8)[worker.id if worker else 0 :: worker.num_workers if worker else 1])
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    for x in DataLoader(Stream(), batch_size=8):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    with started(code) as script:
        train(script)
        assert ("workers" in script.ask("describe").refused) == is_refused


def test_the_loader_of_an_evaluation_begins_no_epoch(folder):
    code = (
        LOOP
        + """
from torch.utils.data import DataLoader
held = DataLoader(torch.randn(32, 8), batch_size=8)
batches = iter(DataLoader(torch.randn(80_000, 8), batch_size=8))
while True:
    for _ in range(5):
        model(next(batches)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for x in held:
            model(x)
    model.train()
"""
    )
    with started(code) as script:
        train(script)
        observe(script, 40)
        assert script.ask("account").evaluations


def test_what_does_not_fit_into_the_budget_is_left_out_and_named(folder, monkeypatch):
    monkeypatch.setattr(watching, "TRY_S", 0.5)
    Path("train.py").write_text(LOOP + "import time\nwhile True:\n    step()\n    time.sleep(0.3)\n")
    result = watching.watch_script(Launch("train.py"), budget_s=2.0, tries=True)
    assert result.seen.block.step_s and result.peak.allocated and result.trace is None
    assert any("no time was left" in text and "a profile" in text for text in result.warnings)
    assert any("nothing was tried" in text for text in result.warnings)


def test_steps_that_a_gradient_scaler_leaves_out_at_the_beginning_count(folder):
    code = (
        LOOP
        + """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
while True:
    model(torch.ones(1, 8))  # as a policy looks at an observation
    scaler.scale(model(torch.ones(16, 8)).pow(2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )
    with started(code, observers=[WITNESS]) as script:
        assert (train(script).samples_per_step, set(script.ask(BEHAVIOUR).backwards)) == (16, {1})


def test_the_command_says_where_the_time_goes_and_what_suggestions_gave(folder, monkeypatch):
    monkeypatch.setattr(watching, "TRY_S", 5.0)  # a start that takes twice as long is not tried
    Path("train.py").write_text(PLAIN)
    before = dict(os.environ)
    command = ("watch", "train.py", "--budget", "5", "--try", "--json", "seen.json", "--", "x")
    done = perfkit(*command, cwd=folder)
    for text in (
        "Where the run goes",
        "waiting for data",
        "What to try",
        "train.py:22",
        "Sequential",
        "To measure a switch: perfkit referee SCRIPT --set ",
    ):
        assert text in done.stdout
    document = json.loads(Path("seen.json").read_text())
    assert document["command"] == "python train.py x"
    tried = [idea["measured"] for idea in document["suggestions"] if idea["measured"]]
    assert tried, "two if as many are suggested, which the times of a step of 2 ms decide"
    assert all(gave["low"] <= gave["ratio"] <= gave["high"] for gave in tried)
    assert dict(os.environ) == before
    assert "Did you mean 'train.py'?" in perfkit("watch", "train.pyy", cwd=folder, code=2).stderr
    patched = perfkit("patch", "torchrun", "--set", "workers=2", cwd=folder, code=2)
    assert "as a single rank" in patched.stderr
    assert "perfkit referee --set workers=2 -- torchrun … train.py" in " ".join(patched.stderr.split())


def test_a_comparison_shows_what_was_measured_until_a_script_ended(folder):
    for name in ("a.py", "b.py"):
        Path(name).write_text(LOOP + "import time\nfor _ in range(16):\n    step()\n    time.sleep(0.1)\n")
    how = ("--budget", "60", "--precision", "0", "--json", "-")
    done = perfkit("referee", "a.py", "b.py", *how, code=None, cwd=folder)
    document = json.loads(done.stdout)
    of_speed = ("undecided", "slower", "not faster", "faster")  # what disturbs equal scripts decides
    assert document["outcome"] in of_speed and document["rounds"] >= 1
    assert done.exit_code == document["exit_code"]
    assert "came to its end" in done.stderr
    assert "--whole" in done.stderr, "what a person does about a script that has ended"
