"""Cheating and honest edits of three scripts: what these do in their steps tells them apart."""

from functools import cache

import pytest

from perfkit.additions.referee.behaviour import NAMES, differences
from perfkit.results import parity
from tests.support import scripts

pytestmark = pytest.mark.integration

IMAGES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __init__(self, count):
        self.x, self.y = torch.randint(256, (count, 3, 12, 12)).byte(), torch.randint(4, (count,))
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index].float() / 255, self.y[index]
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
loader = DataLoader(Images(200), batch_size=16, shuffle=True)
valid = DataLoader(Images(96), batch_size=32)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
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
        for block in self.blocks:
            x = block(x)
        logits = self.out(self.ln(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for it in range(100_000):
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
step = 0
while True:
    for number, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(head(body(x)), y) / 4
        loss.backward()
        if number % 4 == 3:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
"""

FORWARD, MODEL, LOADER = "out = model(x)", "model = Net()", "batch_size=16, shuffle=True"
EVALUATE, FEATURES = "        for x, y in valid: model(x)\n", "h = self.body(x)"
SCALED, BATCH = "self.x[index].float() / 255", "ids, targets = get_batch()"
BLOCK, PASS, PREDICT = "x = block(x)", "loss = model(ids, targets)", "head(body(x))"
PRODUCT, IN_16_BITS = "q @ k.transpose(-2, -1)", "q.bfloat16() @ k.transpose(-2, -1).bfloat16()"
CHEATS = {
    "half of later batches": ("samples", IMAGES, FORWARD, f"n = 8 if step > 12 else 16; x, y = x[:n], y[:n]; {FORWARD}"),
    "every other batch skipped": ("backward", IMAGES, "in loader:", "in list(loader)[::2]:"),
    "backward left out": ("backward", IMAGES, "loss.backward()", "step % 2 or loss.backward()"),
    "steps left out": ("updates", PARTS, "optimizer.step()", "step > 5 and step % 2 or optimizer.step()"),
    "shorter sequences later": ("inputs", TOKENS, BATCH,
                                f"{BATCH}\n    if it > 12: ids, targets = ids[:, :16], targets[:, :16]"),
    "a smaller model": ("model", TOKENS, "T, B, C = 32, 8, 32", "T, B, C = 32, 8, 16"),
    "a frozen body": ("frozen", IMAGES, MODEL, "model = Net(); model.body.requires_grad_(False)"),
    "an optimizer of the head": ("frozen", IMAGES, "SGD(model.", "SGD(model.head."),
    "a detached body later": ("frozen", PARTS, PREDICT, "head(body(x) if step < 5 else body(x).detach())"),
    "weights in 16 bits": ("precision", IMAGES, MODEL,
                           f"{MODEL}.bfloat16(); model.register_forward_pre_hook(lambda _, given: given[0].bfloat16())"),
    "weights in 16 bits under autocast": ("precision", IMAGES, MODEL, f"{MODEL}.bfloat16(); torch.autocast('cpu').__enter__()"),
    "a product in 16 bits later": ("precision", TOKENS, PRODUCT, f"({IN_16_BITS} if it > 10 else {PRODUCT}).float()"),
    "one batch again and again": ("batches", TOKENS, BATCH, f"if it < 10: {BATCH}"),
    "an epoch kept in a list": ("batches", IMAGES, MODEL, f"{MODEL}; loader = list(loader)"),
    "no evaluation": ("evaluations", IMAGES, EVALUATE, "        pass\n"),
    "no checkpoint": ("checkpoints", TOKENS, "torch.save", "(lambda *_: None)"),
    "another clock": ("timing", IMAGES, MODEL, f"import time; time.perf_counter = lambda: 0.0; {MODEL}"),
}  # fmt: skip
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
ROWS = "rows = text[at[:, None] + torch.arange(T + 1)]; return rows[:, :-1], rows[:, 1:]  # "
HONEST = {
    "workers": (IMAGES, (LOADER, f"{LOADER}, num_workers=2, persistent_workers=True, prefetch_factor=4")),
    "channels_last and compile": (
        IMAGES, (MODEL, 'model = torch.compile(Net().to(memory_format=torch.channels_last), backend="eager")'),
    ),
    "a compiled function": (IMAGES, (MODEL, f'{MODEL}; called = torch.compile(lambda x: model(x), backend="eager")'),
                            (FORWARD, "out = called(x); assert torch._inductor.config.fallback_random")),
    "a traced model": (IMAGES, (MODEL, f"""{MODEL}
with torch.random.fork_rng(): model = torch.jit.trace(model, torch.zeros(16, 3, 12, 12), check_trace=False)""")),
    "batches loaded at once": (IMAGES, (LOADER, "batch_size=64, shuffle=True"), ("for x, y in loader:",
        "for x, y in ((x, y) for many in loader for x, y in zip(*(part.split(16) for part in many))):")),
    "autocast": (TOKENS, (PASS, f"with torch.autocast('cpu', torch.bfloat16): {PASS}")),
    "data prepared once": (IMAGES, (".byte(), ", ".float() / 255, "), (SCALED, "self.x[index]")),
    "bytes scaled in the model": (IMAGES, (SCALED, "self.x[index]"), (FEATURES, "h = self.body(x / 255)")),
    "tokens indexed at once": (TOKENS, ("return torch.stack([text[i:i + T] for i in at]), ", ROWS)),
    "a loop without a loader": (PARTS, ("body, head =", OWN_LOOP)),
    "parts merged": (PARTS, ("batch_size=16", "batch_size=64"), (" / 4", ""), ("number % 4 == 3", "True")),
    "one module": (PARTS, ("params =", "net = nn.Sequential(body, head)\nparams ="), (PREDICT, "net(x)")),
    "fused attention": (TOKENS, (ATTENTION, "        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)")),
    "computed again": (TOKENS, (BLOCK, "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)"),
                       ("import math", "import math, torch.utils.checkpoint")),
    "evaluated in larger batches": (IMAGES, ("batch_size=32", "batch_size=96"), ("no_grad", "inference_mode"),
                                    (": model(x)", ": __import__('copy').deepcopy(model)(x)")),
}  # fmt: skip
"""Edit → the script, what is replaced and by what."""


@pytest.fixture(scope="module")
def observe(tmp_path_factory):
    """What a script does, with edits."""

    @cache
    def observe(text, *edits):
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        file = tmp_path_factory.mktemp("script") / "train.py"
        file.write_text(text)
        return scripts.behaviour(file)

    return observe


@pytest.mark.parametrize("edit", CHEATS)
def test_cheats_are_named(edit, observe):
    name, script, *replaced = CHEATS[edit]
    new = observe(script, tuple(replaced))
    assert name in {one.name for one in differences(observe(script), new)} & {*NAMES}
    assert not [*differences(new, new)], "what both sides do is no difference"


@pytest.mark.parametrize("edit", HONEST)
def test_honest_edits_pass(edit, observe):
    script, *edits = HONEST[edit]
    old, new = observe(script), observe(script, *edits)
    assert not [*differences(old, new)]
    losses = parity.check_losses(new.losses[:8], old.losses[:8], "tolerance", new.autocast is not None)
    assert losses.ok, losses.evidence


@pytest.mark.parametrize("wasteful", [
    [(FORWARD, "out = torch.cat([model(part) for part in x.split(4)])")],
    [(FORWARD, "out = model(nn.functional.pad(x, (0, 4)))"), (FEATURES, "h = self.body(x[..., :12])")],
])  # fmt: skip
def test_calls_may_be_merged_and_padding_left_out(wasteful, observe):
    assert not [*differences(observe(IMAGES, *wasteful), observe(IMAGES))]


def test_small_batches_of_tokens_are_told_apart(observe):
    batches = observe(TOKENS, ("T, B, C = 32, 8, 32", "T, B, C = 4, 2, 32")).batches
    assert len(set(batches)) == len(batches) >= 38
