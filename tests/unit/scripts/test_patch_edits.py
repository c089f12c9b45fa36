"""The edit of each switch in scripts of different make."""

import pytest

from perfkit.errors import PerfkitError
from perfkit.recipe import switches
from perfkit.scripts.patch_calls import Site
from tests.unit.scripts.patch_sites import after, frame, patched, site

LOOP = '''"""Trains."""
import torch
from torch import nn
from torch.utils.data import DataLoader


def train(model, loader, optimizer, device):
    for x, y in loader:
        # copy
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = model(x)  # forward
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


def sites(text: str = LOOP) -> list:
    inside = [
        ("forward", "model"),
        ("backward", "loss.backward"),
        ("copy", "x.to"),
        ("copy", "y.to"),
        ("zero_grad", "optimizer.zero_grad"),
    ]
    own = [("loader", "DataLoader"), ("optimizer", "torch.optim.SGD")]
    images = {"forward": ["0"]}
    found = [site(text, *one, "train", "main", images=images.get(one[0], ())) for one in inside]
    return found + [site(text, role, called, "main") for role, called in own]


def lines(result) -> list[str]:
    """What a diff adds and removes, without its headers."""
    texts = result.diff("/project").splitlines()[2:]
    return [text[0] + text[1:].strip() for text in texts if text[0] in "+-" and text[1:].strip()]


ONE_LINE = {
    "workers=4": ["+loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=4)"],
    "pin_memory=True": ["+loader = DataLoader(data, batch_size=32, shuffle=True, pin_memory=True)"],
    "batch_size=64": ["+loader = DataLoader(data, batch_size=64, shuffle=True)"],
    "zero_grad_set_to_none=False": ["+optimizer.zero_grad(set_to_none=False)"],
    "non_blocking=True": ["+x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)"],
    "optimizer_impl='fused'": ["+optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)"],
    "optimizer_impl='foreach'": ["+optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)"],
    "optimizer_impl='loop'": ["+optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)"],
    "compile=True": ["+model.compile()"],
    "cudnn_benchmark=True": ["+torch.backends.cudnn.benchmark = True"],
    "cpu_threads=2": ["+torch.set_num_threads(2)"],
    "channels_last=True": [
        "+out = model(x.to(memory_format=torch.channels_last))  # forward",
        "+model.to(memory_format=torch.channels_last)",
    ],
    "fp32_precision='tf32'": [
        '+torch.backends.cuda.matmul.fp32_precision = "tf32"',
        '+torch.backends.cudnn.conv.fp32_precision = "tf32"',
        '+torch.backends.cudnn.rnn.fp32_precision = "tf32"',
    ],
    "amp='bf16'": [
        '+with torch.autocast("cpu", dtype=torch.bfloat16):',
        "+out = model(x)  # forward",
        "+loss = nn.functional.cross_entropy(out, y)",
    ],
}


@pytest.mark.parametrize("setting", ONE_LINE)
def test_a_switch_changes_only_its_own_lines(setting):
    name, value = setting.split("=")
    result = patched(LOOP, {name: eval(value)}, sites())
    assert not result.refused
    assert [line for line in lines(result) if line.startswith("+")] == ONE_LINE[setting]
    assert list(result.edits) == [name]


@pytest.mark.parametrize("setting", [one for one in ONE_LINE if not one.startswith("amp")])
def test_a_patch_of_the_patched_file_changes_nothing(setting):
    name, value = setting.split("=")
    once = after(patched(LOOP, {name: eval(value)}, sites()))
    again = patched(once, {name: eval(value)}, sites(once))
    assert not again.changes and again.already == [name]


def test_autocast_that_is_there_gets_the_type():
    once = after(patched(LOOP, {"amp": "bf16"}, sites()))
    again = patched(once, {"amp": "bf16"}, sites(once))
    assert not again.changes
    off = after(patched(once, {"amp": "off"}, sites(once)))
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):' in off


def test_every_switch_is_edited_or_refused_in_words():
    levels = {
        name: [one for one in switch.levels if one != switch.default] for name, switch in switches().items()
    }
    result = patched(LOOP, {name: values[0] for name, values in levels.items() if values}, sites())
    assert sorted([*result.edits, *result.already, *result.refused]) == sorted(filter(levels.get, levels))
    assert {"workers", "amp", "compile"} <= set(result.edits) and "uint8_copy" in result.refused
    assert all(len(reason) > 20 for reason in result.refused.values())


def test_all_at_once_still_compiles():
    settings = {
        "workers": 2, "amp": "bf16", "channels_last": True, "compile": True,
        "compile_mode": "max-autotune", "optimizer_impl": "fused", "cpu_threads": 2,
    }  # fmt: skip
    result = patched(LOOP, settings, sites())
    compile(after(result), "train.py", "exec")
    assert 'model.compile(mode="max-autotune")' in after(result)
    assert after(result).index("model.to(memory") < after(result).index("model.compile")
    assert set(result.edits) == set(settings)


def test_tabs_line_ends_and_encoding_stay():
    text = LOOP.replace("    ", "\t").replace("# copy", "# Übertragung auf das Gerät")
    text = (
        "# -*- coding: latin-1 -*-\n" + text.replace("x, y in loader", "x, y in loader") + "# end, no newline"
    )
    data = text.replace("\n", "\r\n").encode("latin-1")
    result = patched(data, {"amp": "bf16", "workers": 1}, sites(text))
    (change,) = result.changes
    assert change.after.count(b"\r\n") == change.after.count(b"\n")
    assert "Übertragung".encode("latin-1") in change.after
    assert b"\t\twith torch.autocast" in change.after and b"\t\t\tout = model(x)" in change.after
    assert result.diff("/project").endswith("\n")


def test_columns_are_bytes_of_utf8():
    text = LOOP.replace("model = nn.Conv2d(3, 8, 3)", 'größe = "ä"; model = nn.Conv2d(3, 8, 3)').replace(
        "loader = DataLoader(", 'ö = "äöü"; loader = DataLoader('
    )
    assert "shuffle=True, num_workers=4)" in after(patched(text, {"workers": 4}, sites(text)))


def test_byte_order_mark_stays():
    result = patched(b"\xef\xbb\xbf" + LOOP.encode(), {"workers": 4}, sites())
    assert result.changes[0].after.startswith(b"\xef\xbb\xbf") and b"num_workers=4" in result.changes[0].after


class TestLoader:
    def one(self, call: str, settings: dict, keywords=(), before: str = "", arguments=()):
        text = f"import torch\n{before}\nloader = {call}\n"
        name = call.partition("(")[0]
        return patched(text, settings, [site(text, "loader", name, keywords=keywords)], arguments)

    def test_positional_arguments_are_replaced(self):
        result = self.one("DataLoader(data, 32, True, None, None, 2)", {"workers": 4, "batch_size": 64})
        assert "DataLoader(data, 64, True, None, None, 4)" in after(result)

    def test_packed_keywords_are_refused(self):
        result = self.one("DataLoader(data, **options)", {"workers": 4}, ["num_workers"])
        assert result.refused["workers"].endswith("in the dictionary given as **options")

    def test_packed_positions_are_refused(self):
        result = self.one("DataLoader(*parts)", {"workers": 4})
        assert "num_workers=4" in result.refused["workers"]

    def test_without_workers_their_partners_go(self):
        call = "DataLoader(data, num_workers=2, persistent_workers=True, prefetch_factor=4)"
        assert "DataLoader(data, num_workers=0)\n" in after(self.one(call, {"workers": 0}))

    def test_partners_of_no_workers_are_refused(self):
        result = self.one("DataLoader(data)", {"prefetch_factor": 4})
        assert "loader workers" in result.refused["prefetch_factor"]

    def test_the_default_of_an_option_is_changed(self):
        before = 'parser.add_argument("-b", "--batch-size", default=64, type=int)\n'
        result = self.one("DataLoader(data, batch_size=args.batch_size)", {"batch_size": 8}, before=before)
        assert "default=8, type=int" in after(result) and result.arguments == []

    @pytest.mark.parametrize(
        ("given", "changed"),
        [
            (["--batch-size", "64"], ["--batch-size", "8"]),
            (["-b", "64", "x"], ["-b", "8", "x"]),
            (["-b64"], ["-b8"]),
            (["--batch-size=64"], ["--batch-size=8"]),
        ],
    )
    def test_an_option_of_the_command_line_is_changed_there(self, given, changed):
        before = 'parser.add_argument("-b", "--batch-size", default=64, type=int)\n'
        call = "DataLoader(data, batch_size=args.batch_size)"
        result = self.one(call, {"batch_size": 8}, before=before, arguments=given)
        assert not result.changes and result.arguments == changed

    def test_a_flag_is_added_to_the_command_line(self):
        before = 'parser.add_argument("--pin", action="store_true")\n'
        result = self.one("DataLoader(data, pin_memory=args.pin)", {"pin_memory": True}, before=before)
        assert not result.changes and result.arguments == ["--pin"]

    def test_a_value_is_changed_where_it_is_written(self):
        result = self.one("DataLoader(data, batch_size=SIZE)", {"batch_size": 8}, before="SIZE = 32\n")
        assert "SIZE = 8" in after(result) and "batch_size=SIZE" in after(result)

    def test_a_batch_size_that_cannot_be_followed_is_refused(self):
        result = self.one("DataLoader(data, batch_size=total // ranks)", {"batch_size": 8})
        assert "total // ranks" in result.refused["batch_size"] and not result.changes

    def test_a_parameter_is_followed_to_the_caller(self):
        text = (
            "import torch\ndef make(data, size=32):\n    return DataLoader(data, size)\n"
            "loader = make(data, 16)\n"
        )
        result = patched(text, {"batch_size": 8}, [site(text, "loader", "DataLoader", "make")])
        assert "make(data, 8)" in after(result)
        text = text.replace("make(data, 16)", "make(data)")
        result = patched(text, {"batch_size": 8}, [site(text, "loader", "DataLoader", "make")])
        assert "size=8" in after(result)

    @pytest.mark.parametrize(
        ("made", "called", "changed"),
        [
            (
                "class Data:\n    def __init__(self, size, k):\n        self.one = DataLoader(data, size)\n"
                "batches = Data(16, 4)\n",
                "Data",
                "Data(8, 4)",
            ),
            (
                "class Data:\n    def __init__(self, size):\n        self.one = DataLoader(data, size)\n"
                "class Own(Data):\n    def __init__(self):\n        Data.__init__(self, 16)\n",
                "Data.__init__",
                "Data.__init__(self, 8)",
            ),
            (
                "class Data:\n    def make(self, size, ahead):\n        return DataLoader(data, size)\n"
                "loader = Data().make(16, 4)\n",
                "Data().make",
                "Data().make(8, 4)",
            ),
            (
                "def make(data, /, size):\n    return DataLoader(data, size)\nloader = make(data, 16)\n",
                "make",
                "make(data, 8)",
            ),
        ],
    )
    def test_the_position_of_a_parameter_is_that_of_the_call(self, made, called, changed):
        text = f"import torch\n{made}"
        result = patched(text, {"batch_size": 8}, [site(text, "loader", "DataLoader", called)])
        assert changed in after(result)

    def test_no_loader(self):
        result = patched(LOOP, {"workers": 2}, [])
        assert "no DataLoader" in result.refused["workers"]


class TestAutocast:
    def one(self, body: str, *more, settings=None, forward="model", backward="loss.backward"):
        text = "import torch\nfor x, y in loader:\n" + body
        found = [site(text, "forward", forward), site(text, "backward", backward)]
        return patched(text, settings or {"amp": "bf16"}, [*found, *(site(text, *one) for one in more)])

    def test_a_single_expression_is_taken_apart(self):
        result = self.one(
            "    # all\n    criterion(model(x), y).backward()\n    step()\n",
            backward="criterion(model(x), y).backward",
        )
        expected = (
            '    # all\n    with torch.autocast("cpu", dtype=torch.bfloat16):\n'
            "        loss = criterion(model(x), y)\n    loss.backward()\n    step()\n"
        )
        assert expected in after(result)

    def test_two_statements_on_a_line_are_refused(self):
        result = self.one("    loss = f(model(x), y); loss.backward()\n")
        assert "line of its own" in result.refused["amp"] and not result.changes

    def test_what_follows_the_loss_stays_outside(self):
        body = (
            "    loss = f(model(x), y)\n    loss = loss / 4\n    optimizer.zero_grad()\n    loss.backward()\n"
        )
        text = after(self.one(body))
        assert "        loss = loss / 4\n    optimizer.zero_grad()\n    loss.backward()\n" in text

    def test_fp16_needs_the_scaler_of_the_script(self):
        body = "    loss = f(model(x), y)\n    scaler.scale(loss).backward()\n"
        backward = "scaler.scale(loss).backward"
        refused = self.one(body, settings={"amp": "fp16"}, backward=backward)
        assert "GradScaler" in refused.refused["amp"]
        text = f"import torch\nscaler = torch.amp.GradScaler(enabled=False)\nfor x, y in loader:\n{body}"
        found = [
            site(text, "forward", "model"),
            site(text, "backward", backward),
            site(text, "scaler", "torch.amp.GradScaler"),
        ]
        result = after(patched(text, {"amp": "fp16"}, found))
        assert "dtype=torch.float16" in result and "GradScaler(enabled=True)" in result

    def test_an_autocast_that_was_switched_off_is_switched_on(self):
        body = (
            "    with torch.autocast('cpu', enabled=use_amp):\n        loss = f(model(x), y)\n"
            "    loss.backward()\n"
        )
        assert "torch.autocast('cpu', enabled=True, dtype=torch.bfloat16)" in after(self.one(body))

    def test_model_and_loss_in_functions_of_their_own(self):
        text = (
            "import torch\ndef loss_of(model, batch):\n    return f(model(batch))\n\n"
            "def step(model, batch):\n    loss = loss_of(model, batch)\n    loss.backward()\n\n"
            "step(net, batch)\n"
        )
        found = [
            site(text, "forward", "model", "loss_of", "step"),
            site(text, "backward", "loss.backward", "step"),
        ]
        result = after(patched(text, {"amp": "bf16"}, found))
        assert "dtype=torch.bfloat16):\n        loss = loss_of(model, batch)\n    loss.backward()" in result

    def test_two_models_and_two_losses(self):
        body = (
            "    fake = generator(x)\n    d_loss = f(critic(fake))\n    d_loss.backward()\n"
            "    g_loss = g(critic(fake))\n    g_loss.backward()\n"
        )
        text = "import torch\nfor x, y in loader:\n" + body
        found = [
            site(text, "forward", "generator"),
            site(text, "forward", "critic"),
            site(text, "backward", "d_loss.backward"),
            site(text, "backward", "g_loss.backward"),
        ]
        found.append(Site("forward", [frame(text, "critic", nth=1)]))
        result = after(patched(text, {"amp": "bf16"}, found))
        assert result.count("with torch.autocast") == 2
        assert (
            "        fake = generator(x)\n        d_loss = f(critic(fake))\n    d_loss.backward()" in result
        )
        assert "        g_loss = g(critic(fake))\n    g_loss.backward()" in result

    def test_a_loss_of_two_branches_is_inside_as_a_whole(self):
        body = (
            "    out = model(x)\n    if aux:\n        loss = f(out) + g(out)\n    else:\n"
            "        loss = f(out)\n"
            "    optimizer.zero_grad()\n    loss.backward()\n"
        )
        expected = (
            "        if aux:\n            loss = f(out) + g(out)\n        else:\n            loss = f(out)\n"
            "    optimizer.zero_grad()\n    loss.backward()\n"
        )
        assert expected in after(self.one(body))

    def test_a_loop_that_computes_the_next_loss_first_is_refused(self):
        body = "    loss.backward()\n    loss = f(model(x), y)\n"
        result = self.one(body)
        assert "with torch.autocast" in result.refused["amp"]


class TestModel:
    def placed(self, text: str, *called: str, line: str = "model.compile()") -> str:
        result = patched(text, {"compile": True}, [site(text, "forward", *called)])
        assert not result.refused, result.refused
        assert line in after(result)
        return after(result)

    def test_after_it_is_wrapped(self):
        text = "import torch\nmodel = Net()\nmodel = DDP(model)\nfor x in data:\n    model(x)\n"
        assert "DDP(model)\nmodel.compile()\nfor" in self.placed(text, "model").replace("\n\n", "\n")

    def test_after_both_branches(self):
        text = (
            "import torch\ndef main():\n    if big:\n        model = Big()\n    else:\n"
            "        model = Net()\n"
            "    for x in data:\n        model(x)\nmain()\n"
        )
        assert "        model = Net()\n    model.compile()\n    for" in self.placed(text, "model", "main")

    def test_an_attribute_of_a_trainer(self):
        text = (
            "import torch\nclass Trainer:\n    def __init__(self):\n        self.net = Net()\n"
            "        self.n = 1\n"
            "    def fit(self):\n        self.net(x)\n"
        )
        assert "Net()\n        self.net.compile()\n        self.n" in self.placed(
            text, "self.net", line="self.net.compile()"
        )

    def test_through_two_functions_and_a_keyword(self):
        text = (
            "import torch\ndef step(net, x):\n    net(x)\n\ndef train(model):\n    step(x=x, net=model)\n\n"
            "def make():\n    return Net()\n\nif __name__ == '__main__':\n    model = make()\n"
            "    train(model)\n"
        )
        assert "    model = make()\n    model.compile()\n    train(model)" in self.placed(
            text, "net", "step", "train"
        )

    def test_a_global_that_a_function_uses(self):
        text = "import torch\nmodel = Net()\n\ndef train():\n    model(x)\n\ntrain()\n"
        assert "model = Net()\nmodel.compile()\n" in self.placed(text, "model", "train")

    def test_made_inside_the_call_is_refused(self):
        text = "import torch\ndef train(model):\n    model(x)\n\ntrain(Net())\n"
        result = patched(text, {"compile": True}, [site(text, "forward", "model", "train")])
        assert "cannot be followed" in result.refused["compile"]


def test_a_file_that_changed_meanwhile_is_refused():
    result = patched("import torch\n\n\n", {"workers": 2}, sites())
    assert "run it again" in result.refused["workers"]


def test_not_python():
    with pytest.raises(PerfkitError, match="cannot read"):
        patched("def f(:\n", {"workers": 2}, sites())
