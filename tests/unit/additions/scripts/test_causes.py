"""What is said of a script follows from what was measured, and no bound is given where none holds."""

import collections
import gc
import io
import sqlite3
import sys
import weakref
from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import numpy
import pytest
import torch

from perfkit.additions.scripts import evidence, hooks, inputs, questions, weights
from perfkit.additions.scripts.advice import findings
from perfkit.additions.scripts.loaders import data_facts
from perfkit.additions.scripts.messages import (
    AGAIN,
    BETWEEN,
    EVALUATION,
    OWN,
    Account,
    BusyThread,
    DataFacts,
    Evidence,
    Frame,
    Growth,
    Loading,
    Pipeline,
    Rows,
    ScriptFacts,
    Site,
    StepTime,
    Symptoms,
    Transform,
    Unused,
    ZeroRate,
)
from perfkit.additions.scripts.script import Script, ScriptStep
from perfkit.additions.scripts.training import Updates
from perfkit.additions.scripts.watching import trend_of
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.positions import Spot
from perfkit.additions.shared.sampler import EVERY_S
from perfkit.worker.messages import DeviceFacts
from tests.support.settings import settings


def seen(device="cpu", **known):
    script = ScriptFacts(device=device, facts=DeviceFacts())
    looked = Evidence(steps=10, **known)
    return Symptoms(script=script, run=Account(parts={"steps": 1.0}), evidence=looked, cores=2)


@pytest.mark.parametrize(("slow", "named"), [(20.0, ["denormal_numbers"]), (1.0, [])])
def test_denormal_numbers_are_a_cause_where_the_cpu_is_slow_with_them(slow, named, monkeypatch):
    monkeypatch.setattr(evidence, "_product_s", lambda value: 1e-6 if value == 0.5 else slow * 1e-6)
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones(8)
    optimizer.step()
    optimizer.state[weight]["exp_avg"].fill_(1e-41)
    share = evidence.denormals(
        SimpleNamespace(subject=SimpleNamespace(updates=SimpleNamespace(optimizers=[optimizer])))
    )
    assert [each.cause for each in findings(seen(denormal=share))] == named


@pytest.mark.parametrize(("device", "workers", "gain"), [("cpu", 2, None), ("cpu", 0, 2.0), ("cuda", 2, 2.0)])
def test_what_workers_load_has_no_bound_where_they_share_the_cores_with_the_steps(device, workers, gain):
    """A wait of half of a step says little: a faster sample leaves its cores to the model."""
    line = TimedLine("data set", "/home/me/train.py", 7, 1.0, [], "decode(file)")
    loading = Loading(batches=10, samples=80, seconds=1.0, lines=[line] if workers else [])
    (found,) = findings(
        seen(
            device,
            parts={"waiting" if workers else "data set": 1.0, "forward": 1.0},
            lines=[] if workers else [line],
            loading=loading,
            data=DataFacts(kind="Files", workers=workers),
        )
    )
    assert (found.cause, found.where) == ("loading_line", "train.py:7")
    assert found.gain == (None if gain is None else pytest.approx(gain))


def loading_in_lines(seconds, workers=2):
    """What is said of two seconds of loading, one of each four seconds of a step, with these lines."""
    found = [
        TimedLine("data set", "/home/me/data.py", at, took, [], f"line {at}") for at, took in seconds.items()
    ]
    loading = Loading(batches=10, samples=80, seconds=2.0, lines=found)
    parts = {"waiting": 1.0, "forward": 3.0}
    return findings(seen("cuda", parts=parts, loading=loading, data=DataFacts(kind="Texts", workers=workers)))


def test_lines_that_take_about_the_same_are_named_together():
    """Which of them was seen most is chance; what they take together is not."""
    (found,) = loading_in_lines({12: 0.7, 13: 0.6, 14: 0.5, 15: 0.1})
    assert (found.cause, found.where, found.share) == ("loading_lines", "data.py:12", pytest.approx(0.225))
    assert "data.py:12 `line 12` 9%, data.py:13 `line 13` 8%, data.py:14 `line 14` 6%" in found.evidence
    (found,) = loading_in_lines({12: 1.5, 13: 0.3})
    assert (found.cause, found.where) == ("loading_line", "data.py:12")


def test_a_line_of_the_sampler_is_told_apart_from_those_that_make_a_batch():
    """It was said of it that a batch takes 0.1 s, which is what the data set does, and to add workers."""
    places = {"sampler": 7, "data set": 12, "collate": 13}
    found = [TimedLine(part, "/home/me/data.py", at, 2.0, [], f"line {at}") for part, at in places.items()]
    loading = Loading(batches=10, samples=80, seconds=1.0)
    parts = dict.fromkeys(places, 2.0)
    data = DataFacts(kind="Texts", workers=0)
    of_sampler, of_batches = sorted(
        findings(seen(parts=parts, lines=found, loading=loading, data=data)), key=lambda each: each.share
    )
    assert (of_sampler.cause, of_batches.cause) == ("sampler_line", "loading_lines")
    assert "`line 7`, in the sampler, which takes 200 ms to choose the samples of" in of_sampler.evidence
    assert "workers do not run the sampler" in of_sampler.change
    assert "line 7" not in of_batches.evidence and "a batch takes 100 ms" in of_batches.evidence


def test_a_line_of_workers_has_its_share_of_all_that_they_load():
    """What libraries take there, as a batch is made by torch, is not its own."""
    assert loading_in_lines({12: 0.1}) == []
    (found,) = loading_in_lines({12: 1.0})
    assert found.share == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("own", "when"), [([0.4] * 20, "in each step"), ([0.0] * 18 + [4.0] * 2, "in some of the steps")]
)
def test_a_line_is_said_to_be_in_each_step_only_if_it_is(own, when):
    """A plot each ten steps takes as much of the run as a metric in each of them."""
    plain = [StepTime(n, 0.6 + took, [0.0, 0.3, 0.3, 0.0, took]) for n, took in enumerate(own)]
    line = TimedLine(OWN, "/home/me/train.py", 9, 4.0, [], "plot(losses)")
    looked = Evidence(steps=10, parts={OWN: 4.0, "forward": 6.0}, lines=[line])
    run = Account(parts={"steps": 1.0}, plain=plain)
    (found,) = findings(Symptoms(script=seen().script, run=run, evidence=looked, cores=2))
    assert found.evidence == f"40% of the run is spent in `plot(losses)`, {when}"


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ({7: 70, 8: 80, 9: 90}, ["graph_grows"]),
        (
            {1000: 10_000, 1001: 10_010, 1002: 10_020},
            ["graph_grows"],
        ),  # as few as a busy machine has time for
        ({1000: 10_000, 1001: 10_001, 1002: 10_002}, []),
        ({1000: 500, 1001: 800, 1002: 700, 1003: 900}, []),  # inputs of many lengths
    ],
)
def test_a_graph_grows_if_its_steps_have_made_most_of_it(counts, named):
    assert [each.cause for each in findings(seen(nodes=counts))] == named


@pytest.mark.parametrize(
    ("groups", "kinds", "optimizing", "says"),
    [
        (400, 1, 1.0, "400 groups of weights one by one, though they have the same settings"),
        (400, 2, 1.0, "though they have only 2 different settings"),
        (400, 400, 1.0, ""),  # a learning rate for each
        (4, 1, 1.0, ""),
        (400, 1, 0.01, ""),
    ],
)
def test_many_groups_of_weights_with_few_settings_are_a_cause_where_the_optimizer_takes_long(
    groups, kinds, optimizing, says
):
    parts = {"forward": 1.0, "optimizer": optimizing}
    found = findings(seen(parts=parts, groups=groups, group_kinds=kinds))
    assert [each.cause for each in found] == (["many_parameter_groups"] if says else [])
    assert all(says in each.evidence and each.share == pytest.approx(0.5) for each in found)


def test_the_time_in_hooks_is_that_of_the_line_in_the_function_that_a_module_calls():
    class Prints:
        def look(self, module, given, output): ...

    def stop(module, given): ...

    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
    model[0].register_forward_hook(Prints().look)
    model[1].register_forward_pre_hook(stop)
    prints, stops = Prints.look.__code__.co_qualname, stop.__code__.co_qualname
    step, other = Spot("train.py", 9, "step"), Spot("train.py", 30, "Net.forward")
    times = {
        ("forward", (step, Spot("train.py", 4, prints), Spot("train.py", 2, "mean"))): 3.0,
        ("backward", (step, Spot("train.py", 7, stops))): 2.0,
        ("forward", (step, other)): 9.0,
        ("evaluation", (step, Spot("train.py", 4, prints))): 9.0,
    }
    script = SimpleNamespace(modules=lambda: [*model])
    assert evidence._in_hooks(script, lambda file: "train.py" if file == __file__ else "", times) == {
        "train.py:4": 3.0,
        "train.py:7": 2.0,
    }


@pytest.mark.parametrize(("peak", "named"), [(1, ["checkpointing_without_need"]), (9, []), (None, [])])
def test_gradient_checkpointing_is_without_need_where_most_of_the_memory_is_free(peak, named):
    asked = seen(parts={"forward": 1.0, "backward": 2.0, AGAIN: 1.0}, peak=peak, memory=10)
    found = findings(asked)
    assert [each.cause for each in found] == named
    assert all(each.share == pytest.approx(0.25) for each in found)


