"""Cheating and honest edits of one script: what it does in its steps tells them apart."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from perfkit.results import parity
from perfkit.scripts.behaviour import NAMES, Behaviour, differences
from tests.support import scripts

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

class Images(Dataset):
    def __init__(self):
        self.x, self.y = torch.randint(256, (168, 3, 8, 8)).byte(), torch.randint(4, (168,))
    def __len__(self):
        return 168
    def __getitem__(self, index):
        return self.x[index].float() / 255, self.y[index]

torch.manual_seed(0)
data = Images()
loader = DataLoader(data, batch_size=16, shuffle=True)
body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
head = nn.Linear(128, 4)
model = nn.Sequential(body, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
for epoch in range(1000):
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        loss.item()
    model.eval()
    with torch.no_grad():
        for x, y in loader: model(x)
    model.train()
    torch.save(model.state_dict(), "model.pt")
"""

FORWARD, BACKWARD, UPDATE = "out = model(x)", "loss.backward()", "optimizer.step()"
HALF = "head.forward = lambda z: (z.bfloat16() @ head.weight.bfloat16().t()).float() + head.bias"
CAST = "model.register_forward_pre_hook(lambda _, given: given[0].bfloat16())"
EVALUATE = "        for x, y in loader: model(x)\n"
SEED = "torch.manual_seed(0)"
CHEATS = {
    "half of each batch": ("samples", FORWARD, "x, y = x[:8], y[:8]; out = model(x)"),
    "half of later batches": (
        "samples",
        FORWARD,
        "n = 8 if epoch else 16; x, y = x[:n], y[:n]; out = model(x)",
    ),
    "every other batch skipped": ("backward", "optimizer.zero_grad()", "if number % 2: continue"),
    "backward left out": ("backward", BACKWARD, "number % 2 or loss.backward()"),
    "steps left out": ("updates", UPDATE, "number % 2 and optimizer.step()"),
    "a frozen body": ("frozen", "model = nn", "body.requires_grad_(False); model = nn"),
    "an optimizer of the head": ("frozen", "SGD(model.", "SGD(head."),
    "a smaller model": ("model", "Linear(128, 4)", "Linear(128, 4, bias=False)"),
    "one batch again and again": ("batches", "enumerate(loader)", "enumerate([next(iter(loader))] * 12)"),
    "a part of the data": ("data", "DataLoader(data", "DataLoader(Subset(data, range(96))"),
    "weights in 16 bits": ("precision", "body, head)", f"body, head).bfloat16(); {CAST}"),
    "a layer in 16 bits": ("precision", "model = nn", f"{HALF}; model = nn"),
    "smaller images": ("inputs", FORWARD, "out = model(x[..., ::2])"),
    "no evaluation": ("evaluations", EVALUATE, "        pass\n"),
    "no checkpoint": ("checkpoints", "torch.save", "(lambda *_: None)"),
    "no weight decay": ("optimizer", "weight_decay=1e-4", "weight_decay=0"),
    "another clock": ("timing", SEED, f"import time; time.perf_counter = lambda: 0.0; {SEED}"),
    "no waiting": ("timing", SEED, f"torch.cuda.synchronize = lambda *_: None; {SEED}"),
}
"""Edit → the difference that it must be named, what is replaced, and by what."""
HONEST = {
    "evaluated twice": [(EVALUATE, 2 * EVALUATE)],
    "workers": [("shuffle=True", "shuffle=True, num_workers=2")],
    "pinned memory": [("shuffle=True", "shuffle=True, pin_memory=True")],
    "channels_last": [(FORWARD, "out = model.to(memory_format=torch.channels_last)(x)")],
    "compile": [("head)\n", 'head)\nmodel = torch.compile(model, backend="eager")\n')],
    "autocast": [(FORWARD, "with torch.autocast('cpu', torch.bfloat16): out = model(x)")],
    "fused": [("lr=0.1", "lr=0.1, fused=True")],
    "uint8 copies": [
        (".float() / 255, self", ", self"),
        (FORWARD, "x = x.float() / 255; out = model(x)"),
        (EVALUATE, EVALUATE.replace("(x)", "(x / 255)")),
    ],
    "gradients kept": [("zero_grad()", "zero_grad(set_to_none=False)")],
    "no wait": [("loss.item()", "pass")],
    "data prepared once": [(".byte(), ", ".float() / 255, "), ("[index].float() / 255", "[index]")],
    "evaluation without tracking": [("no_grad", "inference_mode")],
}
"""Edit → what is replaced, and by what."""

Observe = Callable[..., tuple[Behaviour, list[float]]]


@pytest.fixture(scope="module")
def observe(tmp_path_factory: pytest.TempPathFactory) -> Observe:
    """What the script does, with edits."""

    @cache
    def observe(*edits: tuple[str, str]) -> tuple[Behaviour, list[float]]:
        text = SCRIPT
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        file: Path = tmp_path_factory.mktemp("script") / "train.py"
        file.write_text(text)
        return scripts.behaviour(file)

    return observe


@pytest.mark.parametrize("edit", CHEATS)
def test_cheats_are_named(edit: str, observe: Observe) -> None:
    name, *replaced = CHEATS[edit]
    (old, _), (new, _) = observe(), observe(tuple(replaced))
    (found,) = differences(old, new)
    assert found.name == name and name in NAMES


@pytest.mark.parametrize("edit", HONEST)
def test_honest_edits_pass(edit: str, observe: Observe) -> None:
    (old, plain), (new, ours) = observe(), observe(*HONEST[edit])
    assert differences(old, new) == []
    losses = parity.losses(ours, plain, "tolerance", new.autocast is not None)
    assert losses.ok, losses.evidence


def test_what_both_sides_do_is_no_difference(observe: Observe) -> None:
    for name, *edit in CHEATS.values():
        side, _ = observe(tuple(edit))
        assert differences(side, side) == [], name
