"""What a rank notes of itself."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from perfkit.additions.ranks import recorder as recorders
from perfkit.additions.ranks.ddp import StepExchange
from perfkit.additions.ranks.messages import LIMIT, PARTS, State
from perfkit.additions.ranks.recorder import RankRecorder, _modes, _row_sums
from perfkit.additions.scripts.messages import OWN, Frame, Site
from perfkit.additions.scripts.script import ScriptStep
from perfkit.additions.scripts.weights import ZeroRates


def recorder(parameters=()):
    """One of a rank whose script has these weights."""
    noted = RankRecorder.__new__(RankRecorder)
    noted.script = SimpleNamespace(
        steps=SimpleNamespace(count=0, since=0.0, trainer=threading.get_ident()),
        parameters=lambda: list(parameters),
        calls=SimpleNamespace(note=lambda role: None),
    )
    noted._state = SimpleNamespace(rows={}, weights={})
    noted.script.modules, noted.script.model = list, []
    noted.script.updates, noted.brief = SimpleNamespace(optimizers=[]), SimpleNamespace(is_on=False)
    noted.zero_rates = ZeroRates()
    noted.world, noted._steps, noted._step_collectives = 1, [], {}
    return noted


def test_an_exchange_that_was_not_read_takes_no_longer_than_the_backward_pass_it_was_in():
    """Its own collectives are not taken out of it once more."""
    step = ScriptStep(seconds=1.0)
    step.spent |= {"backward": 0.3, "exchange": 0.2}
    usual, read = (StepExchange(0.5, 0.1, 1, is_read) for is_read in (False, True))
    seen = recorder()._step(9, step, usual)
    parts = dict(zip(PARTS, seen.parts, strict=True))
    assert (seen.is_read, seen.hidden, seen.syncs) == (False, 0.1, 1)
    assert (parts["backward"], parts["exchange"]) == pytest.approx((0.0, 0.5))
    assert parts["own code"] == pytest.approx(0.5)
    on_gpu = recorder()._step(9, step, read)
    assert on_gpu.parts[-1] == pytest.approx(0.7), "the device may take longer than its launch"


def test_rows_are_compared_over_all_inputs_and_the_whole_of_each():
    """A model that is given the time step first, or rows with an equal beginning: these are not the same rows."""
    times, rows = torch.arange(4), torch.randn(4, 5000)
    others = rows.clone()
    others[:, 2500:] += 1.0
    assert _row_sums([times, rows]) == _row_sums([times, rows.clone()])
    assert not set(_row_sums([times, rows])) & set(_row_sums([times, rows + 1.0]))
    assert not set(_row_sums([rows])) & set(_row_sums([others]))


@pytest.mark.parametrize(
    "inputs",
    [
        torch.eye(4).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
)
def test_inputs_without_plain_rows_are_left_alone(inputs):
    noted = recorder([torch.nn.Parameter(torch.ones(2))])
    noted.on_input((inputs,))
    assert noted._state.rows == {0: []}


class Divided(torch.nn.Parameter):
    """As a `DTensor`, of which each rank has a part."""

    device_mesh = "the ranks"


def test_the_rows_of_embeddings_that_were_sent_are_noted_with_the_weights():
    table = torch.nn.Embedding(50, 4)
    table(torch.tensor([3, 9])).sum().backward()
    noted = collecting()
    noted.script.parameters = lambda: list(table.parameters())
    noted.script.modules, noted.script.model = lambda: [table], [table]
    noted.exchange, noted.rank = SimpleNamespace(end_step=lambda count: StepExchange()), None
    noted.script.steps.count = 3
    noted.on_steps([ScriptStep()])
    assert (noted._state.embeddings.count, noted._state.embeddings.touched) == (50, 2)


def test_learning_rates_are_looked_at_in_steps_that_are_noted_in_full():
    head, body = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    (head * body).sum().backward()
    noted = collecting()
    noted.exchange, noted.rank = SimpleNamespace(end_step=lambda count: StepExchange()), 0
    groups = [{"params": [head]}, {"params": [body], "lr": 0.0}]
    noted.script.updates.optimizers = [torch.optim.SGD(groups, lr=0.1)]
    noted.on_steps([ScriptStep(seconds=1.0)])
    assert [*noted.zero_rates.still] == [id(body)]
    noted.brief.is_on = True
    noted.script.updates.optimizers[0].param_groups[1]["lr"] = 0.1
    noted.on_steps([ScriptStep(seconds=1.0)])
    assert noted.zero_rates.still, "each look takes microseconds, and most steps are only timed"
    noted.brief.is_on = False
    noted.on_steps([ScriptStep(seconds=1.0)])
    assert not noted.zero_rates.still


@pytest.mark.parametrize(
    ("lines", "told"), [([[8, 30, 61]], [8, 30]), ([[8]], [8]), ([[8], [9]], []), ([], [])]
)
def test_the_line_that_makes_the_optimizer_is_told_with_the_one_that_leads_to_it(lines, told):
    frames = [[Frame("train.py", at, at, 0, 1) for at in places] for places in lines]
    noted = recorder()
    noted.script.calls.sites = {"optimizer": [Site("optimizer", each) for each in frames]}
    assert noted._lines_of_optimizer() == [f"train.py:{at}" for at in told]


def test_weights_that_are_divided_between_ranks_are_not_compared():
    noted = recorder([Divided(torch.ones(2))])
    noted.on_input((torch.randn(4, 2),))
    noted.on_backward()
    assert (noted._state.rows, noted._state.weights) == ({0: []}, {})


def test_weights_are_compared_as_the_next_pass_has_them():
    """A script may average them after the step of its optimizer."""
    weight = torch.nn.Parameter(torch.ones(2))
    noted = collecting()
    noted.script.parameters = lambda: [weight]
    noted.exchange, noted.rank = SimpleNamespace(end_step=lambda count: StepExchange()), None
    sums = []
    for value in (2.0, 1.0):  # of the optimizer on this rank, and on average
        noted.script.steps.count = 3
        noted._state.weights.clear()
        weight.data.fill_(value)
        noted.on_steps([ScriptStep()])
        weight.data.fill_(1.5)
        noted.on_backward()
        weight.data.fill_(value)
        noted.on_backward()  # another one of the same step
        sums.append(dict(noted._state.weights))
    assert list(sums[0]) == [3] and sums[0] == sums[1]


def test_weighing_is_no_part_of_a_step(monkeypatch):
    noted = recorder([torch.nn.Parameter(torch.ones(2))])
    monkeypatch.setattr(recorders, "clock", iter([5.0, 7.0]).__next__)
    noted.on_backward()
    assert noted.script.steps.since == 2.0


def test_the_lines_of_a_call_lead_from_the_model_to_the_training_loop():
    def site(*places):
        frames = [Frame(file, line, line, 0, 9) for file, line in places]
        return Site("forward", frames)

    noted = recorder()
    noted.script.calls.sites = defaultdict(list)
    noted.script.calls.sites["forward"] = [site(("vae.py", 29), ("train.py", 38), ("train.py", 70))]
    noted.script.calls.sites["backward"] = [site(("train.py", 40), ("train.py", 70))]
    assert noted._lines_of_forward() == ["vae.py:29", "train.py:38"]


def test_the_line_that_sets_threads_is_noted_with_their_number(monkeypatch):
    """The number is that of the thread that trains: others may have a different one."""
    seen = []
    noted, hooked = collecting(), {}
    monkeypatch.setattr(recorders.hooks, "around", lambda *given: None)
    monkeypatch.setattr(recorders.hooks, "wrap", hooked.__setitem__)
    noted.exchange = SimpleNamespace(make=None, backward=None)
    noted.script.calls.note = seen.append
    noted.listen()
    hooked["torch.set_num_threads"](seen.append, 8)
    assert seen == ["threads", 8]
    noted.exchange, noted.rank = SimpleNamespace(end_step=lambda count: StepExchange()), None
    monkeypatch.setattr(recorders.torch, "get_num_threads", lambda: 8)
    noted.on_steps([ScriptStep()])
    assert noted._state.threads == 8


def test_ranks_tell_gpus_apart_that_each_of_them_calls_the_first_one(monkeypatch):
    """As under Slurm and Ray, which show each rank its own GPU alone."""
    monkeypatch.setattr(recorders.socket, "gethostname", lambda: "node1")
    noted = recorder()
    about = {
        "loader": None,
        "calls": SimpleNamespace(sites=defaultdict(list)),
        "notes": [],
        "files": SimpleNamespace(notes=[]),
    }
    steps = SimpleNamespace(count=9, since=0.0)
    noted.script = SimpleNamespace(**about, device=torch.device("cuda:0"), steps=steps)
    noted.rank, noted._state, noted._collectives = 1, State(rank=0), {}
    noted._cpu_before_s = 0.0
    noted.evaluations = SimpleNamespace(part_now=lambda: "own code")
    noted.exchange = SimpleNamespace(models={}, ddps=list)
    noted.setting = SimpleNamespace(proofs=list)
    said = []
    for uuid in ("GPU-1", "GPU-2"):
        monkeypatch.setattr(recorders, "facts", lambda device, uuid=uuid: SimpleNamespace(uuid=uuid))
        said.append(noted.snapshot().gpu)
    assert said == ["node1 GPU-1", "node1 GPU-2"]


def test_what_a_rank_does_is_told_while_the_script_makes_another_model():
    """As the thread that trains does, while another one reports."""
    noted, models = recorder(), {}

    class Model:
        @property
        def module(self):
            models[object()] = None
            return SimpleNamespace(training=True)

    models[Model()] = None
    noted.evaluations = SimpleNamespace(part_now=lambda: OWN)
    noted.exchange = SimpleNamespace(models=models)
    assert noted.part_now() == OWN and len(models) == 2


def collecting():
    """One that sees collectives, at a line of its script."""
    noted = recorder()
    noted.sampler = SimpleNamespace(times={("own code", ()): 30.0}, lines=lambda frame: iter(["train.py:8"]))
    noted._collectives, noted._state = {}, State(rank=0)
    noted.script.parts = SimpleNamespace(now="", do=lambda part, function, *given: function(*given))
    return noted


def test_what_was_before_the_steps_that_are_told_is_forgotten():
    """One rank prepares the data, and the others wait for it: that explains nothing of a step."""
    noted = collecting()
    noted.exchange = SimpleNamespace(end_step=lambda count: StepExchange())
    noted.rank, noted._cpu_before_s = 0, 0.0

    def step():
        noted._collective("all_reduce", lambda tensor: None, torch.ones(3, 2))
        noted.script.steps.count += 1
        noted.on_steps([ScriptStep(seconds=1.0)])

    for _ in range(LIMIT.skipped):
        step()
    assert not noted.sampler.times
    assert noted._cpu_before_s > 0.0
    (exchange,) = noted._collectives.values()
    assert (exchange.where, exchange.count, exchange.seconds, exchange.bytes) == ("train.py:8", 0, 0.0, 0)
    step()
    (exchange,) = noted._collectives.values()
    assert (exchange.count, exchange.bytes) == (1, 24)


def test_there_are_as_many_calls_as_steps_though_each_comes_after_its_step():
    """As the mean of a loss over all ranks does: that of the last step is in one that has not ended."""
    noted = collecting()
    noted.exchange, noted.rank = SimpleNamespace(end_step=lambda count: StepExchange()), 0
    for _ in range(LIMIT.skipped + 4):
        noted.script.steps.count += 1
        noted.on_steps([ScriptStep(seconds=1.0)])
        noted._collective("all_reduce", lambda tensor: None, torch.ones(1))
    (exchange,) = noted._collectives.values()
    assert exchange.count == 4


class Opaque:
    """As a group of processes."""


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ([[torch.ones(2), torch.ones(3)], 1], 20),
        ([torch.ones(9)], 36),
        ([["text", Opaque()], torch.ones(9)], 0),
        ([Opaque()], 0),
        ([None], 0),
        ([], 0),
    ],
)
def test_bytes_of_a_collective_are_those_of_the_tensors_that_it_is_given_first(given, size):
    noted = collecting()
    noted._collective("all_gather", lambda *given: None, *given)
    (exchange,) = noted._step_collectives.values()
    assert (exchange.count, exchange.bytes) == (1, size)


@pytest.mark.parametrize(
    ("world", "loaded", "fed", "samples"),
    [
        pytest.param(2, 64, 64, 64, id="a batch of its own"),
        pytest.param(2, 128, 64, 64, id="it reads for both, or takes its part of a batch"),
        pytest.param(2, 8, 512, 8, id="rows of unequal lengths, packed"),
        pytest.param(2, 128, 32, 128, id="of anything else the loader knows"),
        pytest.param(1, 64, 64, 64, id="alone"),
    ],
)
def test_a_rank_trains_on_the_rows_that_its_model_is_given_where_it_reads_those_of_all(
    world, loaded, fed, samples
):
    noted = recorder()
    noted.world = world
    step = ScriptStep(seconds=1.0, samples=loaded, forward_samples=fed)
    assert noted._step(9, step, StepExchange()).samples == samples


def test_steps_are_noted_as_they_are_and_told_once_they_are_asked_for():
    """Whatever can be done later is not done in a step."""
    noted = collecting()
    noted.exchange = SimpleNamespace(end_step=lambda count: StepExchange(exposed=0.25))
    noted.rank = 1
    step = ScriptStep(seconds=1.0, samples=8, elements=16)
    step.spent |= {"backward": 0.5}
    noted.script.steps.count = 9
    noted.on_steps([step])
    ((number, seen, exchange),) = noted._steps
    assert (number, seen) == (9, step)
    told = noted._step(number, seen, exchange)
    assert (told.number, told.samples, told.elements) == (9, 8, 16)
    assert (told.parts[2], told.parts[-1]) == (0.25, 0.25)


def test_a_rank_tells_what_is_on_that_makes_its_passes_slower():
    assert _modes() == []
    with torch.autograd.set_detect_anomaly(True):
        assert _modes() == ["anomaly detection"]
    with torch.autograd.profiler.profile(), ThreadPoolExecutor(1) as another_thread:
        assert another_thread.submit(_modes).result() == ["a profiler"]
