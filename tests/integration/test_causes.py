"""Slow scripts of known causes: the first sentence names the cause and its line, and nothing else is said first."""

from pathlib import Path

import pytest

from perfkit.additions.scripts import report, watching
from perfkit.additions.scripts import watched as watched_scripts
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import RunFailed
from tests.support import scripts

pytestmark = pytest.mark.usefixtures("no_orphans")

START = """
import gc, sys, time, numpy, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def step(x, after=lambda: None, **how):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(**how)
    optimizer.step()
    after()
    return loss
"""
LOADED = "while True:\n    for x in loader:\n        step(x)\n"
DEEP = """
from torch.utils.checkpoint import checkpoint
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = ((8, 512), (512, 512), (512, 8))  # torch computes again what is before the last of them
        blocks = (nn.Sequential(*(nn.Linear(*size) for size in sizes)) for _ in range(4))
        self.blocks = nn.ModuleList(blocks)
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, {})  # HERE
        return x
model = Deep()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    step(torch.randn(256, 8))
"""
CASES = {
    "garbage collection": (
        "kept = [[number] for number in range(300_000)]\ndef free():\n    gc.collect()  # HERE\n"
        "while True:\n    step(torch.randn(4, 8), free)\n",
        "explicit_collection",
    ),
    "anomaly": (
        "torch.autograd.set_detect_anomaly(True)  # HERE\nwhile True:\n    step(torch.randn(4, 8))\n",
        "anomaly_mode",
    ),
    "anomaly in the passes alone": (
        "while True:\n    with torch.autograd.detect_anomaly(check_nan=False):  # HERE\n"
        "        loss = model(torch.randn(4, 8)).pow(2).mean()\n        optimizer.zero_grad()\n"
        "        loss.backward()\n    optimizer.step()\n",
        "anomaly_mode",
    ),
    "state_dict": (
        "model.extend(nn.Linear(2, 2) for _ in range(200))\n"
        "copy = {name: value.clone() for name, value in model.state_dict().items()}\n"
        "def average():\n    for name in copy:\n"
        "        copy[name].lerp_(model.state_dict()[name], 0.1)  # HERE\n"
        "while True:\n    step(torch.randn(4, 8), average)\n",
        "state_dict_in_each_step",
    ),
    "evaluation": (
        "def evaluate():\n    model.eval()\n    with torch.no_grad():\n        for _ in range(600):\n"
        "            model(torch.randn(1, 8))  # HERE\n    model.train()\n"
        "for number in range(1_000_000):\n    step(torch.randn(4, 8))\n"
        "    if number % 3 == 2:\n        evaluate()\n",
        "evaluation",
    ),
    "an evaluation without eval()": (
        "test = DataLoader(torch.randn(300, 8), batch_size=1)\n@torch.no_grad()\ndef evaluate():\n"
        "    for x in test:\n        model(x.expand(2_000, 8))  # HERE\n"  # longer than loading it, in any case
        "for number in range(1_000_000):\n    step(torch.randn(4, 8))\n"
        "    if number % 3 == 2:\n        evaluate()\n",
        "evaluation",
    ),
    "gradients in the evaluation": (
        "def evaluate():\n    model.eval()\n    total = 0\n    for _ in range(20):\n"
        "        total = total + model(torch.randn(60_000, 8)).sum()  # HERE\n    model.train()\n"
        "for number in range(1_000_000):\n    step(torch.randn(4, 8))\n    time.sleep(0.02)\n"
        "    if number % 10 == 9:\n        evaluate()\n",
        "evaluation_with_gradients",
    ),
    "rows": (
        "class Rows(Dataset):\n    x = torch.randn(4096, 8)\n    def __len__(self): return 4096\n"
        "    def __getitem__(self, index): return self.x[index]\n"
        "loader = DataLoader(Rows(), batch_size=512)  # HERE\n" + LOADED,
        "rows_one_by_one",
    ),
    "lists": (
        "x = numpy.zeros((512, 8, 128), dtype=numpy.float32)\n"
        "def collate(rows):\n    return torch.tensor([row for row in rows])[:, :, 0]  # HERE\n"
        "loader = DataLoader(x, batch_size=128, collate_fn=collate)\n" + LOADED,
        "tensor_from_list",
    ),
    "state": (
        "state = torch.zeros(8)\nwhile True:\n    state = 0.9 * state + model[2].weight.mean()\n"
        "    loss = (model(torch.randn(4, 8)).pow(2).mean() + state.sum()) * 1e-6\n    optimizer.zero_grad()\n"
        "    loss.backward(retain_graph=True)  # HERE\n    optimizer.param_groups[0]['params'][2]._version\n"
        "    with torch.no_grad():\n        for p in model.parameters(): p.grad.zero_()\n    optimizer.step()\n",
        "graph_grows",
    ),
    "a line of its own": (
        "def report():\n    for p in model.parameters():\n        sorted(numpy.random.rand(60_000))  # HERE\n"
        "while True:\n    step(torch.randn(4, 8), report)\n",
        "own_line",
    ),
    "a line between epochs": (
        "loader = DataLoader(torch.randn(64, 8), batch_size=8)\nwhile True:\n    for x in loader:\n"
        "        step(x)\n    sorted(range(300_000), key=lambda at: -at)  # HERE\n",
        "between_steps",
    ),
    "rows that are padded": (
        "class Texts(Dataset):\n    def __len__(self): return 4096\n    def __getitem__(self, index):\n"
        "        words = [5 + index % 90, 7, 9 + index % 11] * (2 + index % 3)\n"
        "        return torch.tensor(words + [0] * (512 - len(words)))  # HERE\n"
        "model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.01)\n"
        "loader = DataLoader(Texts(), batch_size=32)\n" + LOADED,
        "padding",
    ),
    "a metric over all history": (
        "seen = []\ndef report():\n    seen.append(torch.randn(400))\n    torch.cat(seen).sort()  # HERE\n"
        "while True:\n    step(torch.randn(4, 8), report)\n",
        "own_line",
    ),
    "a short line of Python": (
        "history = [0.5] * 15_000\ndef report():\n    sum(each * 2 for each in history)  # HERE\n"
        "while True:\n    step(torch.randn(4, 8), report)\n",
        "own_line",
    ),
    "a line that waits": (
        "def limit():\n    time.sleep(0.01)  # HERE\nwhile True:\n    step(torch.randn(4, 8), limit)\n",
        "own_line",
    ),
    "operators without a call": (
        "square = torch.randn(700, 700)\ndef power():\n    return square @ square @ square  # HERE\n"
        "while True:\n    step(torch.randn(4, 8), power)\n",
        "own_line",
    ),
    "checkpointing": (
        DEEP.format("x, use_reentrant=False"),
        "checkpointing_without_need",
    ),
    "reentrant checkpointing": (
        DEEP.format("x.requires_grad_(), use_reentrant=True"),
        "checkpointing_without_need",
    ),
    "weights without an optimizer": (
        "model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))\n"
        "optimizer = torch.optim.SGD(model[2].parameters(), 0.01)\n"
        "while True:\n    step(torch.randn(4, 8))\n",
        "gradients_without_optimizer",
    ),
    "weights with a learning rate of 0": (
        "body = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())\n"
        "model = nn.Sequential(body, nn.Linear(256, 2))\n"
        "groups = [{'params': body.parameters(), 'lr': 0.01}, {'params': model[1].parameters()}]\n"
        "optimizer = torch.optim.AdamW(groups, 0.01)\n"
        "rates = [lambda epoch: 0.0 if epoch < 9 else 1.0, lambda epoch: 1.0]\n"
        "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)\n"
        "while True:\n    step(torch.randn(64, 8))\n",
        "zero_learning_rate",
    ),
    "frozen weights that shrink": (
        "optimizer = torch.optim.AdamW(model.parameters(), 0.01)\n"
        "zero = optimizer.zero_grad\noptimizer.zero_grad = lambda: zero(set_to_none=False)\n"
        "for number in range(1_000_000):\n    step(torch.randn(4, 8))\n"
        "    if number == 4:\n        model[0].requires_grad_(False)\n",
        "frozen_but_updated",
    ),
    "a line that loads": (
        "class Files(Dataset):\n    def __len__(self): return 64\n    def __getitem__(self, index):\n"
        "        numbers = sorted(range(60_000), key=lambda at: -at)  # HERE\n"
        "        return torch.tensor(numbers[:8], dtype=torch.float32)\n"
        "loader = DataLoader(Files(), batch_size=4)\n" + LOADED,
        "loading_line",
    ),
    "images that are blurred before they are cropped, in a worker": (
        "from torchvision import transforms\nclass Tiles(Dataset):\n    x = torch.rand(3, 128, 128)\n"
        "    change = transforms.Compose([transforms.GaussianBlur(9), transforms.RandomCrop(32)])\n"
        "    def __len__(self): return 64\n    def __getitem__(self, index):\n"
        "        return self.change(self.x)[0, 0, :8]  # HERE\n"
        "loader = DataLoader(Tiles(), batch_size=4, num_workers=1, persistent_workers=True)\n" + LOADED,
        "shrinks_late",
    ),
    "images that are rotated before they are resized": (
        "from torchvision.transforms import v2\nclass Tiles(Dataset):\n    x = torch.rand(3, 128, 128)\n"
        "    change = v2.Compose([v2.RandomRotation(20), v2.Resize((32, 32))])\n"
        "    def __len__(self): return 64\n    def __getitem__(self, index):\n"
        "        return self.change(self.x)[0, 0, :8]  # HERE\n"
        "loader = DataLoader(Tiles(), batch_size=4)\n" + LOADED,
        "shrinks_late",
    ),
    "two lines that load alike": (
        "def numbers(seed):\n    return sorted(range(30_000), key=lambda at: at * seed % 1009)\n"
        "class Pairs(Dataset):\n    def __len__(self): return 64\n    def __getitem__(self, index):\n"
        "        a = numbers(7)[:4]\n        b = numbers(11)[:4]\n        c = numbers(13)[:4]\n"
        "        return torch.tensor(a + b, dtype=torch.float32)\n"
        "loader = DataLoader(Pairs(), batch_size=4)\n" + LOADED,
        "loading_line",
    ),
    "an optimizer for each step": (
        "while True:\n    optimizer = torch.optim.Adam(model.parameters(), 0.01)  # HERE\n    step(torch.randn(4, 8))\n",
        "new_optimizers",
    ),
    "float64": (
        "model.double()  # weights alone tell\nwhile True:\n    step(torch.randn(4, 8, dtype=torch.float64))\n",
        "float64",
    ),
    "not split": (
        "class Stream(IterableDataset):\n    def __iter__(self):\n"
        "        return iter(torch.randn(64, 8))\n"
        "loader = DataLoader(Stream(), batch_size=8, num_workers=2, persistent_workers=True)  # HERE\n"
        + LOADED,
        "iterable_not_split",
    ),
    "the same numbers": (
        "class Noisy(Dataset):\n    rng = None\n    def __init__(self): self.rng = numpy.random.default_rng(0)\n"
        "    def __len__(self): return 512\n"
        "    def __getitem__(self, index): return torch.tensor(self.rng.random(8), dtype=torch.float32)\n"
        "loader = DataLoader(Noisy(), batch_size=8, num_workers=2, persistent_workers=True)  # HERE\n"
        + LOADED,
        "same_random_numbers",
    ),
    "one open file": (
        "class Lines(Dataset):\n    file = None\n    def __init__(self): self.file = open(__file__, 'rb')\n"
        "    def __len__(self): return 512\n    def __getitem__(self, index):\n        self.file.seek(index)\n"
        "        return torch.frombuffer(bytearray(self.file.read(8)), dtype=torch.uint8).float()\n"
        "loader = DataLoader(Lines(), batch_size=8, num_workers=2, persistent_workers=True)  # HERE\n"
        + LOADED,
        "shared_file",
    ),
    "a slow sampler": (
        "class Slow(torch.utils.data.Sampler):\n    def __init__(self): pass\n    def __len__(self): return 512\n"
        "    def __iter__(self):\n        for index in range(512):\n"
        "            sorted(range(30_000), key=lambda at: -at)  # HERE\n            yield index\n"
        "loader = DataLoader(torch.randn(512, 8), batch_size=4, sampler=Slow())\n" + LOADED,
        "sampler_line",
    ),
    "a sampler that sorts at the start of each epoch": (
        "class Sorted(torch.utils.data.Sampler):\n    def __init__(self): pass\n    def __len__(self): return 160\n"
        "    def __iter__(self):\n        order = sorted(range(60_000), key=lambda at: -at)  # HERE\n"
        "        return iter([at % 160 for at in order[:160]])\n"
        "loader = DataLoader(torch.randn(160, 8), batch_size=8, sampler=Sorted())\n" + LOADED,
        "epochs_start",
    ),
    "a metric of an evaluation": (
        "def evaluate():\n    model.eval()\n    with torch.no_grad():\n        model(torch.randn(4, 8))\n"
        "    sorted(range(60_000), key=lambda at: -at)  # HERE\n    model.train()\n"
        "for number in range(1_000_000):\n    step(torch.randn(4, 8))\n    if number % 3 == 2:\n        evaluate()\n",
        "evaluation",
    ),
    "an epoch in each step": (
        "loader = DataLoader(torch.randn(500_000, 8), batch_size=4, shuffle=True)\n"
        "while True:\n    step(next(iter(loader)))  # HERE\n",
        "epoch_in_each_step",
    ),
    "outputs are kept": (
        "history = []\nwhile True:\n    x = torch.randn(5_000, 8)\n    step(x)\n"
        "    history.append(model(x))  # HERE\n",
        "memory_grows",
    ),
    "outputs are kept in a dict": (
        "history = {'outputs': []}\nwhile True:\n    x = torch.randn(5_000, 8)\n    step(x)\n"
        "    history['outputs'].append(model(x))  # HERE\n",
        "memory_grows",
    ),
    "backward of a sum of losses": (
        "model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.01)\nwhile True:\n    total = 0.0\n"
        "    for _ in range(6):\n        total = total + model(torch.randn(64, 64)).pow(2).mean()\n"
        "        total.backward(retain_graph=True)  # HERE\n    optimizer.step()\n    optimizer.zero_grad()\n",
        "backward_again",
    ),
    "a backward pass of one's own": (
        "class Slow(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return 2 * x\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        rows = []\n        for row in grad:\n"
        "            rows.append(torch.diag(row).sum(0).mul(2))  # HERE\n        return torch.stack(rows)\n"
        "while True:\n    step(Slow.apply(torch.randn(512, 8).requires_grad_()))\n",
        "line_of_pass",
    ),
    "a backward pass that spreads over its lines": (
        "class Slow(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return 2 * x\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        rows = []\n        for row in grad[:40]:\n"
        "            a = torch.ones(30_000).cos()\n            b = torch.ones(30_000).sin()\n"
        "            c = torch.ones(30_000).tan()\n            rows.append(a + b + c)\n"
        "        return 2 * grad + 0 * torch.stack(rows).sum()\n"
        "while True:\n    step(Slow.apply(torch.randn(512, 8).requires_grad_()))\n",
        "line_of_pass",
    ),
    "an optimizer of one's own": (
        "class Rows(torch.optim.SGD):\n    @torch.no_grad()\n    def step(self, closure=None):\n"
        "        for p in self.param_groups[0]['params']:\n            for row in p:\n"
        "                row.sub_(p.grad.mean() * float(row.norm() + 1))  # HERE\n"
        "model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 2))\n"
        "optimizer = Rows(model.parameters(), 0.001)\nwhile True:\n    step(torch.randn(4, 8))\n",
        "line_of_pass",
    ),
    "checkpoints": (
        # Nothing but the steps besides, so that on a fast disk, too, saving takes the most.
        "for number in range(1_000_000):\n    step(torch.randn(4, 8))\n"
        "    if number % 5 == 4:\n        torch.save(torch.zeros(4_000_000), 'last.pt')  # HERE\n",
        "checkpoints",
    ),
    "a graph of the gradients": (
        "while True:\n    loss = model(torch.randn(4, 8)).pow(2).mean()\n    optimizer.zero_grad()\n"
        "    loss.backward(create_graph=True)  # HERE\n    optimizer.step()\n",
        "graph_of_gradients",
    ),
    "work in hooks": (
        "seen = {}\ndef look(module, given, output):\n"
        "    seen[module] = sorted(output.flatten().tolist() * 300)[0]  # HERE\n"
        "for part in model:\n    part.register_forward_hook(look)\n"
        "while True:\n    step(torch.randn(4, 8))\n",
        "work_in_hooks",
    ),
    "scores of all positions": (
        "class Scores(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner, self.out = nn.Linear(8, 32), nn.Linear(32, 2000)\n"
        "    def forward(self, x):\n        scores = self.out(self.inner(x))  # HERE\n"
        "        return scores[torch.arange(len(x)), -1]\n"
        "model = Scores()\noptimizer = torch.optim.SGD(model.parameters(), 0.01)\n"
        "while True:\n    step(torch.randn(32, 16, 8))\n",
        "results_not_used",
    ),
    "a group for each weight": (
        "class Many(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.parts = nn.ParameterList(torch.zeros(2) for _ in range(600))\n"
        "    def forward(self, x):\n        return x.sum() + torch.cat(list(self.parts)).sum()\n"
        "model = Many()\n"
        "optimizer = torch.optim.Adam([{'params': [p]} for p in model.parameters()], 0.01)  # HERE\n"
        "while True:\n    step(torch.randn(4, 8))\n",
        "many_parameter_groups",
    ),
    "a loader for each epoch": (
        "data = torch.randn(64, 8)\nwhile True:\n"
        "    loader = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)  # HERE\n"
        "    for x in loader:\n        step(x)\n",
        "workers_restart",
    ),
    "workers start again": (
        "class Slow(Dataset):\n    def __len__(self): return 8\n    def __getitem__(self, index): return torch.zeros(8)\n"
        "def begin(worker): time.sleep(0.3)\n"
        "loader = DataLoader(Slow(), batch_size=4, num_workers=1, worker_init_fn=begin)  # HERE\n" + LOADED,
        "workers_restart",
    ),
}


