"""Data loaders: which one feeds the training, how long it is waited for, what a batch holds."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data
from torch.utils._pytree import tree_map
from torch.utils.data import dataloader as torchs

from perfkit.scripts import sites
from perfkit.scripts.steps import clock
from perfkit.scripts.tensors import first_tensor, size, tensors

if TYPE_CHECKING:
    from perfkit.scripts.script import Script

SWITCHES = {
    "workers": "num_workers", "prefetch_factor": "prefetch_factor", "pin_memory": "pin_memory", "batch_size": "batch_size",
}  # fmt: skip
"""Switches that are arguments of `DataLoader`."""
_OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "in_order")


@dataclass
class _Fetched:
    """A batch that was handed over since the last backward pass."""

    loader: Any
    samples: int
    tokens: int
    unused: bool = False
    """Whether a model was evaluated since: then it may have been for that."""


@dataclass
class Loaders:
    """All `DataLoader`s of a script, and what is known of each."""

    script: Script
    training: Any = None
    """The loader whose batches were trained on last."""
    iterator: Any = None
    """Its iterator, which holds the worker processes."""
    random_data: bool = False
    hold: bool = False
    """Whether the same batch is handed over again and again."""
    batch_bytes: tuple[int, int] = (0, 0)
    """Bytes and samples of a batch of the training loader."""
    batch_ids: set[int] = field(default_factory=set)
    """The tensors of the last batch, by `id`, during the first steps."""
    _described: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    """The call that made the first loader of a data set, by the id of the data set."""
    _fetched: list[_Fetched] = field(default_factory=list)
    _held: dict[int, tuple[Any, int, int]] = field(default_factory=dict)
    _inside: bool = False

    # ------------------------------------------------------------ making one

    def make(self, init: Any, loader: Any, args: Any, kwargs: Any) -> None:
        """A loader is made: with the arguments that are set from outside, if it is the one for training."""
        given = dict(inspect.signature(init).bind(loader, *args, **kwargs).arguments)
        given.pop("self")
        dataset = given.get("dataset")
        first = id(dataset) not in self._described
        where = sites.call("loader", type(dataset).__name__, tuple(sorted(kwargs)))
        self._described.setdefault(id(dataset), where)
        if self._is_for_training(given, where):
            given |= self._changes(given, first)
        if not given.get("num_workers"):
            given = {name: value for name, value in given.items() if name not in _OF_WORKERS}
        init(loader, **given)

    def _is_for_training(self, given: dict[str, Any], where: dict[str, Any]) -> bool:
        known = self.script.settings["loaders"]
        if known:
            places = [[f["file"], f["line"], f["column"]] for f in where["frames"][:1]]
            return any(place in known for place in places)
        drawn = any(given.get(name) for name in ("shuffle", "sampler", "batch_sampler"))
        return drawn or isinstance(given.get("dataset"), data.IterableDataset)

    def _changes(self, given: dict[str, Any], first: bool) -> dict[str, Any]:
        """The arguments that are set from outside; a loader that a framework makes again keeps quiet."""
        toggles = self.script.toggles
        own_batches = given.get("batch_sampler") is not None or given.get("batch_size", 1) is None
        reasons = self.why_not(given.get("dataset"), given.get("num_workers") or 0, own_batches)
        wanted = {name: toggles[switch] for switch, name in SWITCHES.items() if switch in toggles}
        for switch, reason in reasons.items():
            if wanted.pop(SWITCHES[switch], None) and first:
                self.script.refuse(switch, reason)
        if wanted.get("num_workers"):
            wanted["persistent_workers"] = True  # or each epoch would start them again
        return wanted

    @staticmethod
    def why_not(dataset: Any, workers: int, own_batches: bool) -> dict[str, str]:
        """The switches that cannot be set of a loader, and why."""
        reasons = {}
        if own_batches:
            reasons["batch_size"] = "a batch sampler makes the batches: change it where that is made"
        if isinstance(dataset, data.IterableDataset) and not workers:
            reasons["workers"] = (
                "each worker would repeat an iterable data set: divide it by get_worker_info() first"
            )
        return reasons

    # ------------------------------------------------------------ fetching

    def fetch(self, plain_next: Any, iterator: Any) -> Any:
        """The next batch of a loader's iterator; the time it takes is waiting, if it is for training."""
        if self._inside or threading.current_thread() is not threading.main_thread():
            if not self._inside:
                self.script.note("batches are fetched in a thread of the script's own: waiting is not seen")
            return plain_next(iterator)
        script, loader = self.script, iterator.seen_loader
        script.models.leave_autocast()
        script.steps.begin()
        start, self._inside = clock(), True
        try:
            batch, samples, tokens = self._held_or_next(plain_next, iterator, loader)
        except StopIteration:
            script.steps.now.marks.add("new epoch")
            raise
        finally:
            self._inside = False
            if _kind(loader) != "eval":
                script.steps.now.waited += clock() - start
        self._fetched.append(_Fetched(loader, samples, tokens))
        self.iterator = iterator if _kind(loader) != "eval" else self.iterator
        if script.steps.count < script.FIRST:
            parts = list(tensors(batch))
            self.batch_ids = {id(tensor) for tensor in parts}
            if _kind(loader) != "eval":
                self.batch_bytes = sum(tensor.nbytes for tensor in parts), samples
        return batch

    def _held_or_next(self, plain_next: Any, iterator: Any, loader: Any) -> tuple[Any, int, int]:
        if self.hold and id(loader) in self._held:
            batch, samples, tokens = self._held[id(loader)]
            return tree_map(lambda leaf: leaf, batch), samples, tokens  # its containers may be emptied
        looks = not self.random_data and self.script.steps.count < self.script.FIRST
        before = _random_state() if looks and iterator._num_yielded and not iterator._num_workers else None
        batch = plain_next(iterator)
        if before and before != _random_state():
            self.random_data = True
        first = first_tensor(batch)
        sent = iterator.seen_indices.popleft() if iterator.seen_indices else None
        samples, tokens = size(first)
        if isinstance(sent, list | tuple) and list(sent[:1]) != [None]:
            samples = len(sent)
        if self.hold and _kind(loader) == "train":
            self._held[id(loader)] = self._on_device(batch), samples, tokens
        return batch, samples, tokens

    def _on_device(self, batch: Any) -> Any:
        """The batch as the model needs it: its script copies nothing then."""
        device = self.script.models.device()
        if device.type == "cpu":
            return tree_map(lambda leaf: leaf, batch)
        return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, batch)

    def release(self) -> None:
        """Batches come from the loaders again."""
        self.hold = False
        self._held.clear()

    # ------------------------------------------------------------ which were for training

    def evaluated(self) -> None:
        """A model was called without gradients: the batches fetched before may have been for that."""
        for fetched in self._fetched:
            fetched.unused = True

    def settle(self) -> None:
        """A backward pass begins: which of the batches since the last one were for training."""
        for fetched in self._fetched:
            loader, last = fetched.loader, self._fetched[-1].loader
            trains = _kind(loader) == "train" or loader is last or not fetched.unused
            loader.__dict__["seen_kind"] = "train" if trains else "eval"
            if trains:
                self.script.steps.now.samples += fetched.samples
                self.script.steps.now.tokens += fetched.tokens
                self.training = loader
            else:
                self.script.steps.now.marks.add("evaluation")
        self._fetched.clear()

    # ------------------------------------------------------------ what is asked

    def queued(self) -> int:
        """Batches in the queue of the training loader's workers; 0 where that cannot be known."""
        try:
            return int(self.iterator._data_queue.qsize())
        except (AttributeError, NotImplementedError):
            return 0

    def prefetched(self) -> int:
        """Batches that this queue holds when it is full."""
        loader = self.training
        return (getattr(loader, "num_workers", 0) or 0) * (getattr(loader, "prefetch_factor", 0) or 0)

    def site(self) -> dict[str, Any] | None:
        """The user's call that made the training loader."""
        return self._described.get(id(getattr(self.training, "dataset", None)))