def test_an_open_file_is_shared_by_workers_and_a_closed_or_a_written_one_is_not(tmp_path):
    """Nor is memory that is read like a file: each worker has a copy of it."""
    path = tmp_path / "rows"
    path.write_bytes(b"rows")
    base = sqlite3.connect(tmp_path / "base")
    with path.open("rb") as closed:
        pass
    with path.open("rb") as rows, path.open() as text, (tmp_path / "log").open("w") as log:
        held = {
            "rows": rows,
            "text": text,
            "base": base,
            "log": log,
            "closed": closed,
            "memory": io.BytesIO(),
        }
        loader = SimpleNamespace(dataset=SimpleNamespace(**held))
        assert data_facts(loader, 0).shared == ["rows", "text", "base"]
    base.close()


class Beats:
    """A data set of an .npz archive."""

    def __init__(self, path, samples):
        self.file = numpy.load(path)
        self.samples = samples

    def __len__(self):
        return self.samples


@pytest.mark.parametrize(("samples", "of_module", "archives"), [
    (40, False, ["dataset.file"]),
    (2, False, []),  # each sample is an array of the archive
    (2, True, []),
    (40, True, ["BEATS", "dataset.file"]),
])  # fmt: skip
def test_an_archive_of_arrays_is_told_where_each_sample_reads_a_whole_one(
    samples, of_module, archives, tmp_path, monkeypatch
):
    """More loader workers were the remedy."""
    numpy.savez(tmp_path / "beats.npz", x=numpy.zeros((40, 8)), y=numpy.zeros(40))
    beats = Beats(tmp_path / "beats.npz", samples)
    if of_module:
        monkeypatch.setattr(sys.modules[__name__], "BEATS", beats.file, raising=False)
    facts = data_facts(SimpleNamespace(dataset=torch.utils.data.Subset(beats, range(samples))), 0)
    assert (facts.archives, facts.in_memory) == (archives, [])
    line = TimedLine(
        "data set", "/home/me/train.py", 7, 4.0, ["NpzFile.__getitem__"], 'x = self.file["x"][i]'
    )
    loading = Loading(batches=10, samples=80, seconds=4.0)
    (found,) = findings(
        seen(parts={"data set": 6.0, "forward": 4.0}, lines=[line], loading=loading, data=facts)
    )
    assert found.cause == ("array_of_archive" if archives else "loading_line")
    if archives:
        assert (found.where, found.share, found.kind) == ("train.py:7", 0.4, "waste")
        assert 'in `x = self.file["x"][i]`, which reads a whole array again' in found.evidence


def test_the_lines_that_read_an_archive_are_one_cause():
    """Reading each array once removes all of them: one line's share was said to be the bound."""
    lines = [
        TimedLine(
            "data set", "/home/me/train.py", at, seconds, ["NpzFile.__getitem__"], f"x = self.file['{at}'][i]"
        )
        for at, seconds in ((7, 4.0), (8, 1.0), (9, 0.5))
    ]
    loading = Loading(batches=10, samples=80, seconds=5.5)
    data = DataFacts(kind="Beats", workers=0, archives=["dataset.file"])
    asked = seen(parts={"data set": 5.5, "forward": 4.5}, lines=lines, loading=loading, data=data)
    (found,) = findings(asked)
    assert (found.where, found.share) == ("train.py:7", pytest.approx(0.55))
    assert "and in train.py:8, train.py:9, which read a whole array" in found.evidence


@pytest.mark.parametrize("part", ["data set", "forward"])
def test_a_line_may_take_much_of_an_evaluation_and_of_the_steps(part):
    """It was named for the evaluation alone, and another line, or a switch, for the steps."""
    at = "/home/me/train.py", 7
    lines = [
        TimedLine(part, *at, 6.0, [], "adj = adj.coalesce()"),
        TimedLine(EVALUATION, *at, 2.0, [], "adj.coalesce()"),
    ]
    parts = {part: 6.0, "backward": 2.0, EVALUATION: 2.0}
    loading = Loading(batches=10, samples=80, seconds=6.0)
    asked = seen(parts=parts, lines=lines, loading=loading, data=DataFacts(kind="Texts", workers=0))
    run = Account(parts={"steps": 0.8, "evaluation": 0.2}, steps=20, evaluations=2)
    found = findings(msgspec.structs.replace(asked, run=run))
    assert [each.where for each in found] == ["train.py:7"] * 2
    assert {each.cause for each in found} == {
        "evaluation",
        {"forward": "line_of_forward"}.get(part, "loading_line"),
    }
    of_steps = next(each for each in found if each.cause != "evaluation")
    assert of_steps.gain == pytest.approx(1 / (1 - 0.6 - 0.2)), "whoever removes the line gains both"


def test_what_evaluations_take_is_counted_once_where_they_are_the_cause_themselves():
    """A model that each step calls without gradients is one: its bound had its share twice."""
    line = TimedLine(EVALUATION, "/home/me/train.py", 7, 2.0, [], "target = ema(x)")
    asked = seen(parts={"forward": 3.0, "backward": 5.0, EVALUATION: 2.0}, lines=[line])
    run = Account(parts={"steps": 0.8, "evaluation": 0.2}, steps=20, evaluations=20)
    (found,) = findings(msgspec.structs.replace(asked, run=run))
    assert (found.cause, found.where) == ("frozen_model", "train.py:7")
    assert found.gain == pytest.approx(1 / (1 - 0.2))


def test_a_metric_over_all_history_grows_in_the_scripts_own_line():
    """Each step takes 0.1 ms more than the one before, all of it in code of the script's own."""
    steps = [StepTime(n, 0.01 + 1e-4 * n, [0.0, 0.003, 0.005, 0.001, 0.001 + 1e-4 * n]) for n in range(60)]
    trend, growing = trend_of(Account(parts={"steps": 1.0}, plain=steps))
    assert (trend.kind, growing) == ("grows", OWN) and trend.per_step == pytest.approx(1e-4)
    line = TimedLine(OWN, "/home/me/train.py", 9, 1.0, [], "auc(scores)")
    run = Account(parts={"steps": 1.0}, plain=[StepTime(1, 1.0, [0.0, 0.5, 0.0, 0.0, 0.5])])
    looked = Evidence(steps=10, parts={OWN: 1.0, "forward": 1.0}, lines=[line])
    known = {"script": seen().script, "run": run, "evidence": looked, "cores": 2}
    (found,) = findings(Symptoms(**known, trend=trend, growing=growing))
    assert (found.cause, found.where) == ("own_line", "train.py:9")
    assert found.evidence.endswith("in each step, and it takes longer and longer")
    assert found.evidence.startswith("50% of the steps that were looked at"), "of the run, it is more"
    assert (found.gain, found.expected()) == (None, "measure to find out")


@pytest.mark.parametrize(
    ("looks", "of", "named"),
    [
        (4, 35, []),  # a twentieth of a healthy script's run had as many, next to four busy processes
        (400, 3500, ["own_line"]),
        (14, 35, ["own_line"]),
    ],
)
def test_a_line_is_no_cause_by_the_chance_of_few_looks(looks, of, named):
    line = TimedLine(OWN, "/home/me/train.py", 9, looks * EVERY_S, [], "step(x)")
    asked = seen(parts={OWN: looks * EVERY_S, "forward": (of - looks) * EVERY_S}, lines=[line])
    plain = [StepTime(1, 1.0, [0.0, 0.3, 0.6, 0.0, 0.1])]
    run = Account(parts={"steps": 1.0}, plain=plain)
    assert [each.cause for each in findings(msgspec.structs.replace(asked, run=run))] == named


@pytest.mark.parametrize(
    ("calls", "cause"),
    [
        (["Module.state_dict", "Tensor.__deepcopy__"], "state_dict_in_each_step"),
        (["deepcopy", "Module.state_dict"], "copies_in_each_step"),  # the copy takes longer than the list
    ],
)
def test_a_line_is_called_after_what_takes_most_of_its_time(calls, cause):
    line = TimedLine(OWN, "/home/me/train.py", 9, 4.0, calls, "best = deepcopy(model.state_dict())")
    (found,) = findings(seen(parts={OWN: 4.0, "forward": 6.0}, lines=[line]))
    assert (found.cause, found.where, found.share) == (cause, "train.py:9", pytest.approx(0.4))


@pytest.mark.parametrize(
    ("threads", "cores", "workers", "named"),
    [
        (1, 2, 0, ["one_thread"]),
        (2, 2, 0, []),
        (1, 1, 0, []),
        (1, 2, 1, []),
        (16, 2, 0, ["more_threads_than_cores"]),
    ],
)
def test_threads_that_the_script_sets_are_a_cause_where_cores_idle_or_have_several_each(
    threads, cores, workers, named
):
    looked = Evidence(steps=10, threads=threads, data=DataFacts(kind="Rows", workers=workers))
    site = Site("threads", [Frame("/home/me/train.py", 8, 8, 0, 24)])
    for sites, expected in (([site], named), ([], [])):  # a variable of the environment is the user's wish
        script = ScriptFacts(device="cpu", facts=DeviceFacts(), sites=sites)
        run = Account(parts={"steps": 1.0})
        found = findings(Symptoms(script=script, run=run, evidence=looked, cores=cores))
        assert [(each.cause, each.where) for each in found] == [(name, "train.py:8") for name in expected]


@pytest.mark.parametrize(
    ("operators", "passes_s", "batch", "says"),
    [
        (1000, 0.02, 32, "1,000 operators of 20.0 µs each, so short that calling them is a large part of it"),
        (1000, 0.02, 1, "a batch is one sample"),
        (1000, 0.2, 32, ""),  # they compute for long
        (20, 0.0004, 32, ""),  # a small model
    ],
)
def test_many_short_operators_are_a_cause(operators, passes_s, batch, says):
    """Ten steps were looked at, of which forward and backward take half."""
    parts = {"forward": 4 * passes_s, "backward": 6 * passes_s, "optimizer": 10 * passes_s}
    line = TimedLine(
        "forward", "/home/me/train.py", 26, 4 * passes_s, ["LSTMCell.forward"], "h = self.cell(x[t])"
    )
    asked = seen(parts=parts, lines=[line], nodes={3: operators, 4: operators})
    script = msgspec.structs.replace(asked.script, samples_per_step=batch)
    found = findings(msgspec.structs.replace(asked, script=script))
    assert [(each.cause, each.where) for each in found] == [("small_operators", "train.py:26")] * bool(says)
    assert all(says in each.evidence and each.gain is None for each in found)