_asked = watching.Answers.ask


def _ask(answers, name, *question, **arguments):
    """No profile: it takes half a second of a core, and no cause comes from it."""
    return None if name == "a profile" else _asked(answers, name, *question, **arguments)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which scripts are started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(watching.LIMIT, "going_on", 0.2)
    monkeypatch.setattr(watching.Answers, "ask", _ask)
    scripts.fork(monkeypatch)
    return tmp_path


def watched(code, **how):
    Path("train.py").write_text(START + code)
    return watching.watch_script(Launch("train.py"), budget_s=5.0, **how)


@pytest.mark.parametrize("name", CASES)
def test_the_first_sentence_names_the_cause_and_its_line(name, folder):
    code, cause = CASES[name]
    seen = watched(code)
    assert seen.findings[0].cause == cause, seen.findings
    assert cause == "memory_grows" or "memory_grows" not in [each.cause for each in seen.findings], (
        "a look took it"
    )
    lines = (START + code).splitlines()
    assert all((each.share or 0.0) <= 1 for each in seen.findings), seen.findings
    places = [f"train.py:{number}" for number, line in enumerate(lines, 1) if "# HERE" in line]
    said = report.first_sentence(seen)
    assert all(said.startswith(place) for place in places), said
    assert sum(seen.run.parts.values()) == pytest.approx(seen.run.seconds)


