"""Causes, each where it is recognised and just where it is not, and what is said of them in each state."""

import contextlib
import tomllib
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from perfkit.additions.advice.finding import Finding
from perfkit.additions.scripts import causes, evidence, hooks, report
from perfkit.additions.scripts.advice import findings
from perfkit.additions.scripts.batches import BatchLedger
from perfkit.additions.scripts.loaders import Loaders, data_facts
from perfkit.additions.scripts.messages import (
    OWN,
    Account,
    DataFacts,
    Evidence,
    Frame,
    Growth,
    Loading,
    ScriptFacts,
    Site,
    Symptoms,
)
from perfkit.additions.scripts.script import Script
from perfkit.additions.scripts.training import Updates
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.trend import Trend
from perfkit.errors import RunFailed
from perfkit.results.stats import Ratio
from perfkit.worker.messages import DeviceFacts
from tests.support.settings import settings

FOLDER = Path(causes.__file__).parent
STEPS = Account(parts={"steps": 1.0})


def seen(run=STEPS, memory=None, printed=(), **known):
    script = ScriptFacts(device="cpu", facts=DeviceFacts())
    looked = Evidence(steps=10, **known)
    return Symptoms(script=script, run=run, evidence=looked, cores=2, memory=memory, printed=[*printed])


def a_script():
    return Script(settings(), None)


@pytest.mark.parametrize("table", sorted(FOLDER.glob("*.toml")), ids=lambda table: table.stem)
def test_each_cause_of_a_table_is_recognised_by_the_module_next_to_it(table):
    """Modes are known by the name under which `evidence` asks torch for them."""
    code = table.with_suffix(".py").read_text() + Path(evidence.__file__).read_text()
    rows = tomllib.loads(table.read_text())
    named = {*rows} - {"limits", *rows.get("limits", {}).get("called", {}).values()}
    assert len(named) > 5 and {name for name in named if f'"{name}"' not in code} == set()


@pytest.mark.parametrize(
    ("how", "between", "unused"),
    [
        ({"create_graph": True}, lambda updates: None, 1),
        ({"create_graph": True}, lambda updates: updates._grad(lambda: None), 0),  # it goes through the graph
        ({}, lambda updates: None, 0),
    ],
)
def test_a_graph_of_the_gradients_is_unused_if_nothing_goes_through_it_until_the_step_ends(
    how, between, unused, monkeypatch
):
    monkeypatch.setattr(hooks, "listen", lambda part, name: None)
    script = a_script()
    updates = Updates(script)
    script.set_callbacks(updates)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    for _ in range(2):  # the first ends with the second
        updates._backward(lambda roots, **how: None, torch.ones(1), **how)
        between(updates)
        updates._step(lambda optimizer: None, optimizer)
    assert script.updates.unused_graphs == unused


@pytest.mark.parametrize(("unused", "named"), [(3, True), (2, False)])
def test_a_graph_of_the_gradients_is_a_cause_if_most_steps_have_one(unused, named):
    script = a_script()
    script.steps.count = 4
    script.updates.unused_graphs = unused
    assert ("graph_of_gradients" in dict(evidence._modes(script))) == named


@pytest.mark.parametrize(("seconds", "named"), [(1.0, ["work_in_hooks"]), (0.05, [])])
def test_work_in_hooks_is_a_cause_if_it_takes_long(seconds, named):
    found = findings(seen(parts={"forward": 2.0}, in_hooks={"/home/me/train.py:4": seconds}))
    assert [each.cause for each in found] == named
    assert all((each.where, each.share) == ("train.py:4", pytest.approx(0.5)) for each in found)


def test_memory_that_the_first_steps_take_is_no_growth():
    grown = {"kept": {"history": "train.py:9"}}
    after = {
        steps: Growth(steps, 500_000_000, 700_000_000, 900_000_000, each=[200_000_000, 200_000_000])
        for steps in (10, 50)
    }
    assert [each.cause for each in findings(seen(memory=after[50], **grown))] == ["memory_grows"]
    assert findings(seen(memory=after[10], **grown)) == []


@pytest.mark.parametrize(
    ("each", "named"),
    [
        ([390, 10], []),
        ([10, 390], []),
        ([200, 200], ["memory_grows"]),
        ([20, 0, 380, 0], []),  # the first evaluation
        ([130, 0, 140, 130], ["memory_grows"]),  # each evaluation
    ],
)
def test_memory_is_said_to_grow_if_it_does_in_most_parts_of_the_time(each, named):
    """185 MB at its start, for caches, were the first sentence on a healthy script."""
    each = [1_000_000 * part for part in each]
    memory = Growth(50, 500_000_000, 700_000_000, 900_000_000, each=each)
    assert [each.cause for each in findings(seen(memory=memory))] == named


