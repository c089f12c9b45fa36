"""Cheating and honest edits of three scripts: what these do in their steps tells them apart."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from perfkit.results import parity
from perfkit.scripts.behaviour import NAMES, Behaviour, differences
from tests.support import scripts

pytestmark = pytest.mark.integration

IMAGES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

class Images(Dataset):
    def __init__(self, count):
        self.x, self.y = torch.randint(256, (count, 3, 12, 12)).byte(), torch.randint(4, (count,))
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        x = self.x[index].float() / 255
        if self.augment and torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x, self.y[index]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        h = self.body(x)
        h = h.mean((2, 3))
        return self.head(self.drop(h))

torch.manual_seed(0)
data, val = Images(200), Images(96)
data.augment, val.augment = True, False
loader = DataLoader(data, batch_size=16, shuffle=True)
valid = DataLoader(val, batch_size=32)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
step = 0
for epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        step += 1
        loss.item()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        for x, y in valid: model(x)
    model.train()
    torch.save(model.state_dict(), "model.pt")
"""

TOKENS = """\
import math
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
text = torch.randint(64, (20_000,))
T, B, C = 32, 8, 32

def get_batch():
    at = torch.randint(len(text) - T - 1, (B,))
    return torch.stack([text[i:i + T] for i in at]), torch.stack([text[i + 1:i + T + 1] for i in at])

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C), nn.Dropout(P))
    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (part.view(n, t, 4, c // 4).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(c, 2))
        att = q @ k.transpose(-2, -1) / math.sqrt(c // 4)
        att = att.masked_fill(torch.ones(t, t).tril() == 0, -math.inf).softmax(-1)
        h = (att @ v).transpose(1, 2).reshape(n, t, c)
        x = x + self.proj(h)
        return x + self.mlp(self.ln2(x))

P = 0.1
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(64, C), nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.ln, self.out = nn.LayerNorm(C), nn.Linear(C, 64, bias=False)
    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for number, block in enumerate(self.blocks):
            x = block(x)
        logits = self.out(self.ln(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for it in range(100_000):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * min(1, (it + 1) / 100)
    if it % 10 == 9:
        model.eval()
        with torch.no_grad():
            losses = [model(*get_batch()).item() for _ in range(4)]
        model.train()
    if it % 20 == 19:
        torch.save(model.state_dict(), "gpt.pt")
    ids, targets = get_batch()
    loss = model(ids, targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

PARTS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
x = torch.randn(2048, 20)
data = TensorDataset(x, x[:, :1] * 2 + 0.1 * torch.randn(2048, 1))
loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
body, head = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 32)), nn.Linear(32, 1)
params = [*body.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(params, lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=2_000)
step = 0
while True:
    for number, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(head(body(x)), y) / 4
        loss.backward()
        if number % 4 == 3:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
"""