@pytest.mark.parametrize(
    ("calls", "backward_s", "named"),
    [
        ([], 2.0, ["line_of_forward"]),
        (["walk_stack"], 2.0, ["line_of_forward"]),  # seen by chance
        (["Linear.forward"], 2.0, []),
        ([], 5.0, []),
        ([], 0.0, []),  # the script has its own way to compute gradients
    ],
)
def test_a_line_of_the_forward_pass_is_named_where_it_has_no_backward_pass(calls, backward_s, named):
    """A mask that is filled in a loop is not in the graph; matrix products take longer in backward."""
    line = TimedLine("forward", "/home/me/model.py", 20, 3.0, calls, "mask[i, j] = 0.0")
    parts = {"forward": 4.0, "backward": backward_s}
    found = findings(seen(parts=parts, lines=[line]))
    assert [(each.cause, each.where) for each in found] == [(name, "model.py:20") for name in named]


@pytest.mark.parametrize(
    ("part", "backward_s", "says"),
    [
        ("backward", 8.0, "in a backward pass that takes more than three times as long as forward"),
        ("backward", 4.0, ""),  # as usual: a function of the user's that is as fast as torch's
        ("optimizer", 4.0, "in the step of an optimizer"),
    ],
)
def test_a_line_of_the_user_s_own_backward_pass_or_optimizer_is_named(part, backward_s, says):
    line = TimedLine(part, "/home/me/rules.py", 20, 3.0, ["Tensor.norm"], "scale = row.norm()")
    parts = {"forward": 2.0, "backward": backward_s, "optimizer": 4.0}
    found = findings(seen(parts=parts, lines=[line]))
    assert [(each.cause, each.where) for each in found] == [("line_of_pass", "rules.py:20")] * bool(says)
    assert all(says in each.evidence for each in found)


@pytest.mark.parametrize(
    ("text", "part", "times", "says"),
    [
        ("vals, vecs = torch.linalg.eigh(m)", "optimizer", 18, "do it less often: every N steps"),
        ("root = torch.linalg.eigh(m)", "backward", 18, "make this line cheaper"),
        ("x = a * x + b @ x", "optimizer", 18, "make this line cheaper; if its result can be used for"),
        ("scale = row.norm()", "optimizer", 6000, "make fewer calls on larger tensors instead of looping"),
        ("scale = row.norm()", "optimizer", 1000, "make this line cheaper (in a loop: with fewer calls"),
        ("scale = row.norm()", "optimizer", 0, "make this line cheaper (in a loop: with fewer calls"),
    ],
)
def test_a_line_of_an_optimizer_is_done_less_often_or_on_larger_tensors(text, part, times, says):
    """Larger tensors were the remedy of 18 decompositions, which take a millisecond each."""
    line = TimedLine(part, "/home/me/rules.py", 20, 3.0, [], text, times=times)
    (found,) = findings(seen(parts={"forward": 1.0, "backward": 8.0, "optimizer": 4.0}, lines=[line]))
    assert found.change.startswith(says) and (times != 18 or "on larger" not in found.change)


def test_the_call_of_a_pass_is_no_line_of_it():
    """Where several lines share the time of a pass, that is all that is known."""
    line = TimedLine("optimizer", "/home/me/train.py", 9, 3.0, [], "optimizer.step()")
    asked = seen(parts={"forward": 2.0, "optimizer": 4.0}, lines=[line])
    site = Site("step", [Frame("/home/me/train.py", 9, 9, 0, 16)])
    script = msgspec.structs.replace(asked.script, sites=[site])
    assert findings(msgspec.structs.replace(asked, script=script)) == []


@pytest.mark.parametrize(("calls", "named"), [
    (["Conv2d.forward"], ["model_without_gradients"]), ([], []), (["CrossEntropyLoss.forward"], []),
])  # fmt: skip
def test_a_model_that_a_step_calls_without_gradients_is_named_by_the_call(calls, named):
    """Its lines are those of the forward pass as well, so they are not named as lines of the script's own."""
    lines = [
        TimedLine(part, "/home/me/net.py", 5, 4.0, calls, "return self.net(x)") for part in (OWN, "forward")
    ]
    asked = seen(parts={OWN: 4.0, "forward": 4.0, "backward": 8.0}, lines=lines)
    frames = [Frame("/home/me/train.py", at, at, 0, 16) for at in (9, 30)]
    script = msgspec.structs.replace(asked.script, sites=[Site("evaluation", frames)])
    found = findings(msgspec.structs.replace(asked, script=script))
    assert [each.cause for each in found] == named
    assert all(each.where == "train.py:9, called in train.py:30" for each in found)


def test_a_call_within_functions_is_said_with_the_line_of_the_loop_that_leads_to_it():
    """The loop is where its call and the backward pass part."""
    chain = {"evaluation": [16, 25, 33, 57, 90], "backward": [49, 90], "checkpoint": [60, 90], "step": []}
    sites = [
        Site(role, [Frame("/home/me/train.py", at, at, 0, 16) for at in places])
        for role, places in chain.items()
    ]
    asked = seen()
    asked = msgspec.structs.replace(asked, script=msgspec.structs.replace(asked.script, sites=sites))
    assert asked.site("evaluation") == "train.py:16, called in train.py:57"
    assert asked.site("checkpoint") == "train.py:60"
    assert asked.site("backward") == "train.py:49, called in train.py:90", "as before"
    assert asked.site("step") == asked.site("loader") == ""


@pytest.mark.parametrize(("is_summed", "again"), [(True, 12), (False, 0)])
def test_a_backward_pass_of_a_sum_goes_again_through_the_losses_before(is_summed, again, monkeypatch):
    """Of three losses, which have four operators each with the sum: 4 + 8 are visited for another time."""
    monkeypatch.setattr(hooks, "wrap", lambda place, function: None)
    script = Script(settings(), None)
    script.parts.looked_at.value = True
    inquiry = evidence.Inquiry(script)
    weight = torch.ones(4, requires_grad=True)
    for _ in range(2):  # steps share no operators
        total = torch.zeros(())
        for number in range(3):
            loss = (weight * number).exp().sum() + (total if is_summed else 0.0)
            total = loss
            inquiry.on_graph(loss, True)
        inquiry.on_steps([])
    assert inquiry.visits_again == 2 * again


@pytest.mark.parametrize("at", [9, 200])  # the number of the other line may begin with that of this one
def test_a_line_that_calls_a_layer_outside_of_the_model_is_no_model(at):
    """A module on a line of its own, next to an evaluation now and then, was the first sentence."""
    line = TimedLine(OWN, "/home/me/train.py", 20, 4.0, ["Softmax.forward"], "p = softmax(out)")
    asked = seen(parts={OWN: 4.0, "forward": 4.0, "backward": 8.0}, lines=[line])
    script = msgspec.structs.replace(
        asked.script, sites=[Site("evaluation", [Frame("/home/me/train.py", at, at, 0, 16)])]
    )
    found = findings(msgspec.structs.replace(asked, script=script))
    assert "model_without_gradients" not in [each.cause for each in found]


def test_a_graph_that_is_freed_after_its_pass_is_not_held_by_a_look(monkeypatch):
    """Operators of one's own may hold much memory: forty batches of a step were held until its end."""

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.big = torch.ones(1)
            held.append(weakref.ref(ctx.big))
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    held = []
    monkeypatch.setattr(hooks, "wrap", lambda place, function: None)
    script = Script(settings(), None)
    script.parts.looked_at.value = True
    inquiry = evidence.Inquiry(script)
    loss = Held.apply(torch.ones(4, requires_grad=True)).sum()
    inquiry.on_graph(loss, False)
    loss.backward()
    del loss
    gc.collect()
    assert held[0]() is None


@pytest.mark.parametrize(
    ("again", "role", "named"),
    [
        (0.6, "retain_graph", ["backward_again"]),
        (0.05, "retain_graph", []),
        (0.6, "backward", []),  # by a graph of gradients
    ],
)
def test_operators_that_a_step_goes_back_through_several_times_are_a_cause(again, role, named):
    """How long they take is not known: 1.2× was promised of a GAN that became 1.4 times as fast."""
    asked = seen(parts={"forward": 1.0, "backward": 3.0}, again=again)
    site = Site(role, [Frame("/home/me/train.py", 9, 9, 0, 16)])
    script = msgspec.structs.replace(asked.script, sites=[site])
    found = findings(msgspec.structs.replace(asked, script=script))
    assert [each.cause for each in found] == named
    assert all((each.where, each.share) == ("train.py:9", pytest.approx(0.45)) for each in found)
    assert all(each.gain is None and "60% of the operators" in each.evidence for each in found)
    assert all("fake.detach()" in each.change for each in found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("for x, y in loader:", "`for x, y in loader:` (data set: pil_loader, Resize.forward; a batch"),
        ("Image.open(file).load()", "`Image.open(file).load()` (data set; a batch"),
        (
            "return self.tf(x), y",
            "`return self.tf(x), y` (data set: RandomRotation.forward, Resize.forward; a batch",
        ),
    ],
)
def test_what_a_library_loads_has_its_functions_where_the_line_says_nothing_of_them(text, says):
    """Of a torchvision Compose, the line that calls all of its parts was all that was said."""
    first = "RandomRotation.forward" if "tf" in text else "pil_loader"
    line = TimedLine("data set", "/home/me/train.py", 7, 1.0, [first, "Resize.forward"], text)
    loading = Loading(batches=10, samples=80, seconds=1.0)
    data = DataFacts(kind="ImageFolder", workers=0)
    (found,) = findings(
        seen(parts={"data set": 1.0, "forward": 1.0}, lines=[line], loading=loading, data=data)
    )
    assert says in found.evidence


