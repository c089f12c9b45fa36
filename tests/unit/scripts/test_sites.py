"""Whose call it was, and how much went in."""

from pathlib import Path

import torch

from perfkit.recipe import switches
from perfkit.scripts import messages, script
from perfkit.scripts.script import Sites, first_tensor, size, tensors


def seen(known: Sites, role: str):
    """Stands for a patched function: its caller is the call."""
    known.note(role)


def test_the_exact_expressions_of_the_user_s_calls():
    known = Sites("/nowhere")
    (seen(known, "optimizer"), seen(known, "optimizer"))
    (site,) = known.by_role["optimizer"]
    assert (site.role, site.library) == ("optimizer", "")
    lines = Path(__file__).read_text().splitlines()
    codes = [lines[frame.line - 1][frame.column : frame.end_column] for frame in site.frames[:2]]
    assert codes == ["known.note(role)", 'seen(known, "optimizer")']
    assert site.frames[0].file == str(Path(__file__).resolve())


def test_the_library_that_makes_a_call():
    packages = "/x/lib/python3.11/site-packages/"
    assert script._package(f"{packages}lightning/pytorch/trainer.py") == "lightning"
    assert script._package(f"{packages}perfkit/scripts/loaders.py") == script._package(torch.__file__) == ""


def test_samples_and_tokens_in_any_container():
    class Batch:
        def __init__(self):
            self.name, self.ids = "x", torch.zeros(4, 7, dtype=torch.long)

    images = torch.zeros(5, 3, 8, 8)
    assert size(first_tensor([torch.tensor(1.0), {"x": [images, torch.zeros(5)]}])) == (5, 0)
    assert size(first_tensor(Batch())) == (4, 28) and size(first_tensor(["text"])) == (0, 0)
    assert len(list(tensors({"a": [images, {"b": images}], "c": "text"}))) == 2


def test_every_switch_can_be_set_from_outside_or_has_its_edit():
    assert set(messages.SETTABLE) | set(messages.EDITS) == set(switches())