SEED, FORWARD, MODEL = "torch.manual_seed(0)", "out = model(x)", "model = Net()"
LOADER, EVALUATE = "batch_size=16, shuffle=True", "        for x, y in valid: model(x)\n"
FEATURES, BATCH, SCALED = "h = self.body(x)", "ids, targets = get_batch()", "self.x[index].float() / 255"
BLOCK, PASS, PREDICT = "x = block(x)", "loss = model(ids, targets)", "head(body(x))"
CHEATS = {
    "half of each batch": ("samples", IMAGES, FORWARD, "x, y = x[:8], y[:8]; out = model(x)"),
    "half of later batches": (
        "samples",
        IMAGES,
        FORWARD,
        "n = 8 if step > 12 else 16; x, y = x[:n], y[:n]; out = model(x)",
    ),
    "later parts left out": (
        "samples",
        PARTS,
        "        loss = nn",
        "        if step > 5 and number % 4 < 3: continue\n        loss = nn",
    ),
    "backward of one part in four": (
        "samples",
        PARTS,
        "        loss.backward()",
        "        if step < 5 or number % 4 == 3: loss.backward()",
    ),
    "every other batch skipped": ("backward", IMAGES, "in loader:", "in list(loader)[::2]:"),
    "backward left out": ("backward", IMAGES, "loss.backward()", "step % 2 or loss.backward()"),
    "losses left out": (
        "samples",
        TOKENS,
        PASS,
        f"{PASS} if it % 2 == 0 else torch.zeros((), requires_grad=True)",
    ),
    "steps left out": ("updates", PARTS, "optimizer.step()", "step > 5 and step % 2 or optimizer.step()"),
    "an optimizer that seldom updates": (
        "updates",
        IMAGES,
        SEED,
        f"plain = torch.optim.SGD.step; torch.optim.SGD.step = lambda self, closure=None: plain(self) if step < 10 or step % 3 == 0 else None; {SEED}",
    ),
    "smaller images": ("inputs", IMAGES, FORWARD, "out = model(nn.functional.interpolate(x, size=8))"),
    "shorter sequences later": (
        "inputs",
        TOKENS,
        BATCH,
        f"{BATCH}\n    if it > 12: ids, targets = ids[:, :16], targets[:, :16]",
    ),
    "smaller images inside later": (
        "model",
        IMAGES,
        FEATURES,
        "h = self.body(x if step < 10 else nn.functional.avg_pool2d(x, 2))",
    ),
    "a smaller model": ("model", TOKENS, "T, B, C = 32, 8, 32", "T, B, C = 32, 8, 16"),
    "trained in evaluation mode": ("model", PARTS, "step = 0", "step = 0; body.eval(), head.eval()"),
    "a frozen body": ("frozen", IMAGES, MODEL, "model = Net(); model.body.requires_grad_(False)"),
    "a body that is frozen later": (
        "frozen",
        IMAGES,
        FORWARD,
        "model.body.requires_grad_(step < 10); out = model(x)",
    ),
    "an optimizer of the head": ("frozen", IMAGES, "SGD(model.", "SGD(model.head."),
    "a detached body later": ("frozen", PARTS, PREDICT, "head(body(x) if step < 5 else body(x).detach())"),
    "a layer skipped every other time": (
        "frozen",
        TOKENS,
        BLOCK,
        "x = x if number == 1 and it > 10 and it % 2 else block(x)",
    ),
    "dropout off later": ("randomness", IMAGES, FORWARD, "model.drop.train(step < 10); out = model(x)"),
    "no augmentation": (
        "randomness",
        IMAGES,
        "data.augment, val.augment = True",
        "data.augment, val.augment = False",
    ),
    "weights in 16 bits": (
        "precision",
        IMAGES,
        MODEL,
        f"{MODEL}.bfloat16(); model.register_forward_pre_hook(lambda _, given: given[0].bfloat16())",
    ),
    "a product in 16 bits later": (
        "precision",
        TOKENS,
        "q @ k.transpose(-2, -1) /",
        "(q.bfloat16() @ k.transpose(-2, -1).bfloat16() if it > 10 else q @ k.transpose(-2, -1)).float() /",
    ),
    "16 bits that lose gradients": (
        "precision",
        TOKENS,
        PASS,
        f"with torch.autocast('cpu', torch.float16): {PASS}",
    ),
    "no weight decay": ("optimizer", IMAGES, "weight_decay=1e-4", "weight_decay=0"),
    "no schedule": ("optimizer", PARTS, "scheduler.step()", "pass"),
    "a schedule that ends early": (
        "optimizer",
        TOKENS,
        "min(1, (it + 1) / 100)",
        "min(1, (it + 1) / 100) * (it < 20)",
    ),
    "one batch again and again": ("batches", TOKENS, BATCH, f"if it < 10: {BATCH}"),
    "an epoch kept in a list": ("batches", IMAGES, MODEL, f"{MODEL}; loader = list(loader)"),
    "a part of the data": ("data", IMAGES, "DataLoader(data", "DataLoader(Subset(data, range(96))"),
    "a sampler of a part": (
        "data",
        IMAGES,
        LOADER,
        "batch_size=16, sampler=torch.utils.data.SubsetRandomSampler(range(120))",
    ),
    "epochs broken off": ("data", IMAGES, "loss.item()", "if step % 8 == 0: break"),
    "no evaluation": ("evaluations", IMAGES, EVALUATE, "        pass\n"),
    "evaluated on a part": ("evaluations", IMAGES, EVALUATE, "        model(next(iter(valid))[0])\n"),
    "evaluated half as often": ("evaluations", TOKENS, "it % 10 == 9", "it % 20 == 9"),
    "no checkpoint": ("checkpoints", TOKENS, "torch.save", "(lambda *_: None)"),
    "another clock": ("timing", IMAGES, SEED, f"import time; time.perf_counter = lambda: 0.0; {SEED}"),
    "perfkit changed": (
        "timing",
        PARTS,
        "step = 0",
        "step = 0; import sys\nfor name in list(sys.modules):\n    if name.endswith('scripts.script'): sys.modules[name].Step.ended = lambda self, seconds: self",
    ),
    "perfkit looked for": (
        "timing",
        IMAGES,
        FORWARD,
        "import sys; watched = 'perfkit' in sys.modules; out = model(x)",
    ),
}
"""Edit → the difference that it must be named, the script, what is replaced, and by what."""
OWN_LOOP = """
class Batches:
    def __iter__(self):
        torch.empty((), dtype=torch.int64).random_()
        order = torch.utils.data.RandomSampler(data)
        for at in torch.utils.data.BatchSampler(order, 16, drop_last=True):
            yield data.tensors[0][at], data.tensors[1][at]
loader = Batches()
body, head ="""
ATTENTION = TOKENS[TOKENS.index("        att = q") : TOKENS.index(".transpose(1, 2).reshape")]
HONEST = {
    "workers": (IMAGES, (LOADER, f"{LOADER}, num_workers=2, persistent_workers=True, prefetch_factor=4")),
    "pinned memory": (IMAGES, (LOADER, f"{LOADER}, pin_memory=True")),
    "channels_last": (IMAGES, (MODEL, f"{MODEL}.to(memory_format=torch.channels_last)")),
    "compile": (IMAGES, (MODEL, 'model = torch.compile(Net(), backend="eager")')),
    "autocast": (TOKENS, (PASS, f"with torch.autocast('cpu', torch.bfloat16): {PASS}")),
    "fused": (TOKENS, ("lr=1e-3)", "lr=1e-3, fused=True)")),
    "lr in a tensor": (
        TOKENS,
        ("lr=1e-3)", "lr=torch.tensor(1e-3))"),
        ('group["lr"] = ', 'group["lr"] = torch.tensor(1.0) * '),
    ),
    "groups in another order": (
        PARTS,
        ("AdamW(params", "AdamW([{'params': [*part.parameters()]} for part in (head, body)]"),
    ),
    "gradients kept": (IMAGES, ("zero_grad()", "zero_grad(set_to_none=False)")),
    "no wait": (IMAGES, ("loss.item()", "pass")),
    "data prepared once": (IMAGES, (".byte(), ", ".float() / 255, "), (SCALED, "self.x[index]")),
    "bytes scaled in the model": (IMAGES, (SCALED, "self.x[index]"), (FEATURES, "h = self.body(x / 255)")),
    "tokens indexed at once": (
        TOKENS,
        (
            "return torch.stack([text[i:i + T] for i in at]), ",
            "rows = text[at[:, None] + torch.arange(T + 1)]; return rows[:, :-1], rows[:, 1:]  # ",
        ),
    ),
    "a loop without a loader": (PARTS, ("body, head =", OWN_LOOP)),
    "a collate function": (
        PARTS,
        (
            "shuffle=True",
            "shuffle=True, collate_fn=lambda items: [torch.stack(part) for part in zip(*items)]",
        ),
    ),
    "parts merged": (PARTS, ("batch_size=16", "batch_size=64"), (" / 4", ""), ("number % 4 == 3", "True")),
    "one module": (PARTS, ("params =", "net = nn.Sequential(body, head)\nparams ="), (PREDICT, "net(x)")),
    "fused attention": (
        TOKENS,
        (ATTENTION, "        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
    ),
    "computed again": (
        TOKENS,
        (BLOCK, "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)"),
        ("import math", "import math, torch.utils.checkpoint"),
    ),
    "evaluated twice": (IMAGES, (EVALUATE, 2 * EVALUATE)),
    "evaluated in larger batches": (
        IMAGES,
        ("batch_size=32", "batch_size=96"),
        ("no_grad", "inference_mode"),
    ),
}
"""Edit → the script, what is replaced and by what."""

Observe = Callable[..., Behaviour]


@pytest.fixture(scope="module")
def observe(tmp_path_factory: pytest.TempPathFactory) -> Observe:
    """What a script does, with edits."""

    @cache
    def observe(text: str, *edits: tuple[str, str]) -> Behaviour:
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        file: Path = tmp_path_factory.mktemp("script") / "train.py"
        file.write_text(text)
        return scripts.behaviour(file)

    return observe


@pytest.mark.parametrize("edit", CHEATS)
def test_cheats_are_named(edit: str, observe: Observe) -> None:
    name, script, *replaced = CHEATS[edit]
    new = observe(script, tuple(replaced))
    assert name in {one.name for one in differences(observe(script), new)} & {*NAMES}
    assert differences(new, new) == [], "what both sides do is no difference"


@pytest.mark.parametrize("edit", HONEST)
def test_honest_edits_pass(edit: str, observe: Observe) -> None:
    script, *edits = HONEST[edit]
    old, new = observe(script), observe(script, *edits)
    assert differences(old, new) == []
    drawn = "workers have other random numbers" if edit == "workers" else ""
    losses = parity.losses(new.losses[:8], old.losses[:8], "tolerance", new.autocast is not None, drawn)
    assert losses.ok, losses.evidence


def test_small_batches_of_tokens_are_told_apart(observe: Observe) -> None:
    batches = observe(TOKENS, ("T, B, C = 32, 8, 32", "T, B, C = 4, 2, 32")).batches
    assert len(set(batches)) == len(batches) >= 38