def test_a_line_of_the_model_has_the_time_of_its_operators_in_both_passes(folder):
    code = """
class Squared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.square = nn.Linear(8, 2), nn.Parameter(torch.randn(600, 600))
    def forward(self, x):
        x = self.first(x).relu()
        return x * (self.square @ self.square).mean()  # HERE
model = Squared()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    step(torch.randn(4, 8))
"""
    number = next(at for at, line in enumerate((START + code).splitlines(), 1) if "# HERE" in line)
    seen = watched(code)
    assert seen.evidence.operators[0].where == f"train.py:{number}"
    assert "anomaly_mode" not in seen.evidence.is_on, "the look's own mode is none of the script's"


def test_an_iterable_data_set_that_divides_itself_may_have_workers(folder):
    seen = watched(
        """
class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        return iter(torch.randn(64, 8)[worker.id if worker else 0 :: worker.num_workers if worker else 1])
loader = DataLoader(Stream(), batch_size=8)
"""
        + LOADED
    )
    assert "workers" not in seen.script.refused


def test_what_an_evaluation_loads_is_not_the_loading_of_steps(folder):
    seen = watched(
        """
loader = DataLoader(torch.randn(300, 8), batch_size=1)
def evaluate():
    model.eval()
    with torch.no_grad():
        for x in loader:
            model(x)
    model.train()
for number in range(1_000_000):
    step(torch.randn(4, 8))
    if number % 3 == 2:
        evaluate()
"""
    )
    assert seen.findings[0].cause == "evaluation"
    assert not {"waiting", "data set", "collate"} & {line.part for line in seen.evidence.lines}


