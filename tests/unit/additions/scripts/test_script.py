"""Where a step ends, for optimizers of every kind; whose call it was, and how much went in."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perfkit.additions.scripts import messages, run_account, script
from perfkit.additions.scripts.loaders import Loaders
from perfkit.additions.scripts.messages import OF_STEP, OWN
from perfkit.additions.scripts.script import Script, ScriptStep, StepDetector
from perfkit.additions.scripts.training import Updates
from perfkit.additions.shared.tensors import samples_of, tensors
from perfkit.recipe import switches
from tests.support.settings import settings


class Seen:
    """A script's steps, driven by hand."""

    def __init__(self):
        self.steps = []
        self.counter = StepDetector(self.steps.extend, 1)
        self.counter.begin()

    def step(self, samples, *optimizers):
        self.counter.now.samples += samples
        for optimizer in optimizers:
            self.counter.updated(optimizer)

    def samples(self):
        return [step.samples for step in self.steps]


def test_the_last_optimizer_of_a_cycle_ends_a_step_and_the_first_step_is_handed_on_with_the_second():
    for optimizers in ([object()], [object(), object()]):
        seen = Seen()
        for samples in (8, 9, 10):
            seen.step(samples, *optimizers)
        for optimizer in optimizers:  # without a loader they share a batch
            seen.counter.now.forward_samples += 8
            seen.step(0, optimizer)
        assert seen.samples() == [8, 9, 10, 8]
        assert seen.counter.count == 4 and all(step.seconds > 0 for step in seen.steps)


def test_an_optimizer_that_shows_up_later_ends_a_step_from_then_on():
    seen, critic, generator = Seen(), object(), object()
    for _ in range(2):  # two steps of the critic to one of the generator, but for a longer start
        for _ in range(3):
            seen.step(1, critic)
        seen.step(0, generator)
    seen.step(1, critic, generator)
    assert seen.samples() == [1, 1, 1, 3, 1]


def test_a_step_that_ends_within_a_backward_pass_is_handed_on_when_something_begins_after_the_pass():
    seen, optimizer = Seen(), object()
    for samples in (1, 2, 3):
        known = seen.samples()
        seen.counter.in_backward = True
        seen.step(samples, optimizer)
        seen.counter.begin()  # a part of the forward pass is computed again
        assert seen.samples() == known
        seen.counter.in_backward = False
        seen.counter.begin()
    assert seen.samples() == [1, 2, 3]


def test_an_optimizer_that_is_new_in_the_pass_that_ends_the_second_step_is_no_part_of_the_first():
    """As where each weight has an optimizer of its own, and some weights are used later than others."""
    seen, optimizer, later = Seen(), object(), object()
    seen.counter.in_backward = True
    seen.step(1, optimizer)
    seen.step(2, optimizer, later)
    seen.counter.in_backward = False
    seen.counter.begin()
    assert seen.samples() == [1, 2]


def seen(known, role):
    """Stands for a patched function: its caller is the call."""
    known.calls.note(role)


def test_the_exact_expressions_of_the_user_s_calls():
    known = Script(settings(scratch="/nowhere"), None)
    (seen(known, "optimizer"), seen(known, "optimizer"))
    (site,) = known.calls.sites["optimizer"]
    assert (site.role, site.library) == ("optimizer", "")
    lines = Path(__file__).read_text().splitlines()
    codes = [lines[frame.line - 1][frame.column : frame.end_column] for frame in site.frames[:2]]
    assert codes == ["known.calls.note(role)", 'seen(known, "optimizer")']
    assert site.frames[0].file == str(Path(__file__).resolve())


