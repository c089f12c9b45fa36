"""What loads a training's data: what the data set holds, and what a sample and a batch cost.

Read in the script's process and in its loader workers, which leave what they have seen in files.
"""

import contextlib
import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy
import torch
from torch.utils import data

from perfkit.additions.inside.lines import Line, Sampler, Times, lines
from perfkit.additions.scripts.outputs import clock
from perfkit.additions.scripts.script import attributes

_GENERATORS = numpy.random.Generator | numpy.random.RandomState | random.Random | torch.Generator
_DEPTH, _WIDTH = 3, 50
"""How deep containers of a data set are looked into, and how long they may be."""


class DataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A loader and its data set, as far as they tell.

    `generators`: attributes that hold random number generators. `in_memory`: attributes with a row for each
    sample. `objects`: Python objects in lists and dicts, which attributes hold them: `of`. `open_files`:
    attributes of h5py, with the rows of a chunk. `can_batch`: it has `__getitems__`, or makes batches itself.
    `is_split`: an iterable data set divides itself between workers.
    """

    kind: str
    workers: int
    persistent: bool
    is_iterable: bool = False
    is_split: bool = False
    can_batch: bool = False
    generators: list[str] = []
    in_memory: list[str] = []
    objects: int = 0
    of: list[str] = []
    open_files: dict[str, int] = {}


class Loading(msgspec.Struct, kw_only=True):
    """Seconds that batches took in whatever process made them, and the lines of it in loader workers."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    collate_s: float = 0.0
    lines: list[Line] = []

    @property
    def batch_s(self) -> float:
        """Of a batch, in the process that loads."""
        return self.seconds / max(1, self.batches)


class Watch:
    """Times fetches of batches; in a worker it looks at the stacks, too, and leaves a file."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._here = Loading()
        self._times: Times = {}
        self._is_collating = False

    @contextlib.contextmanager
    def fetching(self, script: Any, fetcher: Any, indices: Any) -> Iterator[None]:
        """One batch is fetched meanwhile."""
        in_worker, collate = data._utils.worker._worker_info is not None, fetcher.collate_fn
        collating = self._here

        def timed(samples: Any) -> Any:
            start = clock()
            self._is_collating = True
            try:
                with script.doing("collate"):
                    return collate(samples)
            finally:
                self._is_collating = False
                collating.collate_s += clock() - start

        fetcher.collate_fn, start = timed, clock()
        sampler = Sampler(lambda: "collate" if self._is_collating else "data set", script.place)
        try:
            with script.doing("data set"), sampler.running() if in_worker else contextlib.nullcontext():
                yield
        finally:
            fetcher.collate_fn = collate
        self._here.batches += 1
        self._here.samples += len(indices) if isinstance(indices, list | tuple) else 1
        self._here.seconds += clock() - start
        for key, seconds in sampler.times.items():
            self._times[key] = self._times.get(key, 0.0) + seconds
        if in_worker:
            self._here.lines = lines(self._times)
            with script.files.ignored():
                part = self._folder / f"loading-{os.getpid()}.part"
                part.write_bytes(msgspec.json.encode(self._here))
                part.replace(part.with_suffix(".json"))

    def total(self) -> Loading | None:
        """Of this process and of all workers; None if nothing was loaded."""
        found = [self._here]
        for file in self._folder.glob("loading-*.json"):
            found.append(msgspec.convert(json.loads(file.read_text()), Loading))
        total = Loading(
            batches=sum(each.batches for each in found),
            samples=sum(each.samples for each in found),
            seconds=sum(each.seconds for each in found),
            collate_s=sum(each.collate_s for each in found),
            lines=[line for each in found for line in each.lines],
        )
        return total if total.batches else None


def facts(loader: Any, asked_worker: int) -> DataFacts:
    """What a loader and its data set are."""
    dataset: Any = getattr(loader, "dataset", None)
    objects, of = 0, list[str]()
    generators, in_memory, open_files = list[str](), list[str](), dict[str, int]()
    count = -1
    with contextlib.suppress(Exception):  # iterable ones have none
        count = len(dataset)
    for name, value in _held(dataset):
        if isinstance(value, _GENERATORS):
            generators.append(name)
        elif isinstance(value, torch.Tensor | numpy.ndarray):
            is_plain = not isinstance(value, numpy.memmap) and str(value.dtype) != "object"
            if is_plain and value.ndim and len(value) == count:
                in_memory.append(name)
        elif type(value).__module__.split(".")[0] == "h5py":
            open_files[name] = int((getattr(value, "chunks", None) or [0])[0])
        elif isinstance(value, list | tuple | dict) and len(value) > _WIDTH:
            objects += _objects(value)
            of.append(name)
    is_iterable = isinstance(dataset, data.IterableDataset)
    makes_batches = getattr(loader, "batch_size", 1) is None or hasattr(dataset, "__getitems__")
    return DataFacts(
        kind=type(dataset).__name__,
        workers=getattr(loader, "num_workers", 0) or 0,
        persistent=bool(getattr(loader, "persistent_workers", False)),
        is_iterable=is_iterable,
        is_split=bool(asked_worker) or getattr(loader, "worker_init_fn", None) is not None,
        can_batch=bool(makes_batches),
        generators=generators,
        in_memory=in_memory,
        objects=objects,
        of=of,
        open_files=open_files,
    )


def _held(value: Any, name: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """The attributes of a data set by name, also those of what it holds."""
    if not depth or isinstance(value, str | bytes | int | float | torch.Tensor | numpy.ndarray | type):
        return
    inner: Any = {}
    if isinstance(value, Mapping) and len(value) <= _WIDTH:
        inner = value
    elif isinstance(value, list | tuple) and len(value) <= _WIDTH:
        inner = dict(enumerate(value))
    elif not isinstance(value, Mapping | list | tuple):
        with contextlib.suppress(Exception):  # a C extension may have no state
            of_class = {key: part for key, part in vars(type(value)).items() if key[:2] != "__"}
            inner = {**of_class, **attributes(value)} if depth == _DEPTH else attributes(value)
    for key, part in inner.items():
        known = f"{name}.{key}" if name else str(key)
        yield known, part
        yield from _held(part, known, depth - 1)


def _objects(value: Any) -> int:
    """About how many Python objects a long container holds: those of its first element for each of them."""
    first = next(iter(value.values() if isinstance(value, dict) else value))
    if isinstance(first, torch.Tensor | numpy.ndarray):
        return len(value)
    inner = first.values() if isinstance(first, dict) else first
    each = 1
    if isinstance(first, list | tuple | dict):
        each += len(first) + sum(len(part) for part in inner if isinstance(part, list | tuple))
    return len(value) * each