def test_many_operators_of_a_graph_that_grows_are_those_of_earlier_steps():
    parts = {"forward": 0.04, "backward": 0.06}
    found = findings(seen(parts=parts, nodes={7: 7000, 8: 8000, 9: 9000}))
    assert [each.cause for each in found] == ["graph_grows"]


def test_a_line_with_a_cause_is_not_said_to_be_a_line_of_the_forward_pass_as_well():
    line = TimedLine("forward", "/home/me/train.py", 26, 0.9, [], "np.quantile(x, 0.5)")
    parts = {"forward": 1.0, "backward": 0.2}
    found = findings(seen(parts=parts, lines=[line], in_hooks={"/home/me/train.py:26": 0.9}))
    assert [each.cause for each in found] == ["work_in_hooks"]


def test_rows_of_all_dense_embeddings_count_together():
    """Two tables of the same size: none of them has most of the weights."""
    model = torch.nn.Sequential(*(torch.nn.Embedding(100, 4) for _ in range(2)))
    for table in model:
        table.weight.grad = torch.zeros(100, 4)
        table.weight.grad[3] = 1.0
    rows = evidence.dense_rows(SimpleNamespace(modules=lambda: [*model], model=[model]))
    assert (rows.count, rows.touched, rows.of_weights) == (200, 2, 1.0)
    assert rows.names == ["0.weight", "1.weight"]


@pytest.mark.parametrize("gradient", [torch.zeros(400), torch.zeros(100, 4).to_sparse(), None])
def test_gradients_without_rows_of_their_own_are_left_alone(gradient):
    """As flat parts of several weights (FSDP) are, and sparse ones: such ranks ended with an error."""
    table = torch.nn.Embedding(100, 4)
    weight = SimpleNamespace(grad=gradient)
    model = SimpleNamespace(named_parameters=lambda: [("weight", weight)])
    modules = [SimpleNamespace(weight=weight, sparse=False, __class__=type(table))]
    assert evidence.dense_rows(SimpleNamespace(modules=lambda: modules, model=[model])) is None


def test_what_the_rows_of_an_embedding_cost_is_the_optimizer_s_part_for_those_that_are_not_touched():
    """How much faster sparse gradients are is not known: they have a cost, and save some of backward."""
    line = TimedLine("optimizer", "/home/me/train.py", 61, 6.0, ["Adam.step"], "optimizer.step()")
    rows = Rows(count=1000, touched=100, of_weights=0.8, names=["context.weight"])
    (found,) = findings(seen(parts={"optimizer": 6.0, "backward": 4.0}, lines=[line], rows=rows))
    assert (found.cause, found.where, found.share) == ("dense_embedding", "train.py:61", pytest.approx(0.432))
    assert "takes 60% of the run: it updates 1,000 rows of embeddings (context.weight)" in found.evidence
    assert found.expected("at most") == "about 1.76×"


def test_a_dense_embedding_costs_zeroing_and_its_backward_pass_as_well():
    """Removing it was said to gain about 1.69×; 3.9× was gained."""
    step = TimedLine("optimizer", "/home/me/train.py", 61, 4.0, ["Adam.step"], "optimizer.step()")
    zeroing = TimedLine(OWN, "/home/me/train.py", 59, 2.0, [], "optimizer.zero_grad()")
    table = TimedLine("forward and backward", "/home/me/train.py", 40, 2.0, [], "h = self.context(words)")
    other = TimedLine("forward and backward", "/home/me/train.py", 41, 1.0, [], "return self.head(h)")
    rows = Rows(count=1000, touched=100, of_weights=1.0, names=["context.weight"])
    parts = {"optimizer": 4.0, OWN: 2.0, "backward": 4.0}
    asked = seen(parts=parts, lines=[step, zeroing], operators=[table, other], rows=rows)
    found = next(each for each in findings(asked) if each.cause == "dense_embedding")
    assert found.share == pytest.approx(0.9 * 0.8)


WORDS = torch.arange(1, 21).repeat(2, 1)
WORDS[0, 5:] = WORDS[1, 10:] = 0


@pytest.mark.parametrize(
    "rows",
    [WORDS, WORDS.flip(1), WORDS.T, WORDS[..., None].float()],
    ids=["at the end", "at the start", "the time first", "frames"],
)
def test_what_fills_up_the_rows_of_an_input_is_padding(rows):
    assert max(inputs.paddings([rows])) == pytest.approx((0.625, 0.5, 20))


COPIED = torch.zeros(64, 30, dtype=torch.int64)  # some symbols, which are to be said again after a long wait
COPIED[:, :5] = torch.arange(64)[:, None] % 8 + 1
COPIED[:, -6] = 9


@pytest.mark.parametrize(
    "rows",
    [
        COPIED,
        (WORDS > 0).long(),
        WORDS[:, :12],
        torch.arange(1, 21).repeat(2, 1),
        torch.zeros(2, 3, 20, 20),
        torch.zeros(2, 20),
        torch.zeros(2, 20, 8),
        torch.zeros(2, 0, 8),
        torch.where(torch.arange(640).reshape(32, 20) % 7 > 0, 0, torch.arange(640).reshape(32, 20)),
        torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged),
    ],
    ids=[
        "waits",
        "a mask",
        "short rows",
        "full rows",
        "images",
        "features",
        "a first state",
        "nothing",
        "a table of categories",
        "rows of unlike lengths",
    ],
)
def test_what_is_alike_in_other_inputs_is_no_padding(rows):
    assert max(inputs.paddings([rows]), default=(0.0, 0.0, 0))[0] < 0.1


@pytest.mark.parametrize(
    ("padding", "code", "where", "share", "advises"),
    [
        ((0.9, 0.8, 192), "ids += [PAD] * (192 - len(ids))\n", "data.py:1", 0.64, "only to its longest row"),
        (
            (0.9, 0.8, 192),
            "np.pad(a)\nnp.pad(b)\n",
            "data.py:9",
            0.64,
            "only to its longest row",
        ),  # of the loader
        ((0.6, 0.1, 60), "", "data.py:9", 0.48, "put rows of similar length into a batch"),
        ((0.2, 0.2, 60), "", None, None, ""),
    ],
)
def test_padding_is_a_cause_with_the_only_line_that_pads(tmp_path, padding, code, where, share, advises):
    file = tmp_path / "data.py"
    file.write_text(code)
    site = Site("loader", [Frame(str(file), 9, 9, 0, 20)])
    asked = seen(parts={"forward": 4.0, "backward": 4.0, "optimizer": 2.0}, padding=padding)
    script = msgspec.structs.replace(asked.script, sites=[site])
    found = findings(msgspec.structs.replace(asked, script=script))
    assert [(each.cause, each.where, each.limit) for each in found] == [("padding", where, "about")] * bool(
        where
    )
    assert all(each.share == pytest.approx(share) and advises in each.change for each in found)


def test_gradients_of_rows_are_looked_at_before_the_script_clears_them(monkeypatch):
    """Some clear them before their next step begins, as at the top of a loop."""
    monkeypatch.setattr(hooks, "listen", lambda part, name: None)
    monkeypatch.setattr(hooks, "wrap", lambda *_: None)
    script = Script(settings(), None)
    inquiry = evidence.Inquiry(script)
    script.callbacks = [inquiry]
    script.parts.looked_at.value = True
    table = torch.nn.Embedding(10, 2)
    script.model.append(table)
    table(torch.tensor([3])).sum().backward()
    optimizer = torch.optim.SGD(table.parameters())
    Updates(script)._step(lambda optimizer: optimizer.zero_grad(), optimizer)
    assert (inquiry.rows.count, inquiry.rows.touched) == (10, 1)


@pytest.mark.parametrize(
    ("lines", "where", "share"),
    [
        ([TimedLine(BETWEEN, "/home/me/train.py", 31, 1.5, [], "while j in bought:")], "train.py:31", 0.375),
        ([], "", 0.5),
    ],
)
def test_much_time_between_steps_is_a_cause_and_has_its_line_if_that_was_seen(lines, where, share):
    run = Account(parts={"steps": 5.0, BETWEEN: 5.0})
    asked = seen(parts={"forward": 1.0, BETWEEN: 2.0}, lines=lines)
    (found,) = findings(msgspec.structs.replace(asked, run=run))
    assert (found.cause, found.where, found.share) == ("between_steps", where, pytest.approx(share))


def test_rows_that_are_fetched_one_by_one_are_not_a_slow_line_as_well():
    line = TimedLine(
        "data set", "/home/me/train.py", 29, 0.3, ["TensorDataset.__getitem__"], "for x in loader:"
    )
    loading = Loading(batches=10, samples=640, seconds=0.01)
    data = DataFacts(kind="Rows", workers=0, in_memory=["x"])
    parts = {"sampler": 0.1, "data set": 0.3, "forward": 0.6}
    (found,) = findings(seen(parts=parts, lines=[line], loading=loading, data=data))
    assert found.cause == "rows_one_by_one"


