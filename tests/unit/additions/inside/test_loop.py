"""A loop observed in its own process: what counts as a step, what as waiting; nothing stays patched."""

import contextlib
import re
from types import SimpleNamespace

import pytest
import torch
from IPython.utils.capture import capture_output
from torch.utils.data import DataLoader, dataloader

from perfkit.additions.inside import loop
from perfkit.additions.inside.panel import _watch_cell


def test_the_figures_leave_out_the_first_steps():
    steps = [loop.LoopStep(seconds, waited=0.25, samples=8) for seconds in (6.0, 6.0, 1.0, 1.0, 1.0, 1.0)]
    table, hint = loop.contents(steps)
    assert hint.startswith("25% of a step waits for data") and "num_workers" in hint
    assert dict(table.rows) | {"samples/s": "8.00", "waiting for data": "25%"} == dict(table.rows)
    assert loop.contents([])[0].text.startswith("No step was seen")


def test_on_a_gpu_only_the_host_is_said_to_wait():
    """The device may have work meanwhile: then more workers gain nothing."""
    steps = [loop.LoopStep(1.0, waited=0.9, samples=8, on_device=at > 0) for at in range(6)]
    (table,) = loop.contents(steps)
    assert ["the host waits for data", "90%"] in table.rows
    events = [SimpleNamespace(elapsed_time=lambda after: 500.0, synchronize=lambda: None)] * 3
    of_host = [loop.LoopStep(1.0) for _ in range(3)]
    loop._by_the_device(of_host, events)
    assert [(step.seconds, step.on_device) for step in of_host] == [(1.0, False), (0.5, True), (0.5, True)]


@pytest.mark.parametrize(
    ("evaluated", "note"),
    [
        ([], "The first 2 steps are left out."),
        ([4], "The first 2 steps, and those with an evaluation in them, are left out."),
        ([2, 3, 4, 5], "The first 2 steps are left out."),  # every step has one, so they count
    ],
)
def test_the_note_names_the_steps_that_are_left_out(evaluated, note):
    steps = [loop.LoopStep(1.0, evaluated=at in evaluated) for at in range(6)]
    assert loop.contents(steps)[0].note == note
    assert loop.contents(steps[:2])[0].note == ""


@pytest.mark.parametrize("around", [True, False], ids=["around the loop", "inside of the loop"])
def test_batches_of_a_validation_are_no_training(around, monkeypatch):
    """Neither their samples nor their waits count, nor does the step in which they are fetched."""
    now = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def wait(samples):
        now[0] += 0.25
        return torch.stack(samples)

    training, validation = (DataLoader(torch.zeros(count, 2), 2, collate_fn=wait) for count in (8, 200))
    with loop.observed() as steps:
        for _ in range(3):
            for x in training:
                now[0] += 0.75
                model(x).sum().backward()
                optimizer.step()
            with torch.no_grad() if around else contextlib.nullcontext():
                for x in validation:
                    with torch.no_grad():
                        model(x)
    assert [(step.samples, step.waited) for step in steps] == [(2, 0.25)] * 12
    assert [at for at, step in enumerate(steps) if step.evaluated] == [4, 8]
    assert dict(loop.contents(steps)[0].rows)["samples/s"] == "2.00"


def test_any_loop_is_observed_and_nothing_is_left_behind(monkeypatch):
    plain, now = dataloader._BaseDataLoaderIter.__next__, [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    model = torch.nn.Linear(2, 1)
    first, second = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))

    def wait(samples):
        now[0] += 0.25
        return torch.stack(samples)

    loader = DataLoader(torch.zeros(12, 2), batch_size=2, collate_fn=wait)

    def train():
        batches = iter(loader)
        for a, b in zip(batches, batches, strict=True):
            now[0] += 0.5
            (model(a).sum() + model(b).sum()).backward()
            first.step()
            second.step()  # of the same step, as in a GAN
            now[0] += 9.0  # belongs to the next step

    with pytest.raises(ZeroDivisionError), loop.observed() as steps:
        train()
        _ = 1 / 0
    assert [(step.samples, step.waited) for step in steps] == [(4, 0.5)] * 3
    assert [step.seconds for step in steps] == [1.0, 10.0, 10.0]
    assert dataloader._BaseDataLoaderIter.__next__ is plain
    train()
    assert len(steps) == 3


@pytest.mark.parametrize("cell", ["1 +", "  x = 1\n y = 2", "1 / 0"])
def test_an_error_of_a_watched_cell_is_shown_once(shell, cell):
    shell.register_magic_function(lambda line, cell: _watch_cell(shell, line, cell), "cell", "watch")
    with capture_output() as output:
        shell.run_cell(f"%%watch\n{cell}")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", output.stdout + output.stderr)
    assert (
        sum(shown.count(f"{name}: ") for name in ("SyntaxError", "IndentationError", "ZeroDivisionError"))
        == 1
    )


def test_a_watched_cell_hints_at_what_ended_it_and_leaves_the_shell_as_it_was(shell):
    own = shell.showtraceback = lambda *_, **__: None  # as an extension sets it
    for cell, hint in (
        ("1 / 0", ""),
        ("raise RuntimeError('DataLoader worker (pid 1) exited unexpectedly')", "%%writefile my_data.py"),
        ("pass", "No step was seen"),
    ):
        with capture_output() as output, contextlib.suppress(ZeroDivisionError, RuntimeError):
            _watch_cell(shell, "", cell)
        texts = " ".join(str(one.data.get("text/plain")) for one in output.outputs)
        assert (hint in texts) if hint else not texts
        assert shell.showtraceback is own
