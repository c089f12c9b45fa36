"""What loader workers are seen to do while batches are watched."""

import contextlib
import multiprocessing
import os
import sys
from collections import deque
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch.utils import data
from torchvision import transforms

from perfkit.additions.scripts import hooks, loaders
from perfkit.additions.scripts import script as script_module
from perfkit.additions.scripts.batches import BatchLedger
from perfkit.additions.scripts.loaders import Watch
from perfkit.additions.scripts.script import Script
from perfkit.additions.shared.positions import Spot
from tests.support.settings import settings

READ = Spot("/home/me/data.py", 7, "Rows.__getitem__")
LOOP = Spot("/home/me/train.py", 40, "main")


class Looking:
    """Stands for a sampler; what the process was doing when it was forked is seen, too."""

    def __init__(self, part, place):
        in_library = LOOP._replace(calls="ColorJitter.forward")
        seen = {READ: 3.0, LOOP: 2.0, in_library: 1.0}
        self.times = {("data set", (spot,)): seconds for spot, seconds in seen.items()} | {
            ("start", (LOOP,)): 9.0
        }
        self.runs = []

    def stack(self, frame):
        return (LOOP,)

    def lines(self, frame):
        return iter(["/home/me/data.py:7"])

    @contextlib.contextmanager
    def running(self):
        self.runs.append("began")
        yield
        self.runs.append("ended")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """In a loader worker."""
    monkeypatch.setattr(loaders, "Sampler", Looking)
    monkeypatch.setattr(data._utils.worker, "_worker_info", object())
    about = settings(scratch=str(tmp_path / "files"))
    return Script(about, SimpleNamespace(ignored=contextlib.nullcontext))


def fetch(watch, times):
    for _ in range(times):
        watch.fetch(lambda fetcher, indices: None, SimpleNamespace(collate_fn=list, dataset=[]), [0, 1])


def test_a_worker_is_looked_at_through_all_its_watched_batches(script):
    """Else short batches would be over before the first look, and the others always be seen at one place."""
    watch = Watch(script)
    fetch(watch, 3)
    assert watch._sampler.runs == ["began"]
    watch.end_looking()
    watch.end_looking()
    assert watch._sampler.runs == ["began", "ended"]
    fetch(watch, 1)
    assert watch._sampler.runs == ["began", "ended", "began"]


def test_an_archive_that_a_worker_opens_for_itself_is_noted(script, tmp_path):
    class Slices(data.Dataset):
        store = None

        def __len__(self):
            return 320

    numpy.savez(tmp_path / "slices.npz", images=numpy.zeros((320, 4)))
    watch, slices = Watch(script), Slices()

    def read(fetcher, indices):
        slices.store = slices.store or numpy.load(tmp_path / "slices.npz")

    watch.fetch(read, SimpleNamespace(collate_fn=list, dataset=slices), [0, 1])
    slices.store.close()
    assert watch.total().archives == ["store"]


def test_transforms_that_workers_call_are_timed_in_their_fetches_alone(script, tmp_path):
    crop = transforms.Compose([transforms.CenterCrop(4)])
    watch = Watch(script)
    for _ in range(2):
        watch.fetch(
            lambda fetcher, indices: crop(torch.zeros(1, 8, 8)),
            SimpleNamespace(collate_fn=list, dataset=[]),
            [0],
        )
        crop(torch.zeros(1, 8, 8))
    (of_one,) = tmp_path.glob("loading-*.json")
    (tmp_path / "loading-2.json").write_bytes(of_one.read_bytes())
    total = Watch(script).total()
    (pipeline,) = total.pipelines
    assert (pipeline.place, pipeline.names) == ("/home/me/data.py:7", ("CenterCrop",))
    assert (pipeline.transforms[0].calls, pipeline.transforms[0].after) == (4, 4 * 4 * 4)
    assert 0 < total.timed_s <= total.wall_s


def test_lines_of_loading_are_those_of_fetches_in_all_workers(script, tmp_path):
    fetch(Watch(script), 2)
    (of_one,) = tmp_path.glob("loading-*.json")
    (tmp_path / "loading-2.json").write_bytes(of_one.read_bytes())
    own, of_library = Watch(script).total().lines
    assert (own.part, own.where, own.seconds) == ("data set", "data.py:7", 6.0)
    assert (of_library.where, of_library.calls, of_library.seconds) == (
        "train.py:40",
        ["ColorJitter.forward"],
        2.0,
    )


def test_what_workers_load_for_an_evaluation_is_no_loading_of_the_training(script, tmp_path):
    """What a loader is for is known only after its first batches: transforms of the validation were named."""
    known = loaders_of(script)
    known.watch = Watch(script)
    script.tell, known._is_fetching, known._sites = lambda *about: None, False, {}
    iterators = {}
    for process, loader in {1: data.DataLoader([1]), 2: data.DataLoader([2])}.items():
        fetch(Watch(script), process)
        (tmp_path / f"loading-{os.getpid()}.json").rename(tmp_path / f"loading-{process}.json")
        iterators[process] = SimpleNamespace(_workers=[SimpleNamespace(pid=process)])
        known._begin_epoch(lambda iterator, loader: None, iterators[process], loader)
    for process, evaluates in ((1, False), (2, True), (2, True), (1, False)):
        known._fetch(lambda iterator: torch.zeros(4, 2), iterators[process])
        (known.on_evaluation if evaluates else known.on_backward)()
    loading = known.watch.total()
    assert (loading.batches, loading.samples, loading.lines[0].seconds) == (1, 2, 3.0)