GRADIENTS = """
for _ in range(1_000_000):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(create_graph=True, retain_graph=True)
    sum(p.grad.pow(2).sum() for p in model.parameters()).backward()
    optimizer.step()
"""


def test_a_graph_of_gradients_through_which_backward_goes_has_the_first_graph_as_a_part(folder):
    """And it is needed."""
    seen = watched(GRADIENTS)
    assert not {"backward_again", "graph_of_gradients"} & {each.cause for each in seen.findings}


def test_a_loader_that_the_script_lets_go_of_ends_its_workers_without_a_garbage_collection(folder):
    """As it does where nobody watches: else each epoch would leave some behind."""
    seen = watched(
        """
import multiprocessing
gc.disable()
for epoch in range(1_000_000):
    loader = DataLoader(torch.randn(16, 8), batch_size=8, num_workers=1, persistent_workers=True)
    for x in loader:
        step(x)
    assert len(multiprocessing.active_children()) <= 2, f"{len(multiprocessing.active_children())} workers"
"""
    )
    assert seen.script.loader == "Tensor" and len(seen.run.epochs) > 3


def test_a_function_is_named_with_the_loop_that_calls_it(folder):
    seen = watched("""
def smooth(x, width):
    return torch.sort(x.repeat(2_000 + width)).values.mean()
def report():
    for width in range(25):
        smooth(torch.randn(8), width)
while True:
    step(torch.randn(4, 8), report)
""")
    at = START.count("\n") + 3
    said = report.first_sentence(seen)
    assert said.startswith(f"train.py:{at} in smooth, called 25 times a step from train.py:{at + 3}: "), said


