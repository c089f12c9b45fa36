"""Data loaders: which one feeds the training, how long it is waited for, what a batch holds."""

import contextlib
import inspect
import math
import mmap
import os
import pickle
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch.utils import data
from torch.utils._pytree import tree_map

from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.loaded_data import Watch
from perfkit.additions.scripts.messages import Site
from perfkit.additions.scripts.outputs import clock
from perfkit.additions.scripts.script import MOST_LOOKS, Script, size, tensors

ARGUMENTS = {
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "pin_memory": "pin_memory",
    "batch_size": "batch_size",
}
"""Switches that are arguments of `DataLoader`."""
_OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "in_order")
_KIND = "_perfkit_kind"
"""`train` or `eval`, once that is known. Kept in the loader: `id` is slow where audit hooks are set."""


class Loaders:
    """The `DataLoader`s of a script, and what is known of each."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.drawn = mmap.mmap(-1, 1)
        """Whether the data set draws random numbers; shared with worker processes."""
        self.asked_worker = mmap.mmap(-1, 1)
        """Whether code that loads has asked which worker it is, so shared too."""
        self._is_watched = mmap.mmap(-1, 1)
        self._watch = Watch(os.path.dirname(script.settings["scratch"]))
        self._looks = 0
        self._sites: dict[int, Site] = {}  # by the data set
        self._batch_ids: set[int] = set()
        # Loader, samples, whether it was the first of an epoch: since the last backward pass.
        self._fetched: list[tuple[Any, int, bool]] = []
        self._before_evaluation = 0  # how many of them may have been for an evaluation
        self._is_fetching = False
        hooks.wrap("torch.utils.data.DataLoader.__init__", self._make)
        hooks.wrap(f"{hooks.ITERATOR}.__init__", self._begin_epoch)
        hooks.wrap(f"{hooks.ITERATOR}._reset", self._begin_epoch)
        hooks.wrap(f"{hooks.ITERATOR}._next_index", self._next_index)
        hooks.wrap(f"{hooks.ITERATOR}.__next__", self._fetch)
        hooks.wrap(f"{hooks.LOADER}._MultiProcessingDataLoaderIter._shutdown_workers", self._end_workers)
        hooks.wrap(f"{hooks.FETCH}._MapDatasetFetcher.fetch", self._fetch_samples)
        hooks.wrap(f"{hooks.FETCH}._IterableDatasetFetcher.fetch", self._fetch_samples)
        for module in ("torch.utils.data", "torch.utils.data._utils.worker"):
            hooks.wrap(f"{module}.get_worker_info", self._ask_worker)
        hooks.wrap("torch.Tensor.to", self._copy)
        hooks.wrap("torch.Tensor.cuda", self._copy)

    def _make(self, plain: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        script, site = self._script, self._script.call_under_way("loader")
        self._sites.setdefault(id(args[0] if args else kwargs.get("dataset")), site)
        place = next(([frame.file, frame.line, frame.column] for frame in site.frames), None)
        changes = {ARGUMENTS[name]: script.toggles[name] for name in ARGUMENTS.keys() & script.toggles.keys()}
        if not changes or place not in script.settings["loaders"]:
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

    def _begin_epoch(self, plain: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        # The indices are those of the batches that are under way.
        iterator._perfkit = SimpleNamespace(loader=loader, indices=deque(), handed=0, was_held=False)
        is_new = loader.__dict__.get(_KIND) != "eval"
        self._script.tell("fetch")
        with self._script.doing("start" if is_new else "evaluation"):
            plain(iterator, loader, *args, **kwargs)

    def _end_workers(self, plain: Any, iterator: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            plain(iterator)
            return
        with self._script.doing("start"):
            plain(iterator)

    def _next_index(self, plain: Any, iterator: Any) -> Any:
        """The sampler knows how many samples a batch has, whatever the collate function makes of them."""
        indices = plain(iterator)
        iterator._perfkit.indices.append(indices)
        return indices

    def _fetch(self, plain: Any, iterator: Any) -> Any:
        """The next batch of a loader's iterator; the time it takes is waiting, if it is for training."""
        script, epoch = self._script, iterator._perfkit
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main:
            script.note("batches are fetched in a thread of the script's own: waiting is not seen")
        if not is_main or self._is_fetching:
            return plain(iterator)
        script.steps.begin()
        script.tell("fetch")
        may_train, start = epoch.loader.__dict__.get(_KIND) != "eval", clock()
        is_first, self._is_fetching = not epoch.handed, True
        part = "evaluation" if not may_train else "start" if is_first else "waiting"
        try:
            with script.doing(part):
                batch, samples = self._held_or_next(plain, iterator, epoch)
        finally:
            self._is_fetching = False
            if may_train:
                script.steps.now.waited += clock() - start
        self._fetched.append((epoch.loader, samples, is_first))
        if not torch.is_grad_enabled():
            script.tell("evaluation")
        is_seen = script.steps.are_first or script.held
        self._batch_ids = {id(tensor) for tensor in tensors(batch)} if is_seen else set()
        if may_train:
            script.iterator = iterator
        return batch

    def _held_or_next(self, plain: Any, iterator: Any, epoch: Any) -> tuple[Any, int]:
        script, loader, held = self._script, epoch.loader, self._script.held or {}
        epoch.was_held |= loader in held
        if epoch.was_held and epoch.handed >= _length(loader):
            script.iterator = None  # its workers end with it
            raise StopIteration
        epoch.handed += 1
        if loader in held:
            batch, samples = held[loader]
            return tree_map(lambda leaf: leaf, batch), samples  # a script may empty its containers
        batch = plain(iterator)
        samples, _ = size(batch)
        indices = epoch.indices.popleft() if epoch.indices else None
        if isinstance(indices, list | tuple) and None not in indices[:1]:
            samples = len(indices)
        if script.held is not None and loader.__dict__.get(_KIND) == "train":
            script.held[loader] = batch, samples
        return batch, samples

    def _copy(self, plain: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Sees where batches are copied; with `non_blocking` set, those from pinned memory do not wait.

        What a script copies of a held batch is on the device already when it does so again; the rest of the
        batch stays on the host, where the script may need it: lengths of sequences, targets for a metric.
        """
        script, is_of_batch = self._script, id(tensor) in self._batch_ids
        is_said = any(isinstance(arg, bool) for arg in args)  # as in `.cuda(0, True)`
        wanted = script.toggles.get("non_blocking") and not is_said
        named = args[0] if args else kwargs.get("device")
        is_copy = plain.__name__ == "cuda" or isinstance(named, str | int | torch.device)
        # Only the driver knows what is pinned, and takes time: a change of type does not ask it.
        if wanted and is_copy and not tensor.is_cuda and tensor.is_pinned():
            kwargs = {**kwargs, "non_blocking": True}
        if is_of_batch and is_copy:
            script.copies.append(kwargs)
            script.note_call("copy")
        if not (is_of_batch and script.held):
            return plain(tensor, *args, **kwargs)
        call = (id(tensor), args, *kwargs.items())
        copied = plain(script.held.get(call, tensor), *args, **kwargs)
        if call not in script.held and copied.device != tensor.device:
            script.held[call] = plain(tensor, copied.device)
        return copied

    @contextlib.contextmanager
    def watched(self) -> Iterator[Watch]:
        """Times batches where they are made, in this process or in workers that were forked from it."""
        self._is_watched[0] = 1
        try:
            yield self._watch
        finally:
            self._is_watched[0] = 0

    def _ask_worker(self, plain: Any) -> Any:
        """A data set that asks which worker it is divides itself; torch asks when it makes a batch."""
        if not sys._getframe(2).f_code.co_filename.endswith("collate.py"):
            self.asked_worker[0] = 1
        return plain()

    def _fetch_samples(self, plain: Any, fetcher: Any, indices: Any) -> Any:
        """Fetches samples, in this process or in a worker, and sees whether random numbers are drawn."""
        if self._is_watched[0]:
            with self._watch.fetching(self._script, fetcher, indices):
                return plain(fetcher, indices)
        self._looks += 1
        if self._looks > MOST_LOOKS:
            return plain(fetcher, indices)
        state = _random_state()
        samples = plain(fetcher, indices)
        self.drawn[0] |= state != _random_state()
        return samples

    def on_evaluation(self) -> None:
        self._before_evaluation = len(self._fetched)

    def on_backward(self) -> None:
        """Decides which of the batches since the last backward pass were for training."""
        now = self._script.steps.now
        for number, (loader, samples, is_first) in enumerate(self._fetched):
            is_recent = number >= self._before_evaluation or loader is self._fetched[-1][0]
            if is_recent or loader.__dict__.get(_KIND) == "train":
                loader.__dict__[_KIND] = "train"
                now.samples += samples
                if is_first:
                    now.marks.add("new epoch")
                self._script.loader = loader
                if site := self._sites.get(id(getattr(loader, "dataset", None))):
                    self._script.sites["loader"] = [site]
            else:
                loader.__dict__[_KIND] = "eval"
                now.marks.add("evaluation")
        self._fetched.clear()
        self._before_evaluation = 0


def _length(loader: Any) -> float:
    """Batches of an epoch, as far as the script can know it: held ones must not make an epoch longer."""
    is_iterable = isinstance(loader.dataset, data.IterableDataset)
    if is_iterable and loader._IterableDataset_len_called is None:
        return math.inf  # asking would make torch warn later
    try:  # fastai's stand-in for its loader keeps that as `d`; one without an end may have an epoch's length
        return len(getattr(loader, "d", loader if is_iterable else loader._index_sampler))
    except (TypeError, NotImplementedError):
        return math.inf


def _random_state() -> int:
    return hash(pickle.dumps((random.getstate(), torch.get_rng_state().numpy(), numpy.random.get_state())))
