"""Data loaders: which one feeds the training, what its data set holds, what a batch costs."""

import contextlib
import functools
import inspect
import mmap
import multiprocessing
import os
import pickle
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import torch
from numpy.lib.npyio import NpzFile
from torch.utils import data

from perfkit.additions.scripts import batches, hooks, transforms
from perfkit.additions.scripts.messages import DataFacts, Loading, Site, limits
from perfkit.additions.scripts.script import MOST_LOOKS, Callback, Script, pins
from perfkit.additions.shared.attribution import merged, timed_lines
from perfkit.additions.shared.clock import clock, own_time
from perfkit.additions.shared.sampler import PartAndStack, Sampler
from perfkit.additions.shared.tensors import attributes, samples_of, tensors

_GENERATORS = numpy.random.Generator | numpy.random.RandomState | random.Random | torch.Generator
_NOT_WALKED = str | bytes | int | float | torch.Tensor | numpy.ndarray | type | NpzFile  # it loads lazily
_FILES = hooks.TABLES["files"]["names"]
LIMIT = limits("loaders")


class Watch:
    """Times fetches of batches; in a worker, also looks at the stacks, and leaves the results in a file."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._folder = Path(script.settings.scratch).parent
        self._loading = Loading()
        self._sampler = Sampler(lambda: script.parts.now, script.settings.place)
        self._transforms = transforms.TransformTimes(self._sampler.lines)
        self._sampling: contextlib.ExitStack | None = None  # in a worker whose batches are watched
        self.evaluating = set[int]()  # process ids of workers whose batches were for evaluations

    def fetch(self, plain: Any, fetcher: Any, indices: Any) -> Any:
        """Fetches the samples of a batch."""
        script = self._script
        in_worker = data._utils.worker._worker_info is not None
        if in_worker and self._sampling is None:
            self._sampling = contextlib.ExitStack()
            self._sampling.enter_context(self._sampler.running())
        collate = fetcher.collate_fn
        fetcher.collate_fn = functools.partial(script.parts.do, "collate", collate)
        start, wall = own_time(), clock()
        try:
            with self._transforms.timing():
                samples = script.parts.do("data set", plain, fetcher, indices)
        finally:
            fetcher.collate_fn = collate
        if in_worker and not self._loading.batches:  # it may have opened an archive for itself
            self._loading.archives = _archives(fetcher.dataset, dict(_members(fetcher.dataset)))
        self._loading.batches += 1
        self._loading.samples += len(indices) if isinstance(indices, list | tuple) else 1
        self._loading.seconds += own_time() - start
        self._loading.wall_s += clock() - wall
        self._loading.pipelines = self._transforms.pipelines
        self._loading.timed_s = self._transforms.seconds
        if in_worker:
            self._loading.lines = timed_lines(self._looks_in_worker())
            with script.files.ignored():
                part = self._folder / f"loading-{os.getpid()}.part"
                part.write_bytes(msgspec.json.encode(self._loading))
                part.replace(part.with_suffix(".json"))
        return samples

    def _looks_in_worker(self) -> dict[PartAndStack, float]:
        """Times of loading, without the parts and the loop of the process that forked the worker."""
        loop = self._sampler.stack(sys._getframe())
        times = dict(self._sampler.times)  # looks go on meanwhile
        return {
            (part, stack): seconds
            for (part, stack), seconds in times.items()
            if part in ("data set", "collate") and stack != loop
        }

    def end_looking(self) -> None:
        """Ends the looks of a worker, for a batch that is not watched."""
        if self._sampling is not None:
            self._sampling.close()
            self._sampling = None

    def total(self) -> Loading | None:
        """The loading of this process and of all workers of the training; None if nothing was loaded."""
        excluded = {f"loading-{process}.json" for process in self.evaluating}
        files = [file for file in self._folder.glob("loading-*.json") if file.name not in excluded]
        loadings = [self._loading, *(msgspec.json.decode(file.read_bytes(), type=Loading) for file in files)]
        total = Loading(lines=merged(line for loading in loadings for line in loading.lines))
        total.archives = sorted({name for loading in loadings for name in loading.archives})
        total.pipelines = transforms.merged(part for loading in loadings for part in loading.pipelines)
        for name in ("batches", "samples", "seconds", "wall_s", "timed_s"):
            setattr(total, name, sum(getattr(loading, name) for loading in loadings))
        return total if total.batches else None


def data_facts(loader: Any, asked_worker: int, drawn: int = 0) -> DataFacts:
    """The facts of a loader and its data set."""
    dataset: Any = getattr(loader, "dataset", None)
    facts = DataFacts(
        kind=type(dataset).__name__,
        draws=bool(drawn),
        workers=getattr(loader, "num_workers", 0) or 0,
        keeps_workers=hasattr(loader, _KEEPS_WORKERS),
        is_iterable=isinstance(dataset, data.IterableDataset),
        is_split=bool(asked_worker) or getattr(loader, "worker_init_fn", None) is not None,
        can_batch=getattr(loader, "batch_size", 1) is None or hasattr(dataset, "__getitems__"),
    )
    with contextlib.suppress(Exception):  # iterable data sets have no length
        facts.batches = len(loader)
    count = _length(dataset)
    members = dict(_members(dataset))
    facts.archives = _archives(dataset, members)
    for name, value in members.items():
        if isinstance(value, _GENERATORS):
            facts.generators.append(name)
        elif isinstance(value, torch.Tensor | numpy.ndarray):
            is_plain = not isinstance(value, numpy.memmap) and str(value.dtype) != "object"
            if is_plain and value.ndim and len(value) == count:
                facts.in_memory.append(name)
        elif _is_open_file(value):
            facts.shared.append(name)
        elif type(value).__module__.split(".")[0] == "h5py":
            facts.open_files[name] = int((getattr(value, "chunks", None) or [0])[0])
        elif isinstance(value, list | tuple | dict) and len(value) > LIMIT.width:
            facts.objects += _objects(value)
            facts.of.append(name)
    return facts


def _length(dataset: Any) -> int:
    """The samples of a data set; -1 if it has no length."""
    try:
        return len(dataset)
    except Exception:  # as iterable ones, or whatever the user's code raises
        return -1


def _archives(dataset: Any, members: Mapping[str, Any]) -> list[str]:
    """The names of the .npz archives of a data set and its modules that have no array for each sample."""
    modules = {sys.modules.get(type(value).__module__) for value in (dataset, *members.values())}
    named = [item for module in modules for item in getattr(module, "__dict__", {}).items()]
    named += members.items()
    count = _length(dataset)
    return [
        name for name, value in named if isinstance(value, NpzFile) and not 0 <= count <= len(value.files)
    ]


def _is_open_file(value: Any) -> bool:
    """Whether a value is a file that forked processes would read at one shared position."""
    if f"{type(value).__module__}.{type(value).__name__}" not in _FILES or getattr(value, "closed", False):
        return False
    return not hasattr(value, "readable") or bool(value.readable())


def _members(value: Any, name: str = "", depth: int = LIMIT.depth) -> Iterator[tuple[str, Any]]:
    if not depth or isinstance(value, _NOT_WALKED):
        return
    inner: Any = {}
    is_hdf5 = type(value).__module__.startswith("h5py.")  # any other mapping may load what it is asked for
    if (isinstance(value, dict) or (is_hdf5 and isinstance(value, Mapping))) and len(value) <= LIMIT.width:
        inner = value
    elif isinstance(value, list | tuple) and len(value) <= LIMIT.width:
        inner = dict(enumerate(value))
    elif not isinstance(value, Mapping | list | tuple):
        with contextlib.suppress(Exception):  # a C extension may have no state
            of_class = {key: member for key, member in vars(type(value)).items() if key[:2] != "__"}
            inner = {**of_class, **attributes(value)} if depth == LIMIT.depth else attributes(value)
    for key, member in inner.items():
        full_name = f"{name}.{key}" if name else str(key)
        yield full_name, member
        yield from _members(member, full_name, depth - 1)


def _objects(value: Any) -> int:
    """About how many Python objects a long container holds, if all elements are like the first one."""
    first = next(iter(value.values() if isinstance(value, dict) else value))
    inner = first.values() if isinstance(first, dict) else first
    per_element = 1
    if isinstance(first, list | tuple | dict):
        per_element += len(first) + sum(len(item) for item in inner if isinstance(item, list | tuple))
    return len(value) * per_element


def _fork_unless_chosen(loader: Any) -> None:
    """Has workers forked, so that looks reach them: since Python 3.14 they are started by a server."""
    default = multiprocessing.get_all_start_methods()[0]  # creating a lock sets it
    is_default = multiprocessing.get_start_method(allow_none=True) in (None, default)
    if sys.platform == "linux" and loader.num_workers and is_default and not loader.multiprocessing_context:
        loader.multiprocessing_context = "fork"


ARGUMENTS: dict[str, str] = hooks.TABLES["arguments"]  # switches that are arguments of `DataLoader`
# Attributes that are set on a loader.
_COPY, _KEEPS_WORKERS, _WORKERS = "_perfkit_copy", "_perfkit_keeps_workers", "_perfkit_workers"
_OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "in_order")


class Loaders(Callback):
    """The `DataLoader`s of a script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._seen = script.batches
        self.drawn = mmap.mmap(-1, 1)  # whether the data set draws random numbers; shared with workers
        self.asked_worker = mmap.mmap(-1, 1)  # whether code that loads has asked which worker it is
        self.watch = Watch(script)
        self._looks = 0
        self._is_fetching = False
        self._sites: dict[int, Site] = {}  # by the `id` of the data set
        self._batch_ids: set[int] = set()
        self._ledger = batches.BatchLedger()
        hooks.listen(self, "loaders")

    def _make(self, plain: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        script = self._script
        site = script.calls.under_way("loader")
        self._sites.setdefault(id(args[0] if args else kwargs.get("dataset")), site)
        place = next(((frame.file, frame.line, frame.column) for frame in site.frames), None)
        changes = {ARGUMENTS[name]: script.toggles[name] for name in ARGUMENTS.keys() & script.toggles.keys()}
        if not changes or place not in script.settings.loaders:
            plain(loader, *args, **kwargs)
            return
        if changes.get("num_workers"):
            changes["persistent_workers"] = True
        arguments = inspect.signature(plain).bind(loader, *args, **kwargs).arguments
        if arguments.get("batch_sampler") is not None:  # a framework makes the loader again
            changes.pop("batch_size", None)
        arguments |= changes
        if not arguments.get("num_workers"):
            arguments = {name: value for name, value in arguments.items() if name not in _OF_WORKERS}
        plain(**arguments)

    def _iterate(self, plain: Any, loader: Any) -> Any:
        """Makes an iterator, which may start workers, or restarts one."""
        part = "evaluation" if _detached(loader).__dict__.get(batches.KIND) == batches.EVALUATION else "start"
        self._script.parts.begin_fetch()
        _fork_unless_chosen(loader)
        return self._script.parts.do(part, plain, loader)

    def _begin_epoch(self, plain: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        # `indices` has those of the batches that are under way.
        previous = getattr(iterator, "_perfkit", None)
        iterator._perfkit = SimpleNamespace(loader=_detached(loader), indices=deque(), has_begun=False)
        if previous and previous.has_begun:  # the workers of the previous epoch go on
            iterator._perfkit.loader.__dict__[_KEEPS_WORKERS] = True
        plain(iterator, loader, *args, **kwargs)
        workers = getattr(iterator, "_workers", [])
        iterator._perfkit.ended = SimpleNamespace(_workers=workers)
        process_ids = iterator._perfkit.loader.__dict__.setdefault(_WORKERS, set())
        process_ids.update(worker.pid for worker in workers)

    def _end_workers(self, plain: Any, iterator: Any) -> None:
        if threading.get_ident() == self._script.steps.trainer:
            self._script.parts.do("start", plain, iterator)
        else:
            plain(iterator)

    def _next_index(self, plain: Any, iterator: Any) -> Any:
        """Records indices: they tell the samples of a batch, whatever the collate function returns."""
        if self._script.parts.looked_at.value and self._script.parts.now == "waiting":
            indices = self._script.parts.do("sampler", plain, iterator)
        else:
            indices = plain(iterator)
        iterator._perfkit.indices.append(indices)
        return indices

    def _fetch(self, plain: Any, iterator: Any) -> Any:
        script, epoch = self._script, iterator._perfkit
        is_trainer = threading.get_ident() == script.steps.trainer
        if not is_trainer and script.steps.count:  # before the first step it is not known who trains
            script.note("batches are fetched in another thread than the training's: waiting is not seen")
        if not is_trainer or self._is_fetching:
            return plain(iterator)
        script.steps.begin()
        script.parts.begin_fetch()
        is_evaluating = self._ledger.is_evaluating(epoch.loader)
        is_first = not epoch.has_begun
        epoch.has_begun = True
        part = "evaluation" if is_evaluating else "start" if is_first else "waiting"
        batch, indices = self._take(part, plain, iterator)
        self._ledger.fetch(epoch.loader, samples_of(batch, indices), is_first)
        if is_first:
            script.tell(Callback.on_epoch, epoch.loader, indices)
        if not torch.is_grad_enabled():
            script.tell(Callback.on_evaluation)
        if not is_evaluating:
            self._seen.iterator = epoch.ended
            if script.steps.are_first and pins(script.loader):
                self._seen.are_pinned = any(tensor.is_pinned() for tensor in tensors(batch))
        if script.steps.are_first:
            self._batch_ids = {id(tensor) for tensor in tensors(batch)}
        return batch

    def _take(self, part: str, plain: Any, iterator: Any) -> tuple[Any, Any]:
        """The next batch, fetched in this part of a step, and the indices of its samples if known."""
        self._is_fetching = True
        try:
            batch = self._script.parts.do(part, plain, iterator)
        finally:
            self._is_fetching = False
        indices = iterator._perfkit.indices
        return batch, indices.popleft() if indices else None

    def _copy(self, plain: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Notes where batches are copied; if it is switched on, sets `non_blocking` for pinned tensors."""
        script = self._script
        flags = [arg for arg in args if isinstance(arg, bool)]  # `non_blocking`, as in `.cuda(0, True)`
        target = args[0] if args else kwargs.get("device")
        is_copy = plain.__name__ == "cuda" or isinstance(target, str | int | torch.device)
        # `is_pinned` asks the driver, which takes time: it is not called for a change of type.
        is_switched = script.toggles.get("non_blocking") and not flags and is_copy
        if is_switched and not tensor.is_cuda and tensor.is_pinned():
            kwargs = {**kwargs, "non_blocking": True}
        if is_copy and id(tensor) in self._batch_ids and script.steps.are_first:
            self._seen.copies.append({**kwargs, "non_blocking": True} if any(flags) else kwargs)
            script.calls.note("copy")
        return plain(tensor, *args, **kwargs)

    def _ask_worker(self, plain: Any) -> Any:
        """Notes that a data set asks for its worker, so it splits itself; torch's `collate` asks, too."""
        if not sys._getframe(2).f_code.co_filename.endswith("collate.py"):
            self.asked_worker[0] = 1
        return plain()

    def _fetch_samples(self, plain: Any, fetcher: Any, possibly_batched_index: Any) -> Any:
        """Fetches samples, in this process or in a worker, and notes whether random numbers are drawn."""
        in_worker = data._utils.worker._worker_info is not None
        part = self._script.parts.now  # in a worker, the one in which it was started
        if self._script.parts.looked_at.value and part != "evaluation" and (in_worker or part != "start"):
            return self.watch.fetch(plain, fetcher, possibly_batched_index)
        self.watch.end_looking()
        self._looks += 1
        if self._looks > MOST_LOOKS:
            return plain(fetcher, possibly_batched_index)
        state = _random_state()
        samples = plain(fetcher, possibly_batched_index)
        self.drawn[0] |= state != _random_state()
        return samples

    def on_evaluation(self) -> None:
        self._ledger.evaluate()

    def on_backward(self) -> None:
        script = self._script
        now = script.steps.now
        training, evaluation = self._ledger.backward()
        for batch in evaluation:
            now.marks.add("evaluation")
            self.watch.evaluating |= batch.loader.__dict__[_WORKERS]
        for batch in training:
            now.samples += batch.samples
            if batch.is_first:
                now.marks.add("new epoch")
            if script.loader is not batch.loader:
                self._seen.loader = batch.loader
                self.watch.evaluating -= batch.loader.__dict__[_WORKERS]
                if site := self._sites.get(id(getattr(batch.loader, "dataset", None))):
                    script.calls.sites["loader"] = [site]


def _detached(loader: Any) -> Any:
    """A copy of a loader without its iterator, whose workers end once the script lets go of it."""
    copy = loader.__dict__.get(_COPY)
    if copy is None:
        copy = object.__new__(type(loader))
        copy.__dict__.update(loader.__dict__, _iterator=None)
        loader.__dict__[_COPY] = copy
    return copy


def _random_state() -> int:
    return hash(pickle.dumps((random.getstate(), torch.get_rng_state().numpy(), numpy.random.get_state())))