def test_a_healthy_script_is_told_nothing_that_is_not_so(folder):
    seen = watched("while True:\n    step(torch.randn(4, 8))\n")
    assert seen.findings == [] and report.first_sentence(seen).startswith("No avoidable cost was found")


def test_a_fine_tuned_head_over_a_frozen_backbone_is_healthy(folder):
    """Its weights have no gradients, or no optimizer; those that have both are trained."""
    seen = watched(
        "model[0].requires_grad_(False)\n"
        "optimizer = torch.optim.AdamW(model.parameters(), 0.01)\nwhile True:\n    step(torch.randn(4, 8))\n"
    )
    assert seen.findings == []


def test_weights_whose_learning_rate_is_0_at_first_are_healthy(folder):
    """As in a warm-up, or where parts are trained in turn."""
    seen = watched(
        "groups = [{'params': model[0].parameters()}, {'params': model[2].parameters(), 'lr': 0.01}]\n"
        "optimizer = torch.optim.SGD(groups, 0.0)\n"
        "for number in range(1_000_000):\n    step(torch.randn(4, 8))\n"
        "    optimizer.param_groups[0]['lr'] = 0.01 * (number % 4 == 0)\n"
    )
    assert seen.findings == [] and seen.evidence.zero_rate is None


def test_a_discriminator_that_is_frozen_for_a_part_of_each_step_is_healthy(folder):
    """As in pix2pix: when a step ends it is frozen, has gradients, and has been changed."""
    seen = watched(
        "optimizer_d = torch.optim.SGD(model[2].parameters(), 0.01)\n"
        "optimizer = torch.optim.SGD(model[0].parameters(), 0.01)\n"
        "while True:\n    model[2].requires_grad_(True)\n"
        "    model(torch.randn(4, 8)).mean().backward()\n    optimizer_d.step()\n"
        "    model[2].requires_grad_(False)\n    step(torch.randn(4, 8))\n"
    )
    assert "frozen_but_updated" not in {found.cause for found in seen.findings} and not seen.evidence.frozen