@pytest.mark.parametrize(("part", "counts"), [(OWN, True), ("looks", False), (EVALUATION, False)])
def test_garbage_of_a_look_at_the_graph_is_not_that_of_the_script(part, counts):
    script = SimpleNamespace(
        steps=SimpleNamespace(now=SimpleNamespace(spent={"start": 0.0})),
        calls=SimpleNamespace(under_way=lambda role: Site(role, [Frame("/home/me/train.py", 7, 7, 0, 9)])),
    )
    seconds = defaultdict(float)
    with evidence._collections(script, lambda: part, seconds):
        gc.collect()
    assert (sum(seconds.values()) > 0) == counts


def test_what_a_policy_computes_in_a_step_is_not_an_evaluation():
    """Nor is what looks take of anybody's time."""
    times, spot = dict.fromkeys([(OWN, ("act",))], 1.0), ("act",)
    evidence._add(times, {(EVALUATION, spot): 2.0, ("looks", spot): 9.0}, evaluates=False)
    assert times == {(OWN, spot): 3.0}


def test_the_script_s_own_code_of_a_step_that_is_long_is_between_steps():
    times, spot = dict.fromkeys([(BETWEEN, ("plot",)), ("forward", ("plot",))], 0.0), ("plot",)
    evidence._add(times, {(OWN, spot): 2.0, ("forward", spot): 1.0}, evaluates=False, own=BETWEEN)
    assert times == {(BETWEEN, spot): 2.0, ("forward", spot): 1.0}


def test_steps_are_looked_at_for_some_seconds_and_three_at_least(monkeypatch):
    """Each step's looks count as what that step was: a long one with something else in it is between steps."""
    now, spot = [0.0], ("train",)
    monkeypatch.setattr(evidence, "clock", lambda: now[0])
    sampler = SimpleNamespace(running=nullcontext, taken=lambda: {(OWN, spot): 1.0})
    own = SimpleNamespace(look=lambda: None)
    looking = evidence._take_looks(sampler, own, seconds=2.5)
    next(looking)
    for _ in range(2):
        now[0] += 1.0
        looking.send(ScriptStep(seconds=1.0))
    now[0] += 9.0
    with pytest.raises(StopIteration) as ended:
        looking.send(ScriptStep(seconds=9.0, marks={"new epoch"}))
    assert ended.value.value == ([1.0, 1.0, 9.0], {(OWN, spot): 2.0, (BETWEEN, spot): 1.0})
    brief = evidence._take_looks(sampler, own, seconds=0.0)
    next(brief)
    brief.send(ScriptStep(seconds=1.0))
    brief.send(ScriptStep(seconds=1.0))
    with pytest.raises(StopIteration):
        brief.send(ScriptStep(seconds=1.0))


@pytest.mark.parametrize(
    ("steps", "grew", "kept", "named"),
    [
        (20, 16e6, {"history": "train.py:9"}, ["memory_grows"]),  # few steps, as on a busy machine
        (2000, 16e6, {"history": "train.py:9"}, []),  # some numbers a step
        (20, 16e6, {}, []),
        (2000, 160e6, {}, ["memory_grows"]),
    ],
)
def test_memory_of_a_list_that_grows_is_told_by_its_step_and_not_by_how_many_there_were(
    steps, grew, kept, named
):
    first = 500_000_000
    memory = Growth(steps, first, first + int(grew / 2), first + int(grew), each=[int(grew / 2)] * 2)
    grown = msgspec.structs.replace(seen(kept=kept), memory=memory)
    assert [each.cause for each in findings(grown)] == named


@pytest.mark.parametrize(
    ("function", "seconds", "named"),
    [
        ("clip_grad_norm_", 4.0, []),
        ("clip_grad_norm_", 12.0, ["own_line"]),  # in a loop over the weights
        ("_clip_grads_with_norm_", 12.0, ["own_line"]),
        ("cross_entropy", 12.0, []),  # of many words
        ("CrossEntropyLoss.forward", 12.0, []),
    ],
)
def test_what_each_training_does_between_its_passes_is_a_cause_if_it_takes_longer_than_they_do(
    function, seconds, named
):
    line = TimedLine(OWN, "/home/me/train.py", 9, seconds, [function], "prepare()")
    asked = seen(parts={OWN: seconds, "forward": 3.0, "backward": 6.0}, lines=[line])
    plain = [StepTime(1, 1.0, [0.0, 0.3, 0.6, 0.0, 0.4])]
    run = Account(parts={"steps": 1.0}, plain=plain)
    assert [each.cause for each in findings(msgspec.structs.replace(asked, run=run))] == named


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("y = q @ k.transpose(-2, -1) @ v / n", "a @ (b @ c)"),
        ("d = ((a[:, None] - b[None]) ** 2).sum(-1)", "torch.cdist"),
        ("d = (a.unsqueeze(1) - b.unsqueeze(0)).norm(dim=-1)", "torch.cdist"),
        ("h = torch.tanh(x @ self.w + h @ self.u)", None),
        ("x = x * mask[:, None]", None),
    ],
)
def test_a_line_of_forward_that_computes_much_more_than_it_returns_is_a_cause_though_backward_takes_longer(
    text, remedy
):
    """Which is usual, and no reason to leave a matrix of all pairs unsaid; half of a forward pass is much."""
    for seconds, named in ((2.0, remedy), (1.4, None)):
        line = TimedLine("forward", "/home/me/train.py", 9, seconds, [], text)
        found = findings(seen(parts={"forward": 3.0, "backward": 6.0}, lines=[line]))
        assert [each.cause for each in found] == ["line_of_forward"] * bool(named)
        assert all(
            remedy in each.change and "not counting its backward pass" in each.evidence for each in found
        )


def test_a_whole_training_is_no_line_of_its_forward_pass():
    """`Trainer.train()` was told to make fewer calls on larger tensors, as Python's part of forward was long."""
    line = TimedLine("forward", "/home/me/train.py", 42, 5.0, ["Trainer.train"], "trainer.train()")
    asked = seen(parts={"forward": 5.0, "backward": 4.0}, lines=[line])
    for role, named in (("backward", []), ("forward", ["line_of_forward"])):
        site = Site(role, [Frame("/home/me/train.py", 42, 42, 0, 16)])
        script = msgspec.structs.replace(asked.script, sites=[site])
        found = findings(msgspec.structs.replace(asked, script=script))
        assert [each.cause for each in found] == named


@pytest.mark.parametrize("is_disturbed", [True, False])
def test_on_a_busy_machine_a_batch_is_said_to_be_timed_without_waits_for_a_core(is_disturbed):
    """It was said to take 178 ms, next to 179 ms a step in only one of its lines."""
    line = TimedLine("data set", "/home/me/train.py", 7, 1.0, [], "std = self.x.std(0)")
    loading = Loading(batches=10, samples=80, seconds=1.0)
    asked = seen(parts={"data set": 1.0, "forward": 1.0}, lines=[line], loading=loading)
    (found,) = findings(msgspec.structs.replace(asked, is_disturbed=is_disturbed))
    how = " without waits for a core" if is_disturbed else ""
    assert f"a batch takes 100 ms{how})" in found.evidence


@pytest.mark.parametrize(("compiled", "named"), [(0, ["line_of_forward"]), (2, [])])
def test_a_forward_pass_that_is_compiled_meanwhile_does_not_take_longer_because_of_a_line(compiled, named):
    line = TimedLine("forward", "/home/me/train.py", 9, 5.0, [], "loss = model(x).mean()")
    asked = seen(parts={"forward": 6.0, "backward": 3.0}, lines=[line])
    run = Account(parts={"steps": 1.0}, compiled=compiled)
    assert [each.cause for each in findings(msgspec.structs.replace(asked, run=run))] == named


@pytest.mark.parametrize(
    ("role", "seconds", "named"),
    [
        ("forward", 4.5, ["own_line"]),
        ("forward", 1.0, []),  # a small part of its own
        ("backward", 4.5, []),  # a whole training, as trainer.fit is
    ],
)
def test_a_line_that_calls_the_model_is_named_where_its_own_part_takes_much(role, seconds, named):
    """A Jacobian of 45% of the run was in the table, and not in what to try."""
    line = TimedLine(OWN, "/home/me/train.py", 42, seconds, ["jacobian"], "jac = jacobian(model, pos)")
    looked = Evidence(steps=10, parts={OWN: seconds, "forward": 10 - seconds}, lines=[line])
    script = ScriptFacts(
        device="cpu", facts=DeviceFacts(), sites=[Site(role, [Frame(line.file, 42, 42, 0, 9)])]
    )
    run = Account(parts={"steps": 1.0}, plain=[StepTime(1, 1.0, [0.0, 0.5, 0.0, 0.0, 0.5])])
    found = findings(Symptoms(script=script, run=run, evidence=looked, cores=2))
    assert [each.cause for each in found] == named


@pytest.mark.parametrize(
    ("text", "called", "says"),
    [
        ("bar.set_postfix(auc=auc(scores))", "", "make this line cheaper (in a loop: with fewer calls,"),
        ("p = np.array(self.priorities) ** 0.6", "", "keep it as an array or a tensor from step to step, if"),
        ("yield self.spectra[:, index].t()", "", "if it picks columns, keep them as rows"),
        (
            "cost = giou(out, want)",
            "in f, called 25 times a step from train.py:60",
            "make fewer calls, on larger",
        ),
        ("cost = giou(out, want)", "in f, called 4 times a step from train.py:60", "make this line cheaper"),
        (
            "costs = [giou(a, b) for a, b in pairs]",
            "",
            "make fewer calls, on larger tensors, or do it less often",
        ),
    ],
)
def test_fewer_calls_are_the_remedy_only_of_a_line_that_makes_many(text, called, says):
    times = 4 if "called 4" in called else 600 if called else 0
    line = TimedLine(OWN, "/home/me/train.py", 9, 4.0, [], text, called, times)
    run = Account(parts={"steps": 1.0}, plain=[StepTime(1, 1.0, [0.0, 0.6, 0.0, 0.0, 0.4])])
    looked = Evidence(steps=10, parts={OWN: 4.0, "forward": 6.0}, lines=[line])
    (found,) = findings(Symptoms(script=seen().script, run=run, evidence=looked, cores=2))
    assert found.cause == "own_line" and found.change.startswith(says)


