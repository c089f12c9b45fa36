"""Steps that are only timed: they have the parts that they would have if all of them were noted."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perfkit.additions.ranks import brief, ddp
from perfkit.additions.ranks import recorder as recorders
from perfkit.additions.ranks.brief import RankLoaders, RankModels, RankUpdates
from perfkit.additions.ranks.messages import LIMIT, PARTS
from perfkit.additions.ranks.recorder import RankRecorder
from perfkit.additions.scripts import hooks, loaders, run_account, training
from perfkit.additions.scripts import script as scripts
from perfkit.additions.scripts.script import Script
from perfkit.errors import RunFailed
from tests.support.settings import settings

FIRST = 5  # steps of which all is noted here


def read(exchange, model, seen, took):
    """Takes the place of what torch has timed: a quarter of a pass was spent in waiting for the exchange."""
    exchange._step.exposed += took / 4
    exchange._step.hidden += took / 8
    exchange._step.syncs += 1


class Watched:
    """A training of this process that is watched as a rank; its clock goes on as it says."""

    def __init__(self, monkeypatch, first):
        self.now = 0.0
        self.monkeypatch = monkeypatch
        self._only_timed = set()  # numbers of steps that begin so
        monkeypatch.setattr(
            brief.BriefSteps, "is_on", property(lambda _: self.is_on, self._set), raising=False
        )
        for module in (ddp, recorders, loaders, run_account, scripts):
            monkeypatch.setattr(module, "clock", lambda: self.now)
        monkeypatch.setattr(ddp.DdpExchange, "_read", read)
        monkeypatch.setattr(LIMIT, "first", first)
        monkeypatch.setattr(nn.Module, hooks.CALL, None)
        monkeypatch.setattr(hooks, "around", self.around)
        self.script = Script(settings(), SimpleNamespace(notes=[]))
        self.recorder = RankRecorder(self.script)
        self.recorder.listen()
        self.brief = self.recorder.brief
        parts = [kind(self.script, self.brief) for kind in (RankLoaders, RankModels, RankUpdates)]
        evaluations = self.recorder.evaluations
        self.script.set_callbacks(self.script, *parts, evaluations, self.recorder, self.brief)
        self.kind = self.optimizers()
        self.recorder.rank = 0
        self.brief.is_possible = True

    def around(self, holder, name, function):
        """As in `hooks`, until the test is over."""
        self.monkeypatch.setattr(holder, name, hooks.wrapped(getattr(holder, name), function))

    def _set(self, steps, is_on):
        self.is_on = is_on
        if is_on:
            self._only_timed.add(steps._script.steps.count + 1)

    def takes(self, seconds):
        self.now += seconds

    def optimizers(self):
        """A class that is made here, as torch hooks each one once."""

        class Descent(torch.optim.Optimizer):
            def step(descent, closure=None):
                if closure:
                    closure()
                self.takes(0.125)

        return Descent

    def optimizer(self, *parameters):
        return self.kind(parameters, {})

    def rows(self, count=64, seconds=0.5):
        """A data set that takes so long for each batch of four."""

        class Rows(Dataset):
            def __len__(rows):
                return count

            def __getitem__(rows, at):
                self.takes(seconds / 4)
                return torch.ones(2)

        return DataLoader(Rows(), 4)

    def model(self, seconds=1.0, backward_s=2.0, **more):
        """A model whose passes take so long."""

        class Slow(nn.Module):
            def __init__(slow):
                super().__init__()
                slow.weight = nn.Parameter(torch.ones(2))
                slow.backward_s = backward_s
                for name, buffer in more.items():
                    slow.register_buffer(name, buffer)

            def forward(slow, inputs):
                self.takes(seconds)
                output = inputs * slow.weight
                if output.requires_grad:
                    output.register_hook(lambda _: self.takes(slow.backward_s))
                return output

        return Slow()

    def steps(self):
        """Those that are told."""
        return self.recorder.snapshot().steps

    def parts(self):
        """Seconds and parts of each step, and what was in it."""
        told = []
        for step in self.steps():
            parts = dict(zip(PARTS, [round(each, 2) for each in step.parts], strict=True))
            told.append((step.number, round(step.seconds, 2), parts, step.marks))
        return told

    def timed(self):
        """The numbers of steps that were only timed, some of them until something else came."""
        return [step.number for step in self.steps() if step.number in self._only_timed]

    def inputs(self):
        """Samples and elements of each step."""
        return [(step.samples, step.elements) for step in self.steps()]


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch, FIRST)


# ---------------------------------------------------------------- trainings


def plain(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for _epoch in range(2):
        for inputs in watched.rows(62):
            model(inputs).sum().backward()
            optimizer.step()
            watched.takes(0.25)


def accumulates_without_exchange(watched):
    model = DistributedDataParallel(watched.model())
    optimizer = watched.optimizer(model.module.weight)
    for _ in range(12):
        with model.no_sync():
            model(torch.ones(2)).sum().backward()
        model(torch.ones(2)).sum().backward()
        optimizer.step()


def has_buffers_that_take_long_to_send(watched):
    model = DistributedDataParallel(watched.model(mean=torch.ones(3)))
    model._sync_module_buffers = lambda rank: watched.takes(3.0)
    optimizer = watched.optimizer(model.module.weight)
    for _ in range(12):
        model(torch.ones(2)).sum().backward()
        optimizer.step()


def gathers_in_forward_and_means_a_loss(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    model.register_forward_hook(lambda *_: dist.barrier())
    for _ in range(12):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        dist.all_reduce(torch.ones(1))


def has_a_long_backward_pass(watched):
    model = DistributedDataParallel(watched.model())
    optimizer = watched.optimizer(model.module.weight)
    for step in range(12):
        model.module.backward_s = 7.0 if step == 8 else 2.0
        model(torch.ones(2)).sum().backward()
        optimizer.step()


def has_nested_optimizers(watched):
    model = watched.model()
    inner = watched.optimizer(model.weight)
    outer = watched.optimizer(nn.Parameter(torch.ones(3)))
    outer.register_step_pre_hook(lambda *_: inner.step())
    for _ in range(12):
        model(torch.ones(2)).sum().backward()
        outer.step()


def has_two_networks(watched):
    generator, critic = DistributedDataParallel(watched.model()), DistributedDataParallel(watched.model(0.5))
    of_generator = watched.optimizer(generator.module.weight)
    of_critic = watched.optimizer(critic.module.weight)
    for inputs in watched.rows():
        critic(generator(inputs).detach()).sum().backward()
        of_critic.step()
        critic(generator(inputs)).sum().backward()
        of_generator.step()


def calls_a_model_within_another_one(watched):
    inner = watched.model()
    outer = watched.model(0.5)
    outer.register_forward_hook(lambda _model, _given, output: inner(output))
    optimizer = watched.optimizer(outer.weight, inner.weight)
    for _ in range(12):
        inner(torch.ones(2))
        outer(torch.ones(2)).sum().backward()
        optimizer.step()


def computes_its_forward_pass_again(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for _ in range(12):
        torch.utils.checkpoint.checkpoint(model, torch.ones(2), use_reentrant=False).sum().backward()
        optimizer.step()


def evaluates(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    tested = watched.rows(8)
    for step, inputs in enumerate(watched.rows()):
        model(inputs).sum().backward()
        optimizer.step()
        if step in (6, 10):
            model.eval()
            with torch.no_grad():
                for given in tested:
                    model(given)
            model.train()


def evaluates_its_module(watched):
    """Calls of what is in a model are not seen, but its mode is."""
    model = DistributedDataParallel(watched.model())
    optimizer = watched.optimizer(model.module.weight)
    for step in range(12):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        if step == 7:
            model.eval()
            with torch.no_grad():
                model.module(torch.ones(2))
            model.train()


def evaluates_in_train_mode_between_backward_and_step(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for step in range(12):
        model(torch.ones(2)).sum().backward()
        if step in (6, 7):
            with torch.no_grad():
                model(torch.ones(2))
        optimizer.step()
        watched.takes(0.25)


def has_a_teacher(watched):
    teacher, model = watched.model(), watched.model()
    teacher.eval()
    optimizer = watched.optimizer(model.weight)
    for inputs in watched.rows():
        with torch.no_grad():
            wanted = teacher(inputs)
        (model(inputs) - wanted).sum().backward()
        optimizer.step()


def fetches_ahead(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    source = iter(watched.rows())
    inputs = next(source)
    while inputs is not None:
        model(inputs).sum().backward()
        inputs = next(source, None)
        optimizer.step()


def fetches_in_a_thread(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    source = iter(watched.rows())
    fetched = []
    for step in range(16):
        if step < FIRST:
            fetched.append(next(source))
        else:
            thread = threading.Thread(target=lambda: fetched.append(next(source)))
            thread.start()
            thread.join()
        model(fetched[-1]).sum().backward()
        optimizer.step()


def goes_on_in_another_thread(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    source = iter(watched.rows())

    def train():
        for _ in range(8):
            model(next(source)).sum().backward()
            optimizer.step()

    train()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()


def scales_gradients(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(12):
        loss = model(torch.ones(2)).sum()
        model.weight.grad = None
        scaler.scale(loss * (torch.inf if step == 7 else 1.0)).backward()  # its step is left out
        scaler.step(optimizer)
        scaler.update()


def exchanges_in_its_optimizer(watched):
    """As one whose state is divided among the ranks."""
    model = DistributedDataParallel(watched.model(mean=torch.ones(3)), broadcast_buffers=False)
    model._sync_module_buffers = lambda rank: watched.takes(3.0)
    optimizer = watched.optimizer(model.module.weight)
    optimizer.register_step_post_hook(lambda *_: model._sync_buffers())
    for _ in range(12):
        model(torch.ones(2)).sum().backward()
        optimizer.step()


def computes_in_a_closure(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for _ in range(12):
        optimizer.step(lambda: model(torch.ones(2)).sum().backward())


def takes_no_closure(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for step in range(12):
        model(torch.ones(2)).sum().backward()
        optimizer.step(closure=None) if step % 2 else optimizer.step(None)


def makes_another_optimizer(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for step in range(12):
        if step == 7:
            optimizer = watched.optimizer(model.weight)
        model(torch.ones(2)).sum().backward()
        optimizer.step()


def steps_within_backward(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for inputs in watched.rows():
        model(inputs).sum().backward()


def goes_on_after_what_is_raised(watched):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for step in range(12):
        if step == 6:
            with pytest.raises(TypeError):
                model(None)
        model(torch.ones(2)).sum().backward()
        if step == 8:
            raises = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                optimizer.step()
            raises.remove()
        optimizer.step()


def calls_the_module_of_its_model(watched):
    model = DistributedDataParallel(watched.model())
    optimizer = watched.optimizer(model.module.weight)
    for _ in range(12):
        model.module(torch.ones(2)).sum().backward()
        optimizer.step()


TRAININGS = {
    plain: range(FIRST + 1, 33),
    accumulates_without_exchange: range(FIRST + 1, 13),
    has_buffers_that_take_long_to_send: range(FIRST + 1, 13),
    gathers_in_forward_and_means_a_loss: range(FIRST + 1, 13),
    has_a_long_backward_pass: range(FIRST + 1, 13),
    has_nested_optimizers: range(FIRST + 1, 13),
    has_two_networks: range(FIRST + 1, 17),
    calls_a_model_within_another_one: range(FIRST + 1, 13),
    computes_its_forward_pass_again: range(FIRST + 1, 13),
    evaluates: range(FIRST + 1, 17),
    evaluates_its_module: range(FIRST + 1, 13),
    evaluates_in_train_mode_between_backward_and_step: [6, 7, 10, 11, 12],
    has_a_teacher: range(FIRST + 1, 17),
    fetches_ahead: [],
    fetches_in_a_thread: range(FIRST + 1, 17),
    goes_on_in_another_thread: range(FIRST + 1, 17),
    scales_gradients: range(FIRST + 1, 13),
    exchanges_in_its_optimizer: range(FIRST + 1, 13),
    computes_in_a_closure: range(FIRST + 1, 13),
    takes_no_closure: range(FIRST + 1, 13),
    makes_another_optimizer: range(FIRST + 1, 13),
    steps_within_backward: [FIRST + 1],
    goes_on_after_what_is_raised: range(FIRST + 1, 13),
    calls_the_module_of_its_model: range(FIRST + 1, 13),
}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("train", TRAININGS, ids=lambda train: train.__name__)
def test_steps_that_are_only_timed_have_the_parts_of_those_that_are_noted(train):
    told = {}
    for first in (1000, FIRST):
        with pytest.MonkeyPatch.context() as patch:
            watched = Watched(patch, first)
            train(watched)
            told[first] = watched.parts(), watched.inputs(), watched.recorder.part_now()
            timed = watched.timed()
    assert told[FIRST] == told[1000]
    assert timed == [*TRAININGS[train]]


@pytest.mark.usefixtures("group")
def test_an_exchange_within_a_forward_pass_is_no_computing(watched):
    has_buffers_that_take_long_to_send(watched)
    *_, (_, seconds, parts, _) = watched.parts()
    assert (seconds, parts["forward"], parts["backward"], parts["exchange"]) == (6.12, 1.0, 1.5, 3.5)


@pytest.mark.usefixtures("group")
def test_what_torch_has_timed_is_read_now_and_then_and_where_a_pass_takes_long(watched, monkeypatch):
    monkeypatch.setattr(LIMIT, "all_read", FIRST)
    model = DistributedDataParallel(watched.model())
    optimizer = watched.optimizer(model.module.weight)
    for step in range(40):
        model.module.backward_s = 0.07 if step == 20 else 0.01
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    assert [step.number for step in watched.steps() if step.is_read] == [1, 2, 3, 4, 5, 6, 17, 21, 33]


@pytest.mark.parametrize(("train", "count"), [(takes_no_closure, 0), (computes_in_a_closure, 7)])
def test_a_step_with_a_closure_is_noted(watched, monkeypatch, train, count):
    noted = []
    monkeypatch.setattr(watched.brief, "note_all", lambda: noted.append(watched.script.steps.count))
    train(watched)
    assert len(noted) == count


# ---------------------------------------------------------------- which steps


def at(count, monkeypatch):
    monkeypatch.setattr(LIMIT, "first", 100)
    steps = SimpleNamespace(count=count)
    return brief.BriefSteps(SimpleNamespace(steps=steps), None)._is_due()


def test_the_same_steps_are_noted_on_every_rank_by_their_numbers(monkeypatch):
    noted = {count + 1 for count in range(2 * LIMIT.every) if not at(count, monkeypatch)}
    first = set(range(1, LIMIT.first + 1))
    assert noted == first | {LIMIT.every + each for each in range(1, LIMIT.noted + 1)}
    assert noted.issuperset(count + 1 for count in LIMIT.weighed), "its pass shows the weights"


def test_round_numbers_of_steps_do_not_always_miss_those_that_are_noted():
    """As where an evaluation comes every 500 steps."""
    for period in (50, 100, 250, 500, 1000):
        assert {period * n % LIMIT.every for n in range(LIMIT.every)} == set(range(LIMIT.every))


def test_inputs_are_told_of_all_steps(watched, monkeypatch):
    monkeypatch.setattr(LIMIT, "every", 10)
    monkeypatch.setattr(LIMIT, "noted", 2)
    plain(watched)
    assert watched.timed() == [*range(6, 11), *range(13, 21), *range(23, 31)]
    for step in watched.steps():
        known = (2, 4) if step.number in (16, 32) else (4, 8)  # the last batches of both epochs
        assert (step.samples, step.elements) == known


def test_inputs_that_get_larger_in_steps_that_are_only_timed_are_known(watched):
    """A rank may get longer ones later, and be late for them."""
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for step in range(12):
        model(inputs=torch.ones(20 if step > 8 else 10, 2)).sum().backward()
        optimizer.step()
    assert watched.timed() == [6, 7, 8, 9, 10, 11, 12]
    assert watched.inputs() == [(10, 20)] * 9 + [(20, 40)] * 3


def test_steps_with_switches_are_all_noted(watched):
    watched.script.toggles["workers"] = 2
    plain(watched)
    assert watched.timed() == []


def test_what_a_rank_does_in_a_step_that_is_only_timed_is_known(watched):
    """It explains a hang, and sorts what looks at the stack have seen."""
    parts = []
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    model.register_forward_hook(lambda *_: parts.append(watched.recorder.part_now()))
    for _ in range(8):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    assert parts == ["forward"] * 8
    assert watched.timed() == [6, 7, 8]


def test_a_compilation_in_a_step_that_is_only_timed_is_marked(watched, monkeypatch):
    graphs = [0]
    for module in (brief, scripts):
        monkeypatch.setattr(module, "compiled_graphs", lambda: graphs[0])
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for step in range(10):
        graphs[0] += step == 7
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    marked = [step.number for step in watched.steps() if "compilation" in step.marks]
    assert (marked, watched.timed()) == ([8], [6, 7, 8, 9, 10])


def test_steps_within_a_capture_are_refused(watched, monkeypatch):
    model = watched.model()
    optimizer = watched.optimizer(model.weight)
    for _ in range(6):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    for module in (brief, scripts, training, ddp, recorders):
        monkeypatch.setattr(module, "is_capturing", lambda: True)
    model(torch.ones(2)).sum().backward()
    with pytest.raises(RunFailed):
        optimizer.step()
    assert len(watched.steps()) == 6


@pytest.mark.usefixtures("group")
def test_collectives_are_counted_in_steps_that_are_only_timed(watched):
    gathers_in_forward_and_means_a_loss(watched)
    assert {call.name: call.count for call in watched.recorder.snapshot().exchanges} == {
        "barrier": 9,
        "all_reduce": 9,
    }, "of three steps nothing is told"