def test_a_model_may_have_an_argument_of_any_name(folder):
    code = "class Named(nn.Linear):\n    def forward(self, x, module, call): return super().forward(x)\n"
    code += "model = Named(8, 2)\noptimizer = torch.optim.SGD(model.parameters(), 0.01)\nwhile True:\n"
    code += "    model(torch.randn(4, 8), module=1, call=2).mean().backward()\n    optimizer.step()\n"
    assert watched(code).seen.block.step_s


def test_a_whole_run_is_accounted_for_and_a_later_window_can_be_asked_for(folder):
    code = "for number in range(400):\n    step(torch.randn(4, 8))\n    time.sleep(0.005)\n"
    seen = watched(code, after=100, whole=True)
    assert seen.seen.ended and seen.run.last == 400
    assert seen.run.steps >= 350, "nothing but looks is left out"


def test_steps_in_processes_that_the_script_starts_are_named_after_a_while(tmp_path, monkeypatch):
    """A script that only waits for them is not watched in silence until it ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watched_scripts, "_ELSEWHERE_S", 2.0)
    Path("train.py").write_text("""
import torch.multiprocessing as processes
def train(rank):
    while True:
        pass
if __name__ == "__main__":
    processes.spawn(train, nprocs=1)
""")
    with pytest.raises(RunFailed, match="whose steps are not observed"):
        watching.watch_script(Launch("train.py"))