@pytest.mark.parametrize("by_name", [False, True])
def test_what_a_closure_does_is_code_of_the_script_and_not_the_optimizer_s(by_name, monkeypatch):
    """Lightning trains in closures: its `training_step` is all of the script's own code."""
    updates = Updates.__new__(Updates)
    updates._script = known = Script(settings(scratch="/nowhere"), None)
    updates._seen, updates._optimizers, updates._count = known.updates, {}, 0
    now, parts = [100.0], []
    monkeypatch.setattr(script, "clock", lambda: now[0])

    def step(optimizer, closure):  # it may ask several times, as LBFGS does
        parts.append(known.parts.now)
        closure()
        now[0] += 1.0
        loss = closure()
        now[0] += 1.0
        return loss

    def closure():
        parts.append(known.parts.now)
        now[0] += 5.0
        return 3.0

    known.steps.begin()
    given = {"closure": closure} if by_name else {}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
    assert updates._step(step, optimizer, *([] if by_name else [closure]), **given) == 3.0
    assert parts == ["optimizer", OWN, OWN]
    known.steps.now.seconds = 12.0
    timed = dict(zip(OF_STEP, run_account._time_of(1, known.steps.now).parts, strict=True))
    assert (timed["optimizer"], timed[OWN]) == (2.0, 10.0)


def test_samples_in_any_container():
    class Batch:
        __slots__ = ("__dict__", "mask")

        def __init__(self):
            self.name, self.mask, self.ids = "x", torch.ones(4), torch.zeros(4, 7, dtype=torch.long)

    images = torch.zeros(5, 3, 8, 8)
    assert samples_of([torch.tensor(1.0), {"x": [images, torch.zeros(5)]}], None) == 5
    assert samples_of(Batch(), None) == 4 and samples_of(["text"], None) == 0
    assert len(list(tensors({"a": [images, {"b": images}], "c": "text", "d": Batch()}))) == 4


@pytest.mark.parametrize("arguments", [("meta",), ("meta", torch.long), ("meta", torch.long, True)])
def test_copies_do_not_wait_once_that_is_set_or_where_the_script_says_so(arguments, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: asked.append(tensor) or True)
    batch, loaders = torch.zeros(2), Loaders.__new__(Loaders)
    loaders._script = known = Script(settings(toggles={"non_blocking": True}), None)
    loaders._seen, loaders._batch_ids, made = known.batches, {id(batch)}, []
    loaders._copy(lambda *to, **how: made.append((to, how)), batch, *arguments)
    assert known.view().non_blocking()[0]
    assert made[0][1] == ({} if True in arguments else {"non_blocking": True})
    assert len(asked) == (True not in arguments)
    loaders._copy(lambda *to, **how: None, batch, torch.long)
    assert len(known.batches.copies) == 1 and len(asked) <= 1, (
        "a change of type is no copy, and asks no driver"
    )


def test_a_batch_that_the_loader_could_not_pin_is_not_called_pinned(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    known = Script(settings(), None)
    known.batches.loader = SimpleNamespace(pin_memory=True)
    assert known.view().pin_memory()[0], "as the loader says, until a batch was seen"
    known.batches.are_pinned = False
    assert known.view().pin_memory()[0] is False and "no pin_memory()" in known.view().pin_memory()[1]
    known.batches.are_pinned = None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert known.view().pin_memory() == (False, "batches lie in pageable memory: torch finds no GPU")


def test_a_model_on_several_gpus_is_said_to_be_timed_on_one(monkeypatch):
    known = Script(settings(), None)
    for gpus, notes in (("0", 0), ("01", 1)):
        on = [SimpleNamespace(is_cuda=True, device=f"cuda:{number}") for number in gpus]
        monkeypatch.setattr(known, "parameters", lambda on=on: on)
        known.on_steps([ScriptStep(samples=4)])
        assert len(known.notes) == notes
    assert known.notes == ["the model is on cuda:0, cuda:1: times and memory are those of cuda:0"]


def test_every_switch_can_be_set_from_outside_or_has_its_edit():
    assert set(messages.SETTABLE) | set(messages.TEXTS["by_hand"]) == set(switches())


def test_a_call_has_a_line_where_python_knows_none():
    """A garbage collection may be called by any instruction; Python 3.11 has some without a line."""
    found = {"calls": script.Calls(str)}
    exec(compile("def here():\n    return calls.under_way('collection')", "/home/me/train.py", "exec"), found)
    here = found["here"]
    without_line = b"\xf8" * (len(here.__code__.co_code) // 2)  # one code of its table for each
    here.__code__ = here.__code__.replace(co_linetable=without_line)
    assert here().place.endswith("/train.py:1")