def test_a_backward_pass_is_not_long_by_the_chance_of_few_looks():
    line = TimedLine(OWN, "/home/me/train.py", 9, 15 * EVERY_S, [], "sum(history)")
    parts = {OWN: line.seconds, "forward": EVERY_S, "backward": 4 * EVERY_S}
    run = Account(parts={"steps": 1.0}, plain=[StepTime(1, 1.0, [0.0, 0.2, 0.4, 0.0, 0.4])])
    asked = seen(parts=parts, lines=[line])
    assert [each.cause for each in findings(msgspec.structs.replace(asked, run=run))] == ["own_line"]


@pytest.mark.parametrize(
    ("backward_s", "own_s", "cause", "gain"),
    [(4.0, 1.75, "own_line", 1.25), (7.0, 2.5, "own_line_in_graph", None), (7.0, 10.0, "own_line", 2.0)],
)
def test_a_line_whose_backward_pass_may_take_long_has_no_bound(backward_s, own_s, cause, gain):
    """Gradients one by one, with graphs, were a quarter of a run that became 16 times as fast without."""
    line = TimedLine(OWN, "/home/me/train.py", 9, own_s, [], "rows = grad(out[i], x, create_graph=True)")
    run = Account(parts={"steps": 1.0}, plain=[StepTime(1, 1.0, [0.0, 0.5, 0.0, 0.0, 0.4])])
    looked = Evidence(
        steps=10,
        parts={OWN: line.seconds, "forward": 2.0, "backward": backward_s, "optimizer": 1.0},
        lines=[line],
    )
    (found,) = findings(Symptoms(script=seen().script, run=run, evidence=looked, cores=2))
    assert (found.cause, found.gain) == (cause, gain and pytest.approx(gain, rel=0.1))
    assert ("may go through what it computes" in found.evidence) == (gain is None)


@pytest.mark.parametrize("draws", [True, False])
def test_what_is_random_is_not_to_be_done_once_in_advance(draws):
    line = TimedLine("data set", "/home/me/train.py", 22, 6.0, [], "return self.aug(self.x[i]), self.y[i]")
    data = DataFacts(kind="Images", workers=0, draws=draws)
    (found,) = findings(seen(parts={"data set": 6.0, "forward": 4.0}, lines=[line], data=data))
    what = "what is not random" if draws else "it"
    assert found.change.startswith(f"do {what} once in advance, do it for a whole batch, or move it into")


def test_whether_the_data_set_draws_is_asked_where_it_loads():
    loader = torch.utils.data.DataLoader([1, 2])
    assert [data_facts(loader, 0, drawn).draws for drawn in (0, 1)] == [False, True]


def test_what_a_line_between_steps_makes_again_is_made_once_before_the_training():
    line = TimedLine(BETWEEN, "/home/me/train.py", 41, 4.0, ["loads"], "return DataLoader(Sensors(PATH))")
    run = Account(parts={"steps": 6.0, BETWEEN: 4.0})
    looked = Evidence(steps=10, parts={BETWEEN: 4.0, "forward": 6.0}, lines=[line])
    (found,) = findings(Symptoms(script=seen().script, run=run, evidence=looked, cores=2))
    assert found.change.endswith("do once, before the training") and "tensors" not in found.change


class Trainer:
    """What scripts save as a whole."""

    def __init__(self, rows):
        self.model = torch.nn.Linear(1000, 1000)
        self.optimizer = torch.optim.SGD(self.model.parameters(), momentum=0.9)
        self.images = torch.zeros(rows, 1000)
        self.model(self.images).sum().backward()
        self.optimizer.step()


@pytest.mark.parametrize("into", [str, io.BytesIO])
@pytest.mark.parametrize(("rows", "says"), [(4000, "writes up to 24.0 MB, although"), (100, "")])
def test_a_checkpoint_that_holds_the_data_set_is_told_by_what_it_writes(rows, says, into, tmp_path):
    """The remedy was only to save less often."""
    trainer = Trainer(rows)
    script = Script(settings(), SimpleNamespace(before=lambda write: None))
    script.model.append(trainer.model)
    script.updates.optimizers.append(trainer.optimizer)
    target = str(tmp_path / "last.pt") if into is str else io.BytesIO()
    questions._save(script, torch.save, trainer, target)
    facts = {"saved_bytes": script.saved_bytes, "state_bytes": questions._state_bytes(script)}
    told = msgspec.structs.replace(seen().script, **facts)
    run = Account(parts={"steps": 6.0, "checkpoints": 4.0})
    (found,) = findings(Symptoms(script=told, run=run, evidence=Evidence(steps=10), cores=2))
    assert says in found.evidence and ("only 8.01 MB" in found.evidence) == bool(says)
    remedy = "save model.state_dict() and what is needed to go on, not objects that hold data, or "
    assert found.change == f"{remedy if says else ''}save less often"


def test_the_share_of_checkpoints_is_that_of_the_table_of_the_run():
    """54% was said, of the steps with one compute thread, next to 39% in the table."""
    run = Account(parts={"steps": 6.0, "checkpoints": 4.0})
    looked = Evidence(steps=10, parts={"checkpoint": 6.0, "forward": 4.0}, one_thread=True)
    (found,) = findings(Symptoms(script=seen().script, run=run, evidence=looked, cores=2))
    assert found.share == 0.4
    assert (
        found.evidence == "40% of the run is spent in torch.save (60% of the steps with one compute thread)"
    )


@pytest.mark.parametrize(
    ("part", "others", "of_core", "kind"),
    [
        (lambda n: 0.01 + 0.002 * n, lambda n: 0.05, 1.0, "grows"),  # hooks that pile up
        (lambda n: 0.01 + 0.002 * n, lambda n: 0.05, 0.0, None),  # it needs no more of a core
        (lambda n: 0.05 + 0.002 * n, lambda n: 0.05 + 0.002 * n, 1.0, None),  # other programs begin
        (lambda n: 0.05 + 0.001 * n, lambda n: 0.05, 1.0, None),  # it may be chance
    ],
)
def test_on_a_busy_machine_a_part_grows_if_it_does_much_more_than_the_others(part, others, of_core, kind):
    steps = [
        StepTime(n, part(n) + others(n), [0.0, part(n), others(n), 0.0, 0.0], 0.02 + of_core * part(n))
        for n in range(60)
    ]
    trend, growing = trend_of(Account(parts={"steps": 1.0}, plain=steps), is_disturbed=True)
    assert (trend.kind if trend else None, growing) == (kind, "forward" if kind else "")
    assert trend_of(Account(parts={"steps": 1.0}, plain=steps))[0].kind == "grows"


@pytest.mark.parametrize(("growing", "says"), [("forward", True), ("", False)])
def test_hooks_that_pile_up_are_said_to_take_longer_and_longer(growing, says):
    hooked = seen(parts={"forward": 6.0, "backward": 4.0}, in_hooks={"/home/me/train.py:47": 5.0})
    (found,) = findings(msgspec.structs.replace(hooked, growing=growing))
    assert found.cause == "work_in_hooks" and ("longer and longer" in found.evidence) == says


def counted(in_the_step, marks=()):
    """How often the functions of this file were called in a step, by name."""
    counting = evidence._calls(lambda file: file)
    next(counting)
    in_the_step()
    with pytest.raises(StopIteration) as ended:
        counting.send(SimpleNamespace(marks=marks, seconds=1.0))
    return {
        name.rpartition(".")[2]: count
        for (file, name), count in ended.value.value[0].items()
        if file == __file__
    }


def computed(weights, in_the_step):
    """The times that a pass has computed one of these weights, and the part of the step."""
    counting = evidence._calls(lambda file: file, weights)
    next(counting)
    in_the_step()
    with pytest.raises(StopIteration) as ended:
        counting.send(SimpleNamespace(marks=(), seconds=1.0))
    return ended.value.value[1]


def test_a_weight_that_a_pass_computes_several_times_from_its_parametrization_is_named_by_its_line():
    """As in each step of time: the line alone does not say that it has a weight to compute."""
    model = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(4, 4))
    weights, x = {model.parametrizations.weight}, torch.ones(1, 4)
    times, part = computed(weights, lambda: sum(model(x) for _ in range(5)).sum().backward())
    assert times == 5 and 0.0 < part < 1.0
    micro_batches = lambda: [model(x).sum().backward() for _ in range(5)]
    assert computed(weights, micro_batches)[0] == 1, "each pass has its own"
    again = lambda: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    assert computed(weights, again)[0] == 1, "a backward pass computes it again on purpose"
    other = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(4, 4))
    assert computed({other.parametrizations.weight}, lambda: [model(x) for _ in range(5)])[0] == 0
    line = TimedLine("forward", "/home/me/cell.py", 14, 8.0, ["Linear.forward"], "self.rec(h)")
    parts = {"forward": 8.0, "backward": 8.0}
    (found,) = findings(seen(parts=parts, lines=[line], parametrized=(5, 0.4)))
    assert (found.cause, found.where, found.gain) == ("parametrized_again", "cell.py:14", None)
    assert "one forward pass computes a weight 5 times" in found.evidence
    assert findings(seen(parts=parts, lines=[line], parametrized=(1, 0.4))) == []


def smooth():
    pass


def resumed():
    yield from range(9)


