"""The edit of each switch in scripts of different make, and how it is shown, written and judged."""

import ast
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfkit.recipe import Value, switches
from perfkit.results.parity import Check
from perfkit.results.stats import Ratio
from perfkit.scripts import patch as patching
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import ScriptFacts
from perfkit.scripts.patch import Patch
from perfkit.scripts.sites import Frame, Site
from perfkit.worker.messages import DeviceFacts

LOOP = '''"""Trains."""
import torch
from torch import nn
from torch.utils.data import DataLoader


def train(net, loader, optimizer, device):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = net(x)  # forward
        loss = nn.functional.cross_entropy(out, y)
        # backward
        loss.backward()
        optimizer.step()


def main():
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Conv2d(3, 8, 3)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, loader, optimizer, device)


main()
'''
ROLES = {
    "loader": ["DataLoader(", "main("],
    "optimizer": ["torch.optim.SGD(", "main("],
    "forward": ["net(", "train(", "main("],
    "copy": ["x.to(", "train(", "main("],
    "zero_grad": ["optimizer.zero_grad(", "train(", "main("],
    "backward": ["loss.backward(", "train(", "main("],
}


def frame(path: Path, text: str, call: str) -> Frame:
    """The first call that begins with this code, as it would be seen running."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    node = next(node for node in nodes if (ast.get_source_segment(text, node) or "").startswith(call))
    return Frame(str(path), node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)


def patched(
    folder: Path,
    text: str,
    wanted: dict[str, Value],
    roles: dict[str, list[str]] | list[tuple[str, list[str]]],
    arguments: Sequence[str] = (),
    library: str = "",
    **facts: Any,
) -> Patch:
    """The patch of `train.py`; `roles` names its calls, the innermost first."""
    path = folder / "train.py"
    path.write_bytes(text.encode())
    pairs = roles.items() if isinstance(roles, dict) else roles
    sites = [Site(role, [frame(path, text, call) for call in calls], library) for role, calls in pairs]
    known = ScriptFacts(device="cpu", facts=DeviceFacts(1, "2.9"), sites=sites, **facts)
    return patching.edit(Launch("train.py", tuple(arguments), folder=folder), wanted, known)


def added(result: Patch) -> list[str]:
    """The lines that a diff adds, without their indentation."""
    assert not result.refused, result.refused
    return [line[1:].strip() for line in result.diff().splitlines()[2:] if line.startswith("+")]


def after(result: Patch) -> str:
    (change,) = result.changes
    return change.after.decode()


EDITS = {
    "workers=4": [
        "loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=4, persistent_workers=True)"
    ],
    "pin_memory=True": ["loader = DataLoader(data, batch_size=32, shuffle=True, pin_memory=True)"],
    "batch_size=64": ["loader = DataLoader(data, batch_size=64, shuffle=True)"],
    "zero_grad_set_to_none=False": ["optimizer.zero_grad(set_to_none=False)"],
    "non_blocking=True": ["x, y = x.to(device, non_blocking=True), y.to(device)"],
    "optimizer_impl='fused'": ["optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)"],
    "optimizer_impl='loop'": ["optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)"],
    "compile=True": ["model.compile()"],
    "cudnn_benchmark=True": ["torch.backends.cudnn.benchmark = True"],
    "cpu_threads=2": ["torch.set_num_threads(2)"],
    "channels_last=True": ["model.to(memory_format=torch.channels_last)"],
    "fp32_precision='tf32'": [
        f'torch.backends.{part}.fp32_precision = "tf32"'
        for part in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
    ],
    "amp='bf16'": [
        "with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):",
        "out = net(x)  # forward",
        "loss = nn.functional.cross_entropy(out, y)",
    ],
}


@pytest.mark.parametrize("setting", EDITS)
def test_a_switch_changes_only_its_own_lines(setting, tmp_path):
    name, value = setting.split("=")
    result = patched(tmp_path, LOOP, {name: eval(value)}, ROLES)
    assert added(result) == EDITS[setting] and result.edited == [name]


def test_every_switch_is_edited_or_refused_in_words(tmp_path):
    values = {name: [v for v in s.levels if v != s.default] for name, s in switches().items()}
    settings = {name: levels[0] for name, levels in values.items() if levels}
    result = patched(tmp_path, LOOP, settings, ROLES, refused={"non_blocking": "copies are to a GPU"})
    assert {*result.edited, *result.already, *result.refused} == {*settings}
    assert (
        result.refused["uint8_copy"] == "the script's own code has to change: see `perfkit diff uint8_copy`"
    )
    assert result.refused["wait_policy"] == "start the script with OMP_WAIT_POLICY=PASSIVE in its environment"
    assert result.refused["non_blocking"] == "copies are to a GPU"


def test_torch_is_imported_where_its_name_is_not_known(tmp_path):
    text = "import torch.nn as nn\nDataLoader(d)\n"
    result = patched(tmp_path, text, {"cpu_threads": 2, "cudnn_benchmark": True}, LOADER)
    lines = ["import torch", "torch.set_num_threads(2)", "torch.backends.cudnn.benchmark = True"]
    assert sorted(added(result)) == sorted(lines) and added(result)[0] == "import torch"


def test_what_the_script_has_already(tmp_path):
    result = patched(tmp_path, LOOP, {"workers": 2}, ROLES, settings={"workers": 2})
    assert result.already == ["workers"] and result.diff() == ""


def test_tabs_and_line_ends_stay(tmp_path):
    text = LOOP.replace("    ", "\t").replace("\n", "\r\n") + "# end, ä, no newline"
    result = patched(tmp_path, text, {"amp": "bf16", "workers": 1}, ROLES)
    data = result.changes[0].after
    assert data.count(b"\r\n") == data.count(b"\n") and b"\r\n\t\t\tout = net(x)" in data
    assert result.diff().endswith("\n")


# ---------------------------------------------------------------- values that are set elsewhere

LOADER = {"loader": ["DataLoader("]}
PARSER = (
    'parser.add_argument("-b", "--batch-size", type=int)\nparser.add_argument("--pin", action="store_true")\n'
)


@pytest.mark.parametrize(
    ("text", "settings", "line"),
    [
        ("loader = DataLoader(data, 32, True, num_workers=2)\n", {"workers": 4, "batch_size": 8},
         "loader = DataLoader(data, 8, True, num_workers=4, persistent_workers=True)"),
        ("loader = DataLoader(data, num_workers=2, persistent_workers=True)\n", {"workers": 0},
         "loader = DataLoader(data, num_workers=0, persistent_workers=False)"),
        ('p.add_argument("--j", type=int)\nloader = DataLoader(data, num_workers=args.j)\n', {"workers": 2},
         "loader = DataLoader(data, num_workers=args.j, persistent_workers=args.j > 0)"),
        ("SIZE = 32\nloader = DataLoader(data, batch_size=SIZE)\n", {"batch_size": 8}, "SIZE = 8"),
    ],
)  # fmt: skip
def test_a_value_is_changed_where_it_is_set(text, settings, line, tmp_path):
    assert added(patched(tmp_path, text, settings, LOADER)) == [line]


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ("x", "x --batch-size 8 --pin"),
        ("--batch-size=64", "--batch-size=64 --batch-size 8 --pin"),
    ],
)
def test_an_option_of_the_script_is_the_edit(arguments, changed, tmp_path):
    text = f"{PARSER}loader = DataLoader(data, batch_size=args.batch_size, pin_memory=args.pin)\n"
    result = patched(tmp_path, text, {"batch_size": 8, "pin_memory": True}, LOADER, arguments.split())
    assert not result.refused and not result.changes and result.launch.arguments == tuple(changed.split())


def test_an_option_that_means_the_switch_is_the_edit(tmp_path):
    text = 'parser.add_argument("--compile", action="store_true")\n' + LOOP
    assert patched(tmp_path, text, {"compile": True}, ROLES).launch.arguments == ("--compile",)


REFUSED = {
    "packed": ("DataLoader(data, 8, **options)\n", {"workers": 4},
               "train.py:1: set num_workers=4 in the dictionary given as **options"),
    "computed": ("DataLoader(data, batch_size=total // ranks)\n", {"batch_size": 8},
                 "train.py:1: batch_size is total // ranks; make that 8"),
    "parameter": ("def make(n=2):\n    return DataLoader(data, num_workers=n)\n", {"workers": 4},
                  "train.py:2: num_workers is n; make that 4"),
    "another action": ('parser.add_argument("--pin", action=Yes)\nDataLoader(d, pin_memory=args.pin)\n',
                       {"pin_memory": True}, "start the script with --pin so that it is True"),
    "set elsewhere": ("import torch\nif x:\n    torch.backends.cudnn.benchmark = False\nDataLoader(d)\n",
                      {"cudnn_benchmark": True}, "train.py:3: make that `torch.backends.cudnn.benchmark = True`"),
    "no copy": ("DataLoader(d)\n", {"non_blocking": True},
                "no copy was seen in the script's own code"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_placed_is_refused_in_words(case, tmp_path):
    text, settings, reason = REFUSED[case]
    result = patched(tmp_path, text, settings, LOADER)
    assert list(result.refused.values()) == [reason] and not result.changes and not result.edited


def test_a_file_that_changed_meanwhile_is_refused(tmp_path):
    sites = [Site("loader", [Frame(str(tmp_path / "train.py"), 1, 1, 0, 12)])]
    (tmp_path / "train.py").write_text("\n\nDataLoader(d)\n")
    facts = ScriptFacts(device="cpu", facts=DeviceFacts(1, "2.9"), sites=sites)
    result = patching.edit(Launch("train.py", folder=tmp_path), {"workers": 2}, facts)
    assert result.refused == {"workers": "the call seen at train.py:1 is not in the file now; run it again"}


# ---------------------------------------------------------------- autocast and the model

STEP = {"forward": ["model("], "backward": ["loss.backward("]}


AUTOCAST = {
    "model and loss in functions of their own": (
        "def loss_of(model, batch):\n    return f(model(batch))\n\ndef step(net, batch):\n    if x:\n"
        "        loss = loss_of(net, batch)\n    loss.backward()\n\nstep(net, batch)\n",
        [("forward", "model(", "loss_of(", "step("), ("backward", "loss.backward(", "step(")],
        ["16):\n        if x:\n            loss = loss_of(net, batch)\n    loss.backward()"],
    ),
    "two losses": (
        "for x, y in loader:\n    a = f(model(x))\n    a.backward()\n    b = g(critic(x))\n    b.backward()\n",
        [("forward", "model("), ("forward", "critic("), ("backward", "a.back"), ("backward", "b.back")],
        [
            "16):\n        a = f(model(x))\n    a.backward()",
            "16):\n        b = g(critic(x))\n    b.backward()",
        ],
    ),
    "gradients are zeroed outside": (
        "for x in loader:\n    loss = f(model(x))\n    optimizer.zero_grad()\n    loss.backward()\n",
        [("forward", "model("), ("zero_grad", "optimizer.zero_grad("), ("backward", "loss.backward(")],
        ["16):\n        loss = f(model(x))\n    optimizer.zero_grad()\n"],
    ),
}


@pytest.mark.parametrize("case", AUTOCAST)
def test_autocast_is_around_model_and_loss(case, tmp_path):
    text, calls, parts = AUTOCAST[case]
    roles = [(role, [*frames]) for role, *frames in calls]
    result = after(patched(tmp_path, "import torch\n" + text, {"amp": "bf16"}, roles))
    assert all(result.count(part) == 1 for part in parts)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "    with autocast(dtype=half):\n        loss = f(model(x))\n    loss.backward()\n",
            "train.py:3: make that",
        ),
        ("    f(model(x), loss.backward())\n", "train.py:3: compute the loss before, in"),
        ("    loss = f(model(x), '''\n''')\n    loss.backward()\n", "train.py:3: a text spans several lines"),
    ],
)
def test_autocast_that_cannot_be_placed(body, reason, tmp_path):
    result = patched(tmp_path, f"import torch\nfor x, y in loader:\n{body}", {"amp": "bf16"}, STEP)
    assert result.refused["amp"].startswith(reason)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("model.configure_optimizers(lr=1)", "model.compile()"),
        ("Adam(self.net.parameters(), 1)", "self.net.compile()"),
        ("Adam(p for n, p in model.named_parameters())", "model.compile()"),
    ],
)
def test_the_model_is_the_optimizers(call, line, tmp_path):
    text = f"import torch\nnet(x)\noptimizer = {call}\n"
    result = patched(tmp_path, text, {"compile": True}, {"forward": ["net("], "optimizer": [call]})
    assert added(result) == [line]


def test_a_model_that_is_not_seen_there_is_refused(tmp_path):
    text = "import torch\nnet(x)\noptimizer = Adam(self.parameters())\n"
    result = patched(tmp_path, text, {"compile": True}, {"forward": ["net("], "optimizer": ["Adam("]})
    reason = "train.py:3: add `.compile()` to the model before this optimizer is made"
    assert result.refused["compile"] == reason


# ---------------------------------------------------------------- libraries

HUGGING_FACE = (
    "import torch\nfrom transformers import Trainer, TrainingArguments\nmodel = make()\n"
    "args = TrainingArguments(\n    output_dir='out',\n    per_device_train_batch_size=8,\n)\n"
    "trainer = Trainer(model=model, args=args)\ntrainer.train()\n"
)


def by(library: str, call: str) -> dict[str, Any]:
    return {"roles": {role: [call] for role in (*ROLES, "loader")}, "library": library}


@pytest.mark.parametrize(
    ("library", "text", "settings", "line"),
    [
        ("transformers", HUGGING_FACE, {"amp": "bf16"}, "bf16=True,"),
        ("transformers", HUGGING_FACE, {"workers": 4}, "dataloader_num_workers=4,"),
        ("transformers", HUGGING_FACE, {"optimizer_impl": "fused"}, 'optim="adamw_torch_fused",'),
        ("lightning", "trainer = L.Trainer(max_epochs=3)\ntrainer.train()\n", {"amp": "bf16"},
         'trainer = L.Trainer(max_epochs=3, precision="bf16-mixed")'),
        ("accelerate", "a = Accelerator()\ntrainer.train()\n", {"amp": "bf16"},
         'a = Accelerator(mixed_precision="bf16")'),
    ],
)  # fmt: skip
def test_the_edit_is_the_librarys_option(library, text, settings, line, tmp_path):
    assert added(patched(tmp_path, text, settings, **by(library, "trainer.train("))) == [line]


@pytest.mark.parametrize(
    ("library", "text", "settings", "reason"),
    [
        ("transformers", HUGGING_FACE + "other = TrainingArguments()\n", {"amp": "bf16"},
         "train.py:9: transformers makes the backward: set bf16=True in its options"),
        ("fastai", "trainer.train(model)\n", {"workers": 2},
         "train.py:1: fastai makes the loader: set it in its options"),
    ],
)  # fmt: skip
def test_options_of_libraries_that_are_not_plain_there(library, text, settings, reason, tmp_path):
    result = patched(tmp_path, text, settings, **by(library, "trainer.train("))
    assert result.refused == {next(iter(settings)): reason}


# ---------------------------------------------------------------- the diff, the files, the verdict


def test_a_diff_has_no_path_above_its_root(tmp_path):
    os.mkdir(tmp_path / "elsewhere")
    result = patched(tmp_path, LOOP, {"workers": 2}, ROLES)
    launch = Launch("../train.py", folder=tmp_path / "elsewhere")
    assert result.root == tmp_path and "--- a/train.py\n+++ b/train.py\n" in result.diff()
    elsewhere = Patch(launch, result.changes)
    assert elsewhere.root == tmp_path and elsewhere.diff() == result.diff()


@pytest.mark.parametrize(
    ("verdict", "losses", "ok", "start"),
    [
        ("no measurable difference", True, True, "verified: losses equal; 0.9 times (0.8 to 1, 10 rounds)"),
        ("slower", True, False, "NOT verified: "),
        ("no measurable difference", False, False, "NOT verified: "),
    ],
)
def test_the_verdict_on_a_patch(verdict, losses, ok, start):
    check = Check("losses", losses, "equal" if losses else "differ")
    result = patching.verdict(Ratio(0.9, 0.8, 1.0, verdict), 10, check)
    assert result.ok is ok and result.evidence.startswith(start)