@pytest.mark.parametrize(
    ("indices", "shape", "samples"),
    [
        ([3, 1, 2], (70, 3, 8), 3),  # steps of time come first
        ([None] * 32, (70, 32, 8), 32),  # of an iterable data set, which may end within a batch
        ([None] * 32, (70, 5, 8), 70),
        ([None] * 32, (5, 8), 5),
        (7, (64, 8), 64),  # the data set makes whole batches
    ],
)
def test_samples_of_a_batch_are_those_that_the_sampler_has_asked_for(indices, shape, samples, monkeypatch):
    script = Script(settings(), None)
    script.steps.begin()
    watching = loaders.Loaders.__new__(loaders.Loaders)
    watching._script, watching._seen = script, script.batches
    watching._ledger, watching._is_fetching = BatchLedger(), False
    epoch = SimpleNamespace(loader=SimpleNamespace(), indices=deque([indices]), has_begun=True, ended=None)
    watching._fetch(lambda iterator: torch.zeros(shape), SimpleNamespace(_perfkit=epoch))
    ((fetched,), _) = watching._ledger.backward()
    assert fetched.samples == samples


def loaders_of(script):
    known = loaders.Loaders.__new__(loaders.Loaders)
    known._script, known._seen = script, script.batches
    known._ledger, known._looks = BatchLedger(), 99
    return known


def test_workers_are_started_in_the_start_of_an_epoch():
    """Half of that time was said to be a line between steps, `for x in loader:`."""
    script = Script(settings(), None)
    method = hooks.TABLES["listeners"]["loaders"]["torch.utils.data.DataLoader.__iter__"]
    parts = []
    getattr(loaders_of(script), method)(lambda loader: parts.append(script.parts.now), data.DataLoader([1]))
    assert parts == ["start"]


@pytest.mark.parametrize(("part", "in_worker", "is_watched"), [
    ("start", False, False), ("waiting", False, True), ("start", True, True), ("evaluation", False, False),
])  # fmt: skip
def test_what_a_data_set_does_before_its_first_batch_is_the_start_of_an_epoch(
    part, in_worker, is_watched, monkeypatch
):
    """In a worker the part is that of its parent when that started it."""
    monkeypatch.setattr(data._utils.worker, "_worker_info", object() if in_worker else None)
    script = Script(settings(), None)
    script.parts.now, script.parts.looked_at.value = part, True
    known, watched = loaders_of(script), []
    known.watch = SimpleNamespace(fetch=lambda *given: watched.append(given), end_looking=lambda: None)
    known._fetch_samples(lambda fetcher, indices: None, SimpleNamespace(), [1])
    assert bool(watched) == is_watched


def test_a_worker_sees_that_steps_are_looked_at_and_waits_for_no_device(monkeypatch):
    """One that is forked meanwhile must not touch a GPU, which only its parent may use."""
    waits = []
    monkeypatch.setattr(script_module, "synchronize", waits.append)
    script = Script(settings(), None)
    ours, theirs = multiprocessing.Pipe()
    script.parts.looked_at.value = True
    child = os.fork()
    if not child:
        theirs.recv()
        script.parts.do("data set", lambda: theirs.send(script.parts.looked_at.value))
        theirs.send(len(waits))
        theirs.recv()
        script.parts.looked_at.value = False
        os._exit(0)
    script.parts.do("forward", lambda: None)
    ours.send("the parent has ended its part")
    assert (ours.recv(), ours.recv(), len(waits)) == (True, 0, 1)
    ours.send("a worker may end it, too")
    os.waitpid(child, 0)
    assert not script.parts.looked_at.value


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
@pytest.mark.parametrize(
    ("of_the_loader", "of_all", "how"),
    [
        ({}, None, "fork"),
        ({}, "forkserver", "fork"),  # Python's own, once a lock has been made
        ({"multiprocessing_context": "spawn"}, None, "spawn"),
        ({}, "spawn", None),
    ],
)
def test_workers_are_forked_unless_the_script_chose_how_they_start(of_the_loader, of_all, how, monkeypatch):
    """By a server, as Python starts them from 3.14 on, no look would reach them."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: of_all)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "fork", "spawn"])
    loader = data.DataLoader([1, 2], num_workers=1, **of_the_loader)
    loaders._fork_unless_chosen(loader)
    assert getattr(loader.multiprocessing_context, "_name", None) == how
    alone = data.DataLoader([1, 2])
    loaders._fork_unless_chosen(alone)
    assert alone.multiprocessing_context is None