def test_the_calls_of_a_plain_step_are_counted_in_every_python():
    called_often = lambda: [smooth() for _ in range(25)] + list(resumed())
    assert counted(called_often)["smooth"] == 25
    assert "resumed" not in counted(called_often), "a generator that goes on is not called again"
    assert counted(called_often, marks={"eval()"}) == {}
    assert sys.getprofile() is None


def test_a_profile_of_the_script_s_own_is_left_alone():
    own = lambda frame, event, about: None
    try:
        counted(lambda: sys.setprofile(own))
        assert sys.getprofile() is own, "begun in the step"
        with pytest.raises(StopIteration) as ended:
            next(evidence._calls(lambda file: file))
        assert ended.value.value == ({}, (0, 0.0)) and sys.getprofile() is own, "begun before"
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    ("spins", "is_first", "remedy"),
    [(True, True, "let it wait, as put and get"), (False, False, "in a process")],
)
def test_a_thread_that_spins_comes_first_and_one_that_computes_may_be_meant(
    spins, is_first, remedy, tmp_path
):
    file = tmp_path / "loader.py"
    file.write_text("while not self.buffer: pass\n")
    thread = BusyThread(f"{file}:1", 0.93, spins)
    told = findings(seen(parts={"forward": 1.0, "backward": 2.0}, busy_threads=[thread]))[0]
    assert (told.cause, told.where) == ("busy_thread", "loader.py:1")
    assert "93% of a core" in told.evidence and "`while not self.buffer: pass`" in told.evidence
    assert told.change.startswith((remedy, f"do this {remedy}"))
    assert told.is_worth_a_sentence == is_first


@pytest.mark.parametrize(
    ("start_s", "text", "said"),
    [
        (54.0, "ids.append(vocabulary.index(word))", 0.3),
        (20.0, "ids.append(vocabulary.index(word))", 0.15),
        (5.0, "ids.append(vocabulary.index(word))", None),
        (54.0, "import tensorflow", None),  # the table shows it, but nothing can be done at this line
    ],
)
def test_a_line_that_takes_long_before_the_first_step_is_told(start_s, text, said):
    line = TimedLine("before the first step", "/me/text.py", 20, start_s, text=text)
    run = Account(parts={"start": 69.0, "steps": 40.0}, start_lines=[line])
    told = [each for each in findings(msgspec.structs.replace(seen(), run=run)) if each.cause == "start"]
    assert [each.urgency for each in told] == ([] if said is None else [pytest.approx(said)])
    for each in told:
        assert each.where == "text.py:20" and "of the 69.0 s before the first step" in each.evidence


def test_a_teacher_s_gradients_are_named_once_with_their_line():
    line = TimedLine("backward", "/me/distill.py", 45, 1.5, text="t = self.teacher(x)")
    parts = {"forward": 1.0, "backward": 2.0}
    told = findings(seen(parts=parts, in_vain=[line], without_optimizer=0.99))
    assert [(each.cause, each.where) for each in told] == [("gradients_in_vain", "distill.py:45")]
    (other,) = findings(seen(parts=parts, without_optimizer=0.99))  # a step with too many operators
    assert other.cause == "gradients_without_optimizer"


OPTIMIZERS = [Site("optimizer", [Frame("/me/tune.py", at, at, 0, 9)]) for at in (12, 13)]
BACKWARD = Site("backward", [Frame("/me/tune.py", 30, 30, 0, 9)])


@pytest.mark.parametrize(
    ("of_weights", "backward_s", "sites", "where", "share"),
    [
        (0.9, 5.0, OPTIMIZERS[:1], "tune.py:12", 0.5 + 0.9 * 0.2),
        (0.9, 5.0, OPTIMIZERS, "tune.py:30", 0.5 + 0.9 * 0.2),  # it may be either of them
        (0.9, None, OPTIMIZERS[:1], "tune.py:12", None),  # operators were not timed
        (0.04, 0.1, OPTIMIZERS[:1], None, None),  # a small part
        (0.04, None, OPTIMIZERS[:1], None, None),
    ],
)
def test_weights_that_only_their_learning_rate_freezes_are_named(of_weights, backward_s, sites, where, share):
    rate = ZeroRate(11_000_000, of_weights, backward_s)
    asked = seen(parts={"forward": 2.0, "backward": 6.0, "optimizer": 2.0}, zero_rate=rate)
    script = msgspec.structs.replace(asked.script, sites=[*sites, BACKWARD])
    told = findings(msgspec.structs.replace(asked, script=script))
    assert [(each.cause, each.where) for each in told] == ([("zero_learning_rate", where)] if where else [])
    for each in told:
        assert each.share == (share and pytest.approx(share)) and each.weight > 0.5
        assert each.expected().startswith("at least about" if share else "measure to find out")
        assert each.evidence.startswith("11,000,000 weights (90% of those that have gradients)")
        assert each.evidence.endswith(
            "alone take 68% of the run" if share else "optimizer take 80% of the run"
        )
        assert "requires_grad_(False)" in each.change


@pytest.mark.parametrize(("of_workers", "archives"), [(True, ["store"]), (False, [])])
def test_an_archive_that_a_worker_has_opened_for_itself_is_named(of_workers, archives):
    line = TimedLine(
        "data set", "/me/data.py", 49, 4.0, ["NpzFile.__getitem__"], 'window(store["images"][i])'
    )
    loading = Loading(batches=10, samples=80, seconds=4.0, wall_s=4.0, lines=[line], archives=archives)
    facts = DataFacts(kind="Slices", workers=2)
    found = findings(seen(parts={"waiting": 4.0, "forward": 4.0}, loading=loading, data=facts))
    assert [each.cause for each in found] == (["array_of_archive"] if archives else ["loading_line"])


def transform(name, seconds, before=192, after=192):
    return Transform(name, 10, seconds, (before, before), 10 * before**2, 10 * after**2)


def late(*transforms, wall_s=4.0, workers=0):
    line = TimedLine("data set", "/me/data.py", 39, 3.9, ["ColorJitter.forward"], "return self.tf(img)")
    pipelines = [Pipeline("/me/data.py:39", [*transforms])]
    loading = Loading(batches=10, samples=80, seconds=wall_s, wall_s=wall_s, pipelines=pipelines)
    loading.timed_s = 2.0  # some batches of all
    lines, parts = [line], {"data set": 4.0, "forward": 4.0}
    if workers:
        loading.lines, lines, parts = lines, [], {"waiting": 4.0, "forward": 4.0}
    facts = DataFacts(kind="Tiles", workers=workers)
    return findings(seen(parts=parts, lines=lines, loading=loading, data=facts))


CROP = transform("RandomCrop", 0.1, 192, 64)
FLIP, NORMALIZE = transform("RandomHorizontalFlip", 0.01), transform("Normalize", 0.02, 64, 64)


def test_transforms_of_images_that_a_later_one_shrinks_are_named_with_it():
    blur, jitter = transform("GaussianBlur", 0.6), transform("ColorJitter", 1.0)
    (found,) = late(FLIP, blur, jitter, CROP, NORMALIZE)
    assert (found.cause, found.where) == ("shrinks_late", "data.py:39")
    assert found.evidence == (
        "40% of the run is spent in ColorJitter and GaussianBlur (80% of loading), on images of 192×192, "
        "of which RandomCrop then keeps 11%"
    )
    assert found.change.startswith("put RandomCrop first; it then trains slightly differently")
    assert found.gain == pytest.approx(1 / (1 - 0.4)), "at most all of it"
    (of_worker,) = late(FLIP, blur, jitter, CROP, NORMALIZE, workers=1)
    assert (of_worker.share, of_worker.gain) == (found.share, None), "its core makes the steps faster, too"
    unlike = msgspec.structs.replace(CROP, size=(96, 96))  # the first of them
    (found,) = late(*(msgspec.structs.replace(each, size=(96, 96)) for each in (blur, jitter)), unlike)
    assert "on images of 96×96 and other sizes, of which" in found.evidence


@pytest.mark.parametrize(
    ("transforms", "change"),
    [
        ([transform("ToTensor", 1.5), CROP], "put RandomCrop first"),  # the same values, in less time
        (
            [transform("Pad", 0.1, 180, 192), transform("ColorJitter", 1.5), CROP],
            "put RandomCrop before ColorJitter; it then trains slightly differently, as at the borders of images",
        ),
        (
            [FLIP, transform("RandomRotation", 1.5), transform("Resize", 0.1, 192, 64)],
            "put Resize first; it then trains slightly differently, as at the borders of images",
        ),
    ],
)
def test_a_shrink_is_moved_as_far_as_images_have_the_same_size(transforms, change):
    (found,) = late(*transforms)
    assert found.change == change


@pytest.mark.parametrize(
    "transforms",
    [
        [CROP, transform("ColorJitter", 1.6, 64, 64)],
        [transform("ColorJitter", 1.6), transform("RandomCrop", 0.1, 192, 160)],  # keeps most
        [transform("ColorJitter", 0.5), CROP],  # little of loading
        [transform("ColorJitter", 1.6), transform("Lambda", 0.1, 192, 24)],  # may only change the layout
        [transform("Resize", 1.6, 400, 192), CROP],  # a crop before it would show another part
        [Transform("Lambda", 10, 1.6), CROP],  # of something that is not known
        [*(transform(f"Short{number}", 0.09) for number in range(20)), CROP],
    ],
)
def test_transforms_that_must_or_may_be_where_they_are_are_no_cause(transforms):
    assert [each.cause for each in late(*transforms)] == ["loading_line"]


def test_transforms_of_a_loading_that_takes_little_are_no_cause():
    assert late(transform("ColorJitter", 1.6), CROP, wall_s=0.1, workers=1) == []


