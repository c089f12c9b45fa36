"""The edit of each switch in scripts of different make, and how it is shown, written and judged."""

import ast
import os
import subprocess

import pytest
from torch import nn, ones
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader

from perfkit.additions.patch import edits as patching
from perfkit.additions.scripts.messages import Frame, ScriptFacts, Site
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import PerfkitError
from perfkit.recipe import switches
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
MARK = "\ufeff"  # with which some editors of Windows begin a file
ROLES = {
    "loader": ["DataLoader(", "main("],
    "optimizer": ["torch.optim.SGD(", "main("],
    "forward": ["net(", "train(", "main("],
    "copy": ["x.to(", "train(", "main("],
    "backward": ["loss.backward(", "train(", "main("],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def frame(path, text, call):
    """The first call that begins with this code, as it would be seen running."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call | ast.ListComp)]
    node = next(node for node in nodes if (ast.get_source_segment(text, node) or "").startswith(call))
    return Frame(str(path), node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)


def patched(folder, text, wanted, roles, library="", **facts):
    """The patch of `train.py`; `roles` names its calls, the innermost first."""
    path = folder / "train.py"
    path.write_bytes(text.encode())
    text = text.removeprefix(MARK)
    pairs = roles.items() if isinstance(roles, dict) else roles
    sites = [Site(role, [frame(path, text, call) for call in calls], library) for role, calls in pairs]
    known = ScriptFacts(device="cpu", facts=DeviceFacts(), sites=sites, **facts)
    return patching.edit(Launch("train.py"), wanted, known)


def added(result):
    """The lines that a diff adds, without their indentation."""
    assert not result.refused, result.refused
    return [line[1:].strip() for line in result.diff().splitlines()[2:] if line.startswith("+")]


def after(result):
    ((_, data),) = result.launch.replaced
    return data.decode()


EDITS = {
    "workers=4": ["loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=4, persistent_workers=True)"],
    "non_blocking=True": ["x, y = x.to(device, non_blocking=True), y.to(device)"],
    "optimizer_impl='fused'": ["optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)"],
    "compile=True": ["model.compile()"],
    "cudnn_benchmark=True": ["torch.backends.cudnn.benchmark = True"],
    "channels_last=True": ["model.to(memory_format=torch.channels_last)"],
    "fp32_precision='tf32'": ['torch.set_float32_matmul_precision("high")'],
}  # fmt: skip


@pytest.mark.parametrize("setting", EDITS)
def test_a_switch_changes_only_its_own_lines(setting, tmp_path):
    name, value = setting.split("=")
    result = patched(tmp_path, LOOP, {name: eval(value)}, ROLES)
    assert added(result) == EDITS[setting] and [*result.edited] == [name]


def test_every_switch_is_edited_or_refused_in_words(tmp_path):
    values = {name: [v for v in s.levels if v != s.default] for name, s in switches().items()}
    wanted = {name: levels[0] for name, levels in values.items() if levels}
    known = {"refused": {"non_blocking": "copies are to a GPU"}, "settings": {"workers": wanted["workers"]}}
    result = patched(tmp_path, LOOP, wanted, ROLES, **known)
    assert {*result.edited, *result.refused} == {*wanted}
    for name, reason in {
        "uint8_copy": "the script's own code has to change: see `perfkit diff uint8_copy`",
        "wait_policy": "start the script with OMP_WAIT_POLICY=PASSIVE in its environment",
        "non_blocking": "copies are to a GPU",
        "workers": f"the script has workers={wanted['workers']} already",
    }.items():
        assert result.refused[name] == reason


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (
            "DataLoader(data, num_workers=4, prefetch_factor=4, multiprocessing_context='fork')\n",
            {"workers": 0},
        ),
        ("DataLoader(data, num_workers=4, persistent_workers=True)\n", {"workers": 0}),
        ("SGD(parameters, foreach=True)\n", {"optimizer_impl": "fused"}),
        ("Adam(parameters, fused=True)\n", {"optimizer_impl": "foreach"}),
    ],
)
def test_torch_takes_what_is_written(text, settings, tmp_path):
    """Each has an argument that torch refuses next to the one that is set."""
    role = "loader" if "DataLoader" in text else "optimizer"
    result = patched(tmp_path, text, settings, {role: [text.partition("(")[0]]})
    names = {"DataLoader": DataLoader, "SGD": SGD, "Adam": Adam}
    exec(after(result), {**names, "data": [1], "parameters": [nn.Parameter(ones(1))]})


def test_tabs_and_line_ends_stay(tmp_path):
    text = LOOP.replace("    ", "\t").replace("\n", "\r\n") + "# end, ä, no newline"
    result = patched(tmp_path, text, {"compile": True, "workers": 1}, ROLES)
    text = after(result)
    assert text.count("\r\n") == text.count("\n") and "\r\n\tmodel.compile()\r\n" in text
    assert result.diff().endswith("\n")


def test_a_byte_order_mark_stays_and_moves_no_edit(tmp_path):
    result = patched(tmp_path, f"{MARK}loader = DataLoader(data, 32)\n", {"workers": 1}, LOADER)
    assert after(result) == f"{MARK}loader = DataLoader(data, 32, num_workers=1, persistent_workers=True)\n"
    (tmp_path / "perfkit.diff").write_text(result.diff(), encoding="utf-8")
    subprocess.run(["git", "apply", "perfkit.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_bytes() == after(result).encode()


LOADER = {"loader": ["DataLoader("]}


@pytest.mark.parametrize(
    ("text", "settings", "line"),
    [
        ("loader = DataLoader(data, 32, True, num_workers=2)\n", {"workers": 4, "batch_size": 8},
         "loader = DataLoader(data, 8, True, num_workers=4, persistent_workers=True)"),
        ("loader = DataLoader(data, num_workers=2, persistent_workers=True)\n", {"workers": 0},
         "loader = DataLoader(data, num_workers=0, persistent_workers=False)"),
        ("loader = DataLoader(data, 32, True, None, None, 4)\n", {"workers": 2},
         "loader = DataLoader(data, 32, True, None, None, 2, persistent_workers=True)"),
        ("loader = DataLoader(data, 32, True, None, None, 0, None, False)\n", {"pin_memory": True},
         "loader = DataLoader(data, 32, True, None, None, 0, None, True)"),
        ("loader = DataLoader(data, num_workers=2)\n", {"workers": 0}, "loader = DataLoader(data, num_workers=0)"),
        ("loader = DataLoader(data, num_workers=4, prefetch_factor=4)\n", {"workers": 0},
         "loader = DataLoader(data, num_workers=0, prefetch_factor=None)"),
        ("loader = DataLoader(data, num_workers=4, multiprocessing_context='spawn')\n", {"workers": 0},
         "loader = DataLoader(data, num_workers=0, multiprocessing_context=None)"),
        ("loader = DataLoader(data, 8, True, None, None, 4, None, False, False, 0, None, 'spawn')\n", {"workers": 0},
         "loader = DataLoader(data, 8, True, None, None, 0, None, False, False, 0, None, None)"),
        ("loader = DataLoader(data)\n", {"prefetch_factor": 4, "workers": 2},
         "loader = DataLoader(data, num_workers=2, persistent_workers=True, prefetch_factor=4)"),
        ("loader = DataLoader(*given, num_workers=2)\n", {"workers": 4},
         "loader = DataLoader(*given, num_workers=4, persistent_workers=True)"),
    ],
)  # fmt: skip
def test_a_value_is_changed_where_it_is_set(text, settings, line, tmp_path):
    assert added(patched(tmp_path, text, settings, LOADER)) == [line]


@pytest.mark.parametrize(
    ("role", "text", "settings", "line"),
    [
        ("copy", "x.cuda(0, False)\n", {"non_blocking": True}, "x.cuda(0, True)"),
        ("copy", "x.to(0, None, False)\n", {"non_blocking": True}, "x.to(0, None, True)"),
        ("optimizer", "optim.Adamax(p, 1, b, 0, 0, None)\n", {"optimizer_impl": "foreach"},
         "optim.Adamax(p, 1, b, 0, 0, True)"),
        ("optimizer", "optim.SGD(p, foreach=True)\n", {"optimizer_impl": "fused"},
         "optim.SGD(p, foreach=False, fused=True)"),
        ("optimizer", "optim.Adam(p, fused=True)\n", {"optimizer_impl": "foreach"},
         "optim.Adam(p, fused=False, foreach=True)"),
        ("optimizer", "optim.SGD(*given)\n", {"optimizer_impl": "foreach"}, "optim.SGD(*given, foreach=True)"),
    ],
)  # fmt: skip
def test_an_argument_without_its_name_is_changed_at_its_place(role, text, settings, line, tmp_path):
    """A keyword for it as well would be a `TypeError` once the script runs."""
    assert added(patched(tmp_path, text, settings, {role: [text.partition("(")[0]]})) == [line]


REFUSED = {
    "packed": ("DataLoader(data, 8, **options)\n", {"workers": 4},
               "train.py:1: set num_workers=4 persistent_workers=True where `options` comes from"),
    "in a list": ("DataLoader(data, 8, *rest)\n", {"workers": 4},
                  "train.py:1: set num_workers=4 persistent_workers=True where `rest` comes from"),
    "a variable at its place": ("DataLoader(data, 8, True, None, None, n)\n", {"workers": 4},
                                "train.py:1: set num_workers=4 persistent_workers=True where `n` comes from"),
    "computed": ("DataLoader(data, batch_size=total // ranks)\n", {"batch_size": 8},
                 "train.py:1: set batch_size=8 where `total // ranks` comes from"),
    "workers in options": ("DataLoader(data, num_workers=2, **options)\n", {"workers": 0},
                           "train.py:1: set num_workers=0 persistent_workers=False prefetch_factor=None "
                           "multiprocessing_context=None where `options` comes from"),
    "no workers": ("DataLoader(data)\n", {"prefetch_factor": 4},
                   "it acts only with workers, which is 0 here: set both"),
    "workers that cannot be set": ("DataLoader(data, num_workers=n)\n", {"workers": 4, "prefetch_factor": 4},
                                   "train.py:1: set num_workers=4 persistent_workers=True where `n` comes from",
                                   "it acts only with workers, which is 0 here: set both"),
    "an option": ('p.add_argument("-b", "--batch-size")\nDataLoader(data, a.batch_size)\n', {"batch_size": 8},
                  "set it with the script's option --batch-size 8"),
    "an option of the argument": ("p.add_argument('--num-workers')\nDataLoader(data, num_workers=a.num_workers)\n",
                                  {"workers": 2}, "set it with the script's option --num-workers 2"),
    "set elsewhere": ("import torch\nif x:\n    torch.backends.cudnn.benchmark = False\nDataLoader(d)\n",
                      {"cudnn_benchmark": True}, "train.py:3: make that `torch.backends.cudnn.benchmark = True`"),
    "no copy": ("DataLoader(d)\n", {"non_blocking": True},
                "no copy was seen in the script's own code"),
    "no optimizer": ("import torch\nnet(x)\n", {"compile": True},
                     "train.py:2: add `.compile()` to the model before this call"),
    "a context": ("import torch\nnet(x)\nloss.backward()\n", {"amp": "bf16"},
                  'train.py:3: put `with torch.autocast("cpu", dtype=torch.bfloat16):` around the call of the '
                  "model and its loss"),
    "an autocast of its own": ("import torch\nwith autocast(dtype=half):\n    net(x)\nloss.backward()\n", {"amp": "bf16"},
                               'train.py:2: make that `torch.autocast("cpu", dtype=torch.bfloat16)`'),
    "no import of torch": ("import os, torch.nn as nn\nDataLoader(d)\n", {"cpu_threads": 2},
                           "train.py: add `import torch` at its top, then run it again"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_placed_is_refused_in_words(case, tmp_path):
    text, settings, *reasons = REFUSED[case]
    passes = {"forward": ["net("]} | ({"backward": ["loss.backward("]} if "backward" in text else {})
    result = patched(tmp_path, text, settings, LOADER if "DataLoader" in text else passes)
    assert list(result.refused.values()) == reasons and not result.diff() and not result.edited
    assert reasons[0] in result.notes()[0].text


def test_a_file_that_changed_meanwhile_is_refused(tmp_path):
    sites = [Site("loader", [Frame(str(tmp_path / "train.py"), 1, 1, 0, 12)])]
    (tmp_path / "train.py").write_text("\n\nDataLoader(d)\n")
    facts = ScriptFacts(device="cpu", facts=DeviceFacts(), sites=sites)
    result = patching.edit(Launch("train.py"), {"workers": 2}, facts)
    assert result.refused == {"workers": "the call seen at train.py:1 is not in the file now; run it again"}


def test_a_module_in_another_encoding_refuses_only_its_own_edits(tmp_path):
    """It is in the stack of a call that is edited; a whole patch failed because of it."""
    helper = tmp_path / "helper.py"
    helper.write_bytes("# -*- coding: latin-1 -*-\nmake()  # für alle\nnet(x)\n".encode("latin-1"))
    (tmp_path / "train.py").write_text("loader = DataLoader(d)\n")
    made = frame(tmp_path / "train.py", "loader = DataLoader(d)\n", "DataLoader(")
    of_helper = Frame(str(helper), 2, 2, 0, 6)
    sites = [Site("loader", [made, of_helper]), Site("optimizer", [of_helper])]
    known = ScriptFacts(device="cpu", facts=DeviceFacts(), sites=sites)
    result = patching.edit(Launch("train.py"), {"workers": 1, "optimizer_impl": "fused"}, known)
    assert after(result) == "loader = DataLoader(d, num_workers=1, persistent_workers=True)\n"
    (reason,) = result.refused.values()
    assert reason.startswith("helper.py cannot be read as Python in UTF-8")


def test_a_diff_never_undoes_what_was_changed_meanwhile(tmp_path):
    result = patched(tmp_path, LOOP, {"workers": 4}, ROLES)
    (tmp_path / "train.py").write_text(LOOP.replace("0.1", "0.3"))
    with pytest.raises(PerfkitError, match=r"train\.py was changed while its edit was made"):
        result.diff()


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ("self.net.parameters(), 1", "self.net"),
        ("p for n, p in model.named_parameters()", "model"),
        ("self.parameters()", ""),
        ("[*model.parameters(), *head.parameters()]", ""),
    ],
)
def test_the_model_is_the_optimizers(given, model, tmp_path):
    text = f"import torch\nnet(x)\noptimizer = Adam({given})\n"
    result = patched(tmp_path, text, {"compile": True}, {"forward": ["net("], "optimizer": ["Adam("]})
    reason = "train.py:3: add `.compile()` to the model before this call"
    assert added(result) == [f"{model}.compile()"] if model else result.refused["compile"] == reason


def test_an_edit_for_two_calls_in_one_statement_is_made_once(tmp_path):
    text = "import torch\nboth = SGD(model.parameters()), Adam(model.parameters())\n"
    calls = [("optimizer", ["SGD("]), ("optimizer", ["Adam("])]
    assert added(patched(tmp_path, text, {"compile": True}, calls)) == ["model.compile()"]


@pytest.mark.parametrize(
    ("library", "settings", "option"),
    [
        ("transformers", {"amp": "bf16"}, "backward: set bf16=True"),
        ("transformers", {"workers": 4}, "loader: set dataloader_num_workers=4"),
        ("transformers", {"optimizer_impl": "fused"}, 'optimizer: set optim="adamw_torch_fused"'),
        ("lightning", {"amp": "bf16"}, 'backward: set precision="bf16-mixed"'),
        ("accelerate", {"amp": "bf16"}, 'backward: set mixed_precision="bf16"'),
        ("fastai", {"workers": 2}, "loader: set it"),
    ],
)
def test_what_a_library_calls_is_its_option(library, settings, option, tmp_path):
    roles = {role: ["trainer.train("] for role in ("loader", "optimizer", "backward")}
    result = patched(tmp_path, "trainer.train()\n", settings, roles, library)
    assert [*result.refused.values()] == [f"train.py:1: {library} makes the {option} in its options"]


def test_a_diff_has_no_path_above_its_root(tmp_path, monkeypatch):
    os.mkdir(tmp_path / "elsewhere")
    result = patched(tmp_path, LOOP, {"workers": 2}, ROLES)
    diff = result.diff()
    assert result.root == tmp_path and "--- a/train.py\n+++ b/train.py\n" in diff
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert result.root == tmp_path and result.diff() == diff
    (how,) = result.notes()
    assert how == f"Save it as perfkit.diff, then run in {tmp_path}: git apply perfkit.diff"


def test_the_diff_of_a_script_in_another_folder_is_relative_to_the_scripts_own(tmp_path, monkeypatch):
    for name in ("script", "elsewhere"):
        os.mkdir(tmp_path / name)
    monkeypatch.chdir(tmp_path / "script")
    result = patched(tmp_path / "script", LOOP, {"workers": 2}, ROLES)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert result.root == tmp_path / "script" and "--- a/train.py\n" in result.diff()
    (tmp_path / "script" / "perfkit.diff").write_text(result.diff())
    subprocess.run(["git", "apply", "perfkit.diff"], cwd=result.root, check=True)
    assert "num_workers=2" in (result.root / "train.py").read_text()