@pytest.mark.parametrize(("line", "where", "says"), [
    (TimedLine("evaluation", "/home/me/train.py", 22, 6.0, [], "best += rank(scores)"), "train.py:22", "`best += rank(scores)`"),
    (TimedLine("evaluation", "/home/me/train.py", 22, 6.0, ["Net.forward"], "model(x)"), "train.py:7", ""),
    (TimedLine("evaluation", "/home/me/train.py", 22, 2.0, [], "best += rank(scores)"), "train.py:7", ""),
    (TimedLine("evaluation", "/home/me/train.py", 22, 6.0, ["pil_loader"], "for x in test:"), "train.py:7", "pil_loader"),
])  # fmt: skip
def test_an_evaluation_is_said_with_the_line_that_has_most_of_it(line, where, says):
    run = Account(parts={"steps": 2.0, "evaluation": 8.0}, steps=40, evaluations=4)
    script = msgspec.structs.replace(
        seen().script, sites=[Site("evaluation", [Frame("/home/me/train.py", 7, 7, 0, 9)])]
    )
    asked = seen(run, parts={"evaluation": 8.0}, lines=[line])
    (found,) = findings(msgspec.structs.replace(asked, script=script))
    assert (
        found.where == where and ("most of it in" in found.evidence) == bool(says) and says in found.evidence
    )


def test_an_evaluation_is_told_of_no_grad_only_where_gradients_are_on():
    asked = seen(Account(parts={"steps": 2.0, "evaluation": 8.0}, steps=40, evaluations=4))
    for role, is_on in (("evaluation", False), ("evaluation with gradients", True)):
        sites = [Site(role, [Frame("/home/me/train.py", 7, 7, 0, 9)])]
        script = msgspec.structs.replace(asked.script, sites=sites)
        found = findings(msgspec.structs.replace(asked, script=script))
        (change,) = [each.change for each in found if each.cause == "evaluation"]
        assert ("under torch.no_grad()" in change) == is_on


def test_the_start_of_an_epoch_is_said_with_the_line_of_the_sampler_or_the_data_set():
    run = Account(parts={"start": 1.0, "steps": 8.0, "starts of epochs": 2.0}, steps=40, epochs=[1, 14, 27])
    line = TimedLine("start", "/home/me/data.py", 20, 1.5, [], "order = sorted(rows)")
    asked = seen(run, parts={"start": 2.0}, lines=[line], data=DataFacts(kind="Rows", workers=0))
    (found,) = findings(asked)
    assert found.where == "data.py:20" and "each), most of it in `order = sorted(rows)`" in found.evidence


def test_lists_that_grow_are_found_in_dicts_and_objects_and_so_are_dicts(tmp_path, monkeypatch):
    file = tmp_path / "train.py"
    file.write_text("""
class Trainer:
    def __init__(self):
        self.kept = []
history = {"loss": [], "name": "a run"}
outputs = {}
trainer = Trainer()
def step(number):
    history["loss"].append(tensor())
    trainer.kept.append(tensor())
    outputs[number] = tensor().detach()
def look():
    return [*containers()]
""")
    module = {"containers": evidence._containers, "tensor": lambda: torch.ones(1, requires_grad=True) * 2}
    module |= {"__name__": "a_script"}
    monkeypatch.setitem(evidence.sys.modules, "a_script", SimpleNamespace(__file__=str(file)))
    exec(compile(file.read_text(), str(file), "exec"), module)
    sizes = {id(held): len(held) for _, held, _ in module["look"]()}
    for number in range(3):
        module["step"](number)
    known = module["look"]()
    monkeypatch.setattr(evidence, "_containers", lambda: known)
    script = SimpleNamespace(settings=settings())
    grown = list(evidence._grown(script, sizes))
    kept = {name: where for name, where, has_graphs in grown if has_graphs}
    without = {name: where for name, where, has_graphs in grown if not has_graphs}
    assert kept == {"history['loss']": "train.py:9", "trainer.kept": "train.py:10"}
    assert {"outputs": "train.py:11"}.items() <= without.items()


def test_workers_that_go_on_are_not_said_to_be_started_in_each_epoch():
    run = Account(parts={"start": 1.0, "steps": 8.0, "starts of epochs": 2.0}, steps=40, epochs=[1, 14, 27])
    data = DataFacts(kind="Files", workers=1)
    (restarted,) = findings(seen(run, data=data))
    assert restarted.cause == "workers_restart" and restarted.evidence.endswith(
        "because each starts 1 worker"
    )
    (slow,) = findings(seen(run, data=msgspec.structs.replace(data, keeps_workers=True)))
    assert slow.cause == "epochs_start"


