"""Where a library makes the call: the edit is its own option."""

import pytest

from tests.unit.scripts.patch_sites import after, patched, site

HUGGING_FACE = """import torch
from transformers import Trainer, TrainingArguments

model = make()
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
)
trainer = Trainer(model=model, args=args)
trainer.train()
"""
LIGHTNING = """import lightning as L
import torch

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Conv2d(3, 8, 3)

    def training_step(self, batch, index):
        return loss(self(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

trainer = L.Trainer(max_epochs=3)
trainer.fit(Module(), loader)
"""
ACCELERATE = """import torch
from accelerate import Accelerator
accelerator = Accelerator()
for x, y in loader:
    loss = f(model(x), y)
    accelerator.backward(loss)
"""
TIMM = """import argparse
import torch
from timm.data import create_loader
parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=4)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--amp-dtype", default="float16")
parser.add_argument("--channels-last", action="store_true")
args = parser.parse_args()
loader = create_loader(data, num_workers=args.workers)
for x, y in loader:
    loss = f(model(x), y)
    loss.backward()
"""


def in_library(text: str, call: str, library: str) -> list:
    roles = ("loader", "optimizer", "forward", "backward", "zero_grad")
    return [site(text, role, call, library=library) for role in roles]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"amp": "bf16"}, "bf16=True"),
        ({"workers": 4}, "dataloader_num_workers=4"),
        ({"batch_size": 32}, "per_device_train_batch_size=32"),
        ({"optimizer_impl": "fused"}, 'optim="adamw_torch_fused"'),
        ({"compile": True}, "torch_compile=True"),
        ({"fp32_precision": "tf32"}, "tf32=True"),
    ],
)
def test_training_arguments(settings, expected):
    sites = in_library(HUGGING_FACE, "trainer.train", "transformers")
    text = after(patched(HUGGING_FACE, settings, sites))
    assert f"    {expected},\n" in text
    assert len(text.splitlines()) - len(HUGGING_FACE.splitlines()) == (0 if "batch_size" in settings else 1)


def test_a_layout_is_set_before_the_trainer_gets_the_model():
    sites = in_library(HUGGING_FACE, "trainer.train", "transformers")
    text = after(patched(HUGGING_FACE, {"channels_last": True}, sites))
    assert "model.to(memory_format=torch.channels_last)\ntrainer = Trainer(" in text


def test_arguments_that_are_parsed_are_given_on_the_command_line():
    text = HUGGING_FACE.replace("args = TrainingArguments(", "args = HfArgumentParser(").replace(
        "import Trainer, TrainingArguments", "import HfArgumentParser, Trainer"
    )
    sites = in_library(text, "trainer.train", "transformers")
    result = patched(text, {"amp": "bf16", "workers": 2}, sites, ["--output_dir", "out"])
    assert not result.changes
    assert result.arguments == ["--output_dir", "out", "--dataloader_num_workers", "2", "--bf16", "True"]


def test_two_configurations_are_refused():
    text = HUGGING_FACE + "other = TrainingArguments(output_dir='x')\n"
    result = patched(text, {"amp": "bf16"}, in_library(text, "trainer.train", "transformers"))
    assert "train.py:5 and train.py:11" in result.refused["amp"] and not result.changes


def test_lightning():
    sites = [
        site(LIGHTNING, "backward", "trainer.fit", library="lightning"),
        site(LIGHTNING, "zero_grad", "trainer.fit", library="lightning"),
        site(LIGHTNING, "forward", "self", "trainer.fit"),
        site(LIGHTNING, "optimizer", "torch.optim.Adam", "trainer.fit"),
    ]
    settings = {
        "amp": "bf16",
        "channels_last": True,
        "optimizer_impl": "fused",
        "zero_grad_set_to_none": False,
    }
    result = patched(LIGHTNING, settings, sites)
    text = after(result)
    assert 'L.Trainer(max_epochs=3, precision="bf16-mixed")' in text
    assert "torch.optim.Adam(self.parameters(), fused=True)" in text
    assert "Conv2d(3, 8, 3)\n        self.to(memory_format=torch.channels_last)\n" in text
    assert "optimizer_zero_grad" in result.refused["zero_grad_set_to_none"]


def test_accelerate():
    sites = [
        site(ACCELERATE, "forward", "model"),
        site(ACCELERATE, "backward", "accelerator.backward", library="accelerate"),
    ]
    assert 'Accelerator(mixed_precision="bf16")' in after(patched(ACCELERATE, {"amp": "bf16"}, sites))


def test_timm_has_options_for_it():
    sites = [
        site(TIMM, "loader", "create_loader", library="timm"),
        site(TIMM, "forward", "model"),
        site(TIMM, "backward", "loss.backward"),
    ]
    result = patched(TIMM, {"workers": 2, "amp": "bf16", "channels_last": True}, sites, ["-j8"])
    assert not result.changes
    assert result.arguments == ["-j2", "--channels-last", "--amp", "--amp-dtype", "bfloat16"]


def test_an_unknown_library_is_named():
    result = patched(TIMM, {"workers": 2}, [site(TIMM, "loader", "create_loader", library="fastai")])
    assert "fastai" in result.refused["workers"]