def _kind(loader: Any) -> str | None:
    """`train` or `eval`, once that is known. Kept in the loader: `id` is slow where audit hooks are set."""
    kind: str | None = loader.__dict__.get("seen_kind")
    return kind


def _random_state() -> tuple[int, ...]:
    numpy: Any = sys.modules.get("numpy")
    own = numpy.random.get_state() if numpy else ()
    return (
        hash(torch.get_rng_state().numpy().tobytes()), hash(random.getstate()),
        hash((own[1].tobytes(), own[2])) if own else 0,
    )  # fmt: skip


def patch(loaders: Loaders) -> None:
    """From now on every `DataLoader` of this process is seen."""
    plain_make = data.DataLoader.__init__
    base: Any = torchs._BaseDataLoaderIter
    plain_init, plain_reset = base.__init__, base._reset
    plain_index, plain_next = base._next_index, base.__next__

    @functools.wraps(plain_make)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        loaders.make(plain_make, self, args, kwargs)

    def init(self: Any, loader: Any) -> None:
        self.seen_loader, self.seen_indices = loader, deque()
        loaders.script.steps.now.marks.add("new epoch")
        plain_init(self, loader)

    def reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        self.seen_indices.clear()
        loaders.script.steps.now.marks.add("new epoch")
        plain_reset(self, loader, first_iter)

    def next_index(self: Any) -> Any:
        """The sampler knows how many samples a batch has, whatever the collate function makes of them."""
        indices = plain_index(self)
        self.seen_indices.append(indices)
        return indices

    def next_(self: Any) -> Any:
        return loaders.fetch(plain_next, self)

    data.DataLoader.__init__ = make  # type: ignore[method-assign]
    base.__init__, base._reset, base._next_index, base.__next__ = init, reset, next_index, next_