@pytest.mark.parametrize(("loads", "named"), [(4.0, ["loading_line"]), (0.0, ["epochs_start"])])
def test_a_line_that_loads_each_batch_is_no_cost_of_an_epoch_s_start(loads, named):
    """Of an epoch of 16 slow batches few were observed, and its first one was said to be a fifth of the run."""
    run = Account(parts={"steps": 8.0, "starts of epochs": 2.0}, steps=18, epochs=[1, 17])
    line = TimedLine("start", "/home/me/train.py", 17, 2.0, [], "return sorted(rows)")
    in_batches = msgspec.structs.replace(line, part="data set", seconds=loads)
    parts = {"start": 2.0, "data set": loads, "forward": 8.0 - loads}
    told = findings(
        seen(
            run,
            data=DataFacts(kind="Rows", workers=0),
            parts=parts,
            lines=[line, in_batches] if loads else [line],
        )
    )
    assert [(each.cause, each.where) for each in told] == [(cause, "train.py:17") for cause in named]


def test_a_new_epoch_in_each_step_is_no_mistake_where_an_epoch_is_one_batch():
    run = Account(parts={"steps": 2.0, "starts of epochs": 8.0}, steps=40, epochs=[*range(1, 41)])
    data = DataFacts(kind="Files", workers=0, batches=2)
    line = TimedLine("start", "/home/me/train.py", 20, 8.0, ["Queue.get"], "x = next(iter(loader))")
    (mistake,) = findings(seen(run, data=data, parts={"start": 8.0}, lines=[line]))
    assert (mistake.cause, mistake.where) == ("epoch_in_each_step", "train.py:20")
    (meant,) = findings(seen(run, data=msgspec.structs.replace(data, batches=1)))
    assert (meant.cause, meant.change) == (
        "epochs_start",
        "an epoch is one batch: keep it, and train on it again",
    )
    (restarted,) = findings(seen(run, data=msgspec.structs.replace(data, batches=1, workers=1)))
    assert restarted.cause == "workers_restart"


@pytest.mark.parametrize(("rows", "batches"), [([1], 1), ([1, 2, 3], 2)])
def test_how_many_batches_an_epoch_has(rows, batches):
    assert data_facts(torch.utils.data.DataLoader(rows, batch_size=2), 0).batches == batches


def test_an_evaluation_that_has_gradients_throughout_has_its_line():
    run = Account(parts={"steps": 2.0, "evaluation": 8.0}, steps=40, evaluations=4)
    site = Site("evaluation with gradients", [Frame("/home/me/train.py", 7, 7, 0, 9)])
    script = ScriptFacts(device="cpu", facts=DeviceFacts(), sites=[site])
    places = {each.cause: each.where for each in findings(msgspec.structs.replace(seen(run), script=script))}
    assert places["evaluation"] == "train.py:7"


def test_a_loader_keeps_its_workers_if_an_iterator_of_it_begins_again():
    loaders = Loaders.__new__(Loaders)
    loaders._script = a_script()
    loaders._ledger = BatchLedger()
    iterator = SimpleNamespace()
    loader = torch.utils.data.DataLoader([1])

    def begin():
        loaders._begin_epoch(lambda iterator, loader: None, iterator, loader)
        return data_facts(iterator._perfkit.loader, 0).keeps_workers

    assert not begin()
    assert not begin(), "torch resets a new iterator before its first batch"
    iterator._perfkit.has_begun = True
    assert begin()


@pytest.mark.parametrize(
    ("known", "says", "advises"),
    [
        ({"shapes": 7, "graphs": 6}, "6 graphs for 7 shapes of the input; past its limit", "pad the inputs"),
        (
            {"shapes": 1, "graphs": 1},
            "1 graph for 1 shape of the input; past its limit",
            "TORCH_LOGS=recompiles",
        ),
    ],
)
def test_inputs_are_padded_only_if_they_have_many_shapes(known, says, advises):
    (found,) = findings(seen(printed=["hit config.recompile_limit"], **known))
    assert says in found.evidence and advises in found.change


@pytest.mark.parametrize(
    ("workers", "advises"), [(0, "or move it into loader workers"), (2, "or add loader workers")]
)
def test_a_line_that_loads_is_moved_to_workers_or_to_more_of_them(workers, advises):
    line = TimedLine("data set", "/home/me/data.py", 12, 1.0, [], "decode(file)")
    loading = Loading(batches=10, samples=80, seconds=2.0, lines=[line])
    data = DataFacts(kind="Texts", workers=workers)
    (found,) = findings(seen(parts={"waiting": 1.0, "forward": 3.0}, loading=loading, data=data))
    assert found.change.endswith(advises)