@pytest.mark.parametrize("part", [OWN, "data set"])
def test_the_bound_of_a_line_holds_if_its_function_goes_with_it(part):
    """Boxes that were matched one by one: the run became 3.5 times as fast, the line is 56% of it."""
    line = TimedLine(part, "/me/loss.py", 35, 5.6, text="overlaps[g, k] = iou(box, anchor)")
    line = msgspec.structs.replace(line, around="Loss.match", around_s=7.4)
    run = Account(parts={"steps": 1.0}, plain=[StepTime(1, 1.0, [0.0, 0.2, 0.0, 0.0, 0.8])])
    looked = Evidence(steps=10, parts={part: 7.5, "forward": 2.5}, lines=[line])
    (found,) = findings(Symptoms(script=seen().script, run=run, evidence=looked, cores=2))
    assert (found.around, found.share) == ("Loss.match", pytest.approx(0.56))
    assert found.gain == pytest.approx(1 / (1 - 0.74))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('log.debug(f"step {step} grads {grads}")', "give the values to debug() as arguments"),
        ("y = np.fft.irfft(np.fft.rfft(x, n) * spectrum, n)", "choose a length without large prime factors"),
    ],
)
def test_a_line_that_is_known_to_be_slow_has_its_own_remedy(text, says):
    line = TimedLine(OWN, "/home/me/train.py", 9, 4.0, [], text)
    run = Account(parts={"steps": 1.0}, plain=[StepTime(1, 1.0, [0.0, 0.6, 0.0, 0.0, 0.4])])
    looked = Evidence(steps=10, parts={OWN: 4.0, "forward": 6.0}, lines=[line])
    (found,) = findings(Symptoms(script=seen().script, run=run, evidence=looked, cores=2))
    assert found.cause == "own_line" and found.change.startswith(says)


@pytest.mark.parametrize(
    ("optimizer", "says"), [("Adagrad", "Adagrad takes its gradients"), ("Adam", "SparseAdam")]
)
def test_a_dense_embedding_has_the_remedy_of_its_optimizer(optimizer, says):
    line = TimedLine("optimizer", "/me/train.py", 53, 6.0, text="opt.step()")
    rows = Rows(count=1_000_000, touched=13_000, of_weights=0.9)
    asked = seen(parts={"optimizer": 6.0, "backward": 4.0}, lines=[line], rows=rows)
    script = msgspec.structs.replace(asked.script, optimizers=[optimizer])
    found = findings(msgspec.structs.replace(asked, script=script))[0]
    assert found.cause == "dense_embedding" and says in found.change


def test_gradients_that_are_thrown_away_are_a_waste_with_the_line_that_computes_for_them():
    line = TimedLine("backward", "/me/gan.py", 71, 1.5, text="fake = self.G(z)")
    told = findings(seen(parts={"forward": 1.0, "backward": 2.0}, in_vain=[line]))[0]
    assert (told.cause, told.where, told.kind) == ("gradients_in_vain", "gan.py:71", "waste")
    assert "is the backward pass of what `fake = self.G(z)` computes" in told.evidence
    assert told.expected() == "measure to find out", "the forward pass needs less, too"


@pytest.mark.parametrize(("seconds", "is_told"), [(4.5, True), (1.0, False)])
def test_results_that_the_loss_does_not_need_are_named_if_they_take_long(seconds, is_told):
    line = TimedLine("forward and backward", "/me/model.py", 19, seconds, text="scores = self.out(h)")
    parts = {"forward": 4.0, "backward": 5.0}
    told = findings(seen(parts=parts, unused=[Unused(line, 0.04, "model.py:21")]))
    assert [each.cause for each in told] == ["results_not_used"] * is_told
    for each in told:
        assert (each.where, each.kind, each.share) == ("model.py:19", "waste", pytest.approx(0.5, rel=0.1))
        assert (
            "`scores = self.out(h)` to which no gradient comes back: model.py:21 selects 4% of"
            in each.evidence
        )


@pytest.mark.parametrize(
    ("other", "is_told"),
    [
        ("x = x + 1", True),
        ("hard = scores.topk(16).indices", False),  # they tell what to select
        ("loss = (scores.detach() - little).square()", False),
    ],
)
def test_results_that_another_line_uses_are_not_said_to_be_without_use(other, is_told, tmp_path):
    lines = ["def forward(q, docs, x):", "scores = q @ docs", other, "return scores[:, 0]"]
    file = tmp_path / "model.py"
    file.write_text("\n    ".join(lines) + "\n\n\ndef other(scores):\n    return scores\n")
    line = TimedLine("forward and backward", str(file), 2, 4.5, text=lines[1])
    told = findings(seen(parts={"forward": 4.0, "backward": 5.0}, unused=[Unused(line, 0.04, "model.py:4")]))
    assert [each.cause for each in told] == ["results_not_used"] * is_told


@pytest.mark.parametrize(
    ("zeros", "text", "is_told"),
    [
        ((4000, 4000, 0.002), "return adj @ support + self.bias", True),
        ((4000, 4000, 0.002), "x = x.sin() * y", False),  # no product
        (None, "return adj @ support + self.bias", False),
    ],
)
def test_a_dense_matrix_of_zeros_is_told_where_a_product_takes_most(zeros, text, is_told):
    line = TimedLine("forward and backward", "/me/gcn.py", 45, 2.5, text=text)
    told = findings(seen(parts={"forward": 1.0, "backward": 2.0}, operators=[line], zeros=zeros))
    assert [each.where for each in told if each.cause == "mostly_zeros"] == ["gcn.py:45"] * is_told
    assert all("4000 × 4000 of which 0.20% is not zero" in each.evidence for each in told[:1] if is_told)


@pytest.mark.parametrize(
    ("matrix", "found"),
    [
        (torch.eye(600), (600, 600, pytest.approx(1 / 600))),
        (torch.ones(600, 600).triu(), None),  # a mask
        (torch.eye(100), None),  # small
        (torch.eye(600).to_sparse(), None),
        (torch.eye(600, dtype=torch.int64), None),
        (torch.eye(600).to(torch.float8_e4m3fn), None),  # of which torch counts nothing
        (torch.eye(600, device="meta"), None),
    ],
)
def test_matrices_that_are_nearly_all_zeros_are_large_and_dense(matrix, found):
    assert next(inputs.mostly_zeros([matrix]), None) == found


def test_what_is_within_a_function_transform_is_not_looked_at():
    """Its numbers cannot be asked for: per-sample gradients ended in an error of torch."""
    seen_there = []

    def loss(x):
        seen_there.append([*inputs.paddings(x), *inputs.mostly_zeros([x])])
        return x.sum()

    torch.func.vmap(torch.func.grad(loss))(torch.zeros(2, 20, 20, 3))
    assert seen_there == [[]]


@pytest.mark.parametrize(
    ("parts", "lasts"),
    [([0.002, 0.002], True), ([0.002, 0.004], False), ([0.002, None], False), ([0.002], False)],
)
def test_a_matrix_of_zeros_stays_one(parts, lasts, monkeypatch):
    zeros = iter([(4000, 4000, part) if part else None for part in parts])
    monkeypatch.setattr(inputs, "mostly_zeros", lambda matrices: filter(None, [next(zeros)]))
    found = inputs.ZerosFound()
    for step in range(len(parts)):
        found.look(step, [])
        found.look(step, [])  # a step is looked at once
    assert bool(found.lasting()) == lasts


def test_what_a_look_raises_is_noted_and_the_script_goes_on(monkeypatch):
    monkeypatch.setattr(hooks, "wrap", lambda *_: None)
    script = Script(settings(), None)
    inquiry = evidence.Inquiry(script)
    monkeypatch.setattr(inquiry, "_look_at_input", lambda given: 1 / 0)
    script.parts.looked_at.value = True
    inquiry.on_input(torch.ones(3))
    assert "a look at the script failed" in script.notes[0] and "ZeroDivisionError" in script.notes[0]


def test_the_bound_of_a_line_between_steps_is_that_of_its_function():
    line = TimedLine(BETWEEN, "/me/data.py", 34, 4.0, text="seen = rows[rows[:, 0] == u]")
    line = msgspec.structs.replace(line, around="NCFData.ng_sample", around_s=7.0)
    run = Account(parts={"steps": 2.0, BETWEEN: 8.0})
    looked = Evidence(steps=10, parts={BETWEEN: 7.0, "forward": 3.0}, lines=[line])
    (found,) = findings(Symptoms(script=seen().script, run=run, evidence=looked, cores=2))
    assert (found.cause, found.around) == ("between_steps", "NCFData.ng_sample")
    assert (found.share, found.gain) == (pytest.approx(0.8 * 4 / 7), pytest.approx(5.0))


def test_a_mapping_that_loads_what_it_is_asked_for_is_not_read_through():
    class Lazy(collections.abc.Mapping):
        def __len__(self):
            return 2

        def __iter__(self):
            return iter("ab")

        def __getitem__(self, name):
            raise FileNotFoundError(name)

    rows = SimpleNamespace(images=Lazy())
    assert data_facts(SimpleNamespace(dataset=rows), 0).in_memory == []


def test_a_weight_that_only_a_later_optimizer_takes_or_only_in_some_rows_is_trained():
    held, rows, idle = (torch.nn.Parameter(torch.ones(300, 4)) for _ in range(3))
    for weight in (held, rows, idle):
        weight.grad = torch.ones_like(weight)
    updates = SimpleNamespace(held={id(held)})
    script = SimpleNamespace(parameters=lambda: [held, rows, idle], updates=updates, groups=list)
    before = weights.sums(script)
    rows.data[200] += 1.0  # by the script's own code; none of its first rows
    assert weights.untrained(script, before) == {id(idle)}