@pytest.mark.parametrize(
    ("waits_s", "batches", "workers", "named"),
    [
        (2.0, 40, 4, ["workers_cost_more"]),
        (2.0, 10, 4, []),  # so few may have been made before
        (2.0, 40, 0, []),
        (0.7, 40, 4, []),  # about as long as in the training's own process
        (0.25, 40, 4, []),  # less: they save something
    ],
)
def test_workers_cost_more_than_none_if_batches_are_waited_for_longer_than_they_take_to_make(
    waits_s, batches, workers, named
):
    """To make one takes 12.5 ms, to wait for one up to 50 ms: a half of a run whose steps take as long."""
    loading = Loading(batches=batches, samples=8 * batches, seconds=0.1, wall_s=batches / 80)
    data = DataFacts(kind="Rows", workers=workers)
    found = findings(seen(parts={"waiting": waits_s, "forward": 2.0}, loading=loading, data=data))
    assert [each.cause for each in found] == named
    for each in found:
        assert each.share == pytest.approx(0.375) and each.gain is None
        assert "a batch is made in 12.5 ms, and waited for 50.0 ms" in each.evidence


def test_rows_that_workers_fetch_one_by_one_have_the_share_of_making_batches_alone():
    """What is left of the wait is for handing them over, which fetching a batch at once would not save."""
    loading = Loading(batches=40, samples=640, seconds=0.02, wall_s=1.0)
    data = DataFacts(kind="Rows", workers=2, in_memory=["x"])
    found = findings(seen(parts={"waiting": 3.0, "forward": 3.0}, loading=loading, data=data))
    shares = {each.cause: each.share for each in found}
    assert shares == {"workers_cost_more": pytest.approx(1 / 3), "rows_one_by_one": pytest.approx(1 / 6)}


@pytest.mark.parametrize(("text", "others"), [
    ("return torch.tensor(self.load(i))", "look at train.py:45, too"),
    ("return torch.from_numpy(self.load(i))", ""),
])  # fmt: skip
def test_torch_warns_of_a_tensor_from_a_list_only_where_the_first_one_is(text, others):
    """What is left without that line was given as a bound, although another line did the same."""
    texts = {41: "x = torch.tensor(frames)", 45: text}
    lines = [
        TimedLine("data set", "/home/me/train.py", at, 3.0, [], of_line) for at, of_line in texts.items()
    ]
    parts = {"data set": 6.0, "forward": 4.0}
    printed = [
        "/home/me/train.py:41: UserWarning: Creating a tensor from a list of numpy.ndarrays is extremely slow."
    ]
    found = findings(seen(parts=parts, lines=lines, printed=printed))[0]
    assert (found.cause, found.where, found.share) == ("tensor_from_list", "train.py:41", pytest.approx(0.3))
    assert found.change.endswith(others or "torch.from_numpy") and bool(found.gain) != bool(others)


def test_a_share_of_nothing_is_not_said():
    warning = (
        "/home/me/train.py:9: UserWarning: Creating a tensor from a list of numpy.ndarrays is extremely slow"
    )
    (found,) = findings(seen(printed=[warning]))
    assert (found.where, found.evidence[:20]) == ("train.py:9", "a line makes a tenso")


AMP = Finding("AMP", "products", "amp=bf16", settings={"amp": "bf16"})


def test_switches_that_did_not_help_or_of_which_nothing_tells_are_named_below_the_table():
    slower = msgspec.structs.replace(AMP, measured=Ratio(0.9, 0.8, 0.95, "slower"), change="workers=1")
    tried, unknown, how = filter(None, str(report.SENTENCES.switches([AMP, slower], [AMP])).splitlines())
    assert tried.startswith("Tried, but it does not help: workers=1, 0.9") and tried.endswith(", measured.")
    assert unknown == "Nothing observed says whether these would help: amp=bf16."
    assert how == "To measure a switch: perfkit referee SCRIPT --set amp=bf16 -- ARGS"


def test_a_switch_that_a_cause_advises_is_not_said_to_be_one_of_which_nothing_tells():
    workers = msgspec.structs.replace(AMP, cause="Loader workers", change="workers=1")
    loads = Finding("loading_line", "45% is `load()`", "move it into loader workers", "data.py:9", share=0.45)
    compiled = msgspec.structs.replace(AMP, cause="torch.compile", change="compile=on")
    said = str(report.SENTENCES.switches([loads, AMP, workers, compiled], []))
    assert "whether these would help: amp=bf16; compile=on." in said
    assert "whether these would help: amp=bf16; workers=1." in str(
        report.SENTENCES.switches([AMP, workers], [])
    )


def test_what_was_measured_of_a_switch_is_said_of_steps_and_not_of_the_run():
    measured = msgspec.structs.replace(AMP, measured=Ratio(1.2, 1.1, 1.3, "faster"))
    assert "Steps with it: 1.2" in str(report.SENTENCES.first(seen(), measured))


def test_a_part_of_a_step_is_said_to_have_most_of_what_grew():
    trend = Trend("grows", 0.1, 0.2, 0.001, 0.0005, 0.0015)
    assert str(report.SENTENCES.trend(trend, OWN)).endswith(" at last, most of it in own code")


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_many_gradients_before_the_first_step_are_a_training_if_there_is_an_optimizer(
    has_optimizer, monkeypatch
):
    """One that learns physics takes some for each point."""
    monkeypatch.setattr(hooks, "listen", lambda part, name: None)
    script = a_script()
    updates = Updates(script)
    if has_optimizer:
        updates._make(lambda optimizer: None, torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]))
    ends = contextlib.nullcontext() if has_optimizer else pytest.raises(RunFailed, match="1000 gradients")
    with ends:
        for _ in range(1000):
            updates._grad(lambda: None)


@pytest.mark.parametrize("graphs", [0, 2])
def test_a_reset_of_the_compiler_is_noted_if_it_discards_something(graphs, monkeypatch):
    """Some scripts reset it once at their start, to be sure."""
    monkeypatch.setattr(hooks, "wrap", lambda place, function: None)
    monkeypatch.setattr(evidence.checks, "compiled_graphs", lambda: graphs)
    script = a_script()
    inquiry = evidence.Inquiry(script)
    for role in ("compiler_reset", "threads"):
        inquiry._noted(role, lambda: None)
    noted = [role for role, sites in script.calls.sites.items() if sites]
    assert noted == (["compiler_reset", "threads"] if graphs else ["threads"])


MODEL = torch.nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("function", "given", "is_noted"),
    [
        (torch.nn.Module.double, (MODEL,), True),
        (torch.nn.Module.to, (MODEL, torch.double), True),
        (torch.nn.Module.to, (MODEL, torch.ones(2)), False),
        (torch.nn.Module.to, (MODEL, torch.ones(2, dtype=torch.double)), True),
        (torch.nn.Module.to, (MODEL, "cpu"), False),
        (torch.set_default_dtype, (torch.float32,), False),
    ],
)
def test_float64_is_noted_where_it_is_asked_for(function, given, is_noted, monkeypatch):
    monkeypatch.setattr(hooks, "wrap", lambda place, function: None)
    script = a_script()
    evidence.Inquiry(script)._noted("float64", function, *given)
    assert bool(script.calls.sites["float64"]) == is_noted


def test_modes_that_slow_each_step_are_recognised_while_they_are_on(monkeypatch):
    script = a_script()
    monkeypatch.setattr(evidence.sys, "gettrace", lambda: None)  # as where no test is traced
    before = dict(evidence._modes(script))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(evidence.sys, "gettrace", lambda: print)
    on = dict(evidence._modes(script))
    assert on.keys() - before.keys() == {"deterministic_algorithms", "tracing"}
    assert {"deterministic_algorithms", "tracing"} <= {found.cause for found in findings(seen(is_on=on))}


def test_losses_that_come_from_a_generator_are_gone_back_from(monkeypatch):
    """A look emptied it, and the backward pass went back from nothing."""
    monkeypatch.setattr(hooks, "wrap", lambda place, function: None)
    script = a_script()
    script.callbacks = (evidence.Inquiry(script),)
    script.parts.looked_at.value = True
    weight = torch.ones(2, requires_grad=True)
    updates = Updates(script)
    updates._backward(torch.autograd.backward, (loss for loss in [weight.sum(), weight.sum()]))
    assert weight.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("grew", "said"), [(400_000_000, True), (4_000_000, False)])
def test_an_evaluation_with_gradients_says_by_how_much_the_process_grew_in_one(grew, said):
    sites = [Site("evaluation with gradients", [Frame("/home/me/train.py", 9, 9, 0, 1)])]
    run = Account(parts={"steps": 1.0}, evaluation_bytes=grew)
    evaluates = msgspec.structs.replace(seen(run), script=msgspec.structs.replace(seen().script, sites=sites))
    (found,) = findings(evaluates)
    assert ("; the process grew by 400 MB during one evaluation" in found.evidence) == said
