"""What a recipe would take, from a few measured parts: no training, no device; predictions that are scored.

Per sample the loader needs `fetch_s` of one core; the step on a batch that is already there needs
`compute_s(batch)`. Without workers they add up; with workers the slower one binds, and on a CPU both need the
same cores; what they lose besides is measured by number of workers and batch size. The parts come from runs
that were measured for other reasons.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfkit.ladder import catalogue
from perfkit.results.run import Run
from perfkit.results.tuning import Score

DATA = catalogue.predicted("fetch")
COMPUTE = tuple(name for name in catalogue.predicted("compute") if name != "batch_size")
"""Without the batch size, which every flavour is measured at several values of."""
Flavour = tuple[object, ...]


class Prediction(Struct, frozen=True, kw_only=True):
    """A recipe's step, in seconds, and which part binds: `data`, `compute` or `cores`."""

    step_s: float
    binds: str
    fetch_s: float
    """Of one core, for a batch."""
    copy_s: float
    compute_s: float

    def samples_per_s(self, batch: int) -> float:
        """Throughput at a batch size."""
        return batch / self.step_s


class Model(Struct, frozen=True, kw_only=True):
    """The measured parts, by flavour of the data path and of the computation."""

    cores: int
    device: str
    fetch_s: dict[Flavour, float]
    """Core seconds a sample."""
    compute_s: dict[Flavour, dict[int, float]]
    """Seconds a step by batch size, loader apart."""
    bytes_per_sample: dict[Flavour, int]
    overlap: dict[int, dict[int, float]] = {}
    """Measured step / the ideal one, by number of workers and batch size: workers contend for the cores, and
    hand batches over, which weighs more the smaller they are.

    Of the machine that was measured: with another number of cores it is not known, and left out."""


def flavour(recipe: Mapping[str, object], names: Iterable[str]) -> Flavour:
    """The values that decide a part."""
    return tuple(recipe[name] for name in names)


def rates(runs: Sequence[Run]) -> dict[str, float]:
    """samples/s of each run that was measured, by its id, on a machine as fast as it was during the first.

    A shared machine may halve its pace within minutes, or stand still for a second. A run that was measured
    in turn with a baseline of the first one's recipe is so many times as fast as that, by the median of the
    rounds; of others the pace is not known, and they are taken as they were measured.
    """
    measured = {run.id: run for run in runs if run.raw.block_samples_per_s}
    found = {key: statistics.median(run.raw.block_samples_per_s) for key, run in measured.items()}
    if not measured:
        return found
    first = next(iter(measured.values()))
    pace = found[first.id]
    for run in measured.values():
        beside = next((p for p in run.pairings if p.role == "baseline" and p.interleaved), None)
        base = measured.get(beside.against) if beside else run
        if base and _same(base, first):
            found[run.id] = pace * (statistics.median(beside.round_ratios) if beside else 1.0)
    return found


def _same(a: Run, b: Run) -> bool:
    return (a.recipe, a.workload, a.options) == (b.recipe, b.workload, b.options)


def fit(runs: Iterable[Run]) -> Model:
    """The parts, from measured runs of one machine and workload; medians where there are several.

    Times are those of a machine as fast as it was during the first run (see `rates`).
    """
    runs = [run for run in runs if run.status == "ok" and not run.recipe.get("device_dataset")]
    pace = rates(runs)
    fetch: dict[Flavour, list[float]] = {}
    compute: dict[Flavour, dict[int, list[float]]] = {}
    sizes: dict[Flavour, int] = {}
    cores, device = 1, "cpu"
    for run in runs:
        cores, device = int(run.machine.get("cpu", {}).get("cores_usable") or cores), run.device
        batch = run.samples_per_step
        data, computed = flavour(run.recipe, DATA), flavour(run.recipe, COMPUTE)
        if run.recipe["workers"] == 0 and (wait := run.data_wait_s) and (step := run.step_s):
            share = wait.median * int(run.recipe["accumulation"]) / step.median
            fetch.setdefault(data, []).append(share / pace[run.id])
        if efficiency := run.pipeline_efficiency:
            compute.setdefault(computed, {}).setdefault(batch, []).append(batch * efficiency / pace[run.id])
        sizes[data] = run.batch_bytes_per_sample or 0
    model = Model(
        cores=cores, device=device, fetch_s={key: statistics.median(v) for key, v in fetch.items()},
        compute_s={
            key: {batch: statistics.median(v) for batch, v in found.items()} for key, found in compute.items()
        },
        bytes_per_sample=sizes,
    )  # fmt: skip
    over: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        workers, batch = int(run.recipe["workers"]), int(run.recipe["batch_size"])
        if workers and (ideal := predict(model, run.recipe)):
            lost = run.samples_per_step / pace[run.id] / ideal.step_s
            over.setdefault(workers, {}).setdefault(batch, []).append(lost)
    overlap = {
        workers: {batch: statistics.median(lost) for batch, lost in sorted(found.items())}
        for workers, found in over.items()
    }
    return replace(model, overlap=overlap)


def predict(
    model: Model, recipe: Mapping[str, object], cores: int | None = None, speed: float = 1.0,
    link_bytes_per_s: float | None = None,
) -> Prediction | None:  # fmt: skip
    """A recipe's step; None where a part of it was never measured.

    Args:
        model: the parts.
        recipe: plain data of a recipe.
        cores: usable ones; those of the machine that was measured if None.
        speed: of the device, over the measured one.
        link_bytes_per_s: host to device; None where nothing crosses or the copy is in the measured parts.
    """
    data, batch = flavour(recipe, DATA), int(str(recipe["batch_size"])) * int(str(recipe["accumulation"]))
    known_s = _compute(model, flavour(recipe, COMPUTE), batch)
    if known_s is None or data not in model.fetch_s:
        return None
    compute = known_s / speed
    fetch = model.fetch_s[data] * batch
    copy = batch * model.bytes_per_sample.get(data, 0) / link_bytes_per_s if link_bytes_per_s else 0.0
    # On one stream the copy queues behind the kernels; only a second stream lets the two overlap.
    beside = max(copy, compute) if recipe["device_prefetch"] else copy + compute
    workers, usable = int(str(recipe["workers"])), cores or model.cores
    if workers == 0:
        step, binds = fetch + beside, "data" if fetch > beside else "compute"
    else:
        supply = fetch / min(workers, usable)
        known = {"data": supply, "compute": beside}
        if model.device == "cpu":
            threads = int(str(recipe["cpu_threads"])) or usable
            known["cores"] = (fetch + beside * min(threads, usable)) / usable
        binds = max(known, key=lambda name: known[name])
        step = known[binds] * (_overlap(model, workers, recipe) if usable == model.cores else 1.0)
    return Prediction(step_s=step, binds=binds, fetch_s=fetch, copy_s=copy, compute_s=compute)


def _overlap(model: Model, workers: int, recipe: Mapping[str, object]) -> float:
    """Of the nearest measured number of workers, between its measured batch sizes, each by their ratios."""
    if not model.overlap:
        return 1.0
    known = model.overlap[min(model.overlap, key=lambda count: abs(math.log(count / workers)))]
    return float(np.exp(np.interp(
        math.log(int(str(recipe["batch_size"]))), np.log(list(known)), np.log(list(known.values())),
    )))  # fmt: skip


def _compute(model: Model, wanted: Flavour, batch: int) -> float | None:
    """A step's time on a batch that is there: as measured, or put together from what was measured.

    A flavour that was never measured is taken as the product of what each of its switches does by itself; a
    batch size, from the best-known flavour's line over its batch sizes.
    """
    found = model.compute_s.get(wanted, {})
    if batch in found:
        return found[batch]
    if not model.compute_s:
        return None
    most = max(model.compute_s.values(), key=len)
    if found:
        near = min(found, key=lambda size: abs(size - batch))
        here, there = _line(most, batch), _line(most, near)
        return found[near] * here / there if here and there else None
    for base in model.compute_s:
        steps = [
            (*base[:at], wanted[at], *base[at + 1 :]) for at in range(len(base)) if base[at] != wanted[at]
        ]
        if all(one in model.compute_s for one in steps):
            start = _compute(model, base, batch)
            each = [_compute(model, one, batch) for one in steps]
            if start and all(each):
                return start * math.prod((value or start) / start for value in each)
    return None


def _line(known: Mapping[int, float], batch: int) -> float | None:
    """A step's time on the line through the measured batch sizes; proportional where there is one only."""
    if batch in known:
        return known[batch]
    if len(known) == 1:
        (size, value), *_ = known.items()
        return value * batch / size
    slope, start = np.polyfit(list(known), list(known.values()), 1)
    return max(float(start + slope * batch), min(known.values()) / 4)


def score(model: Model, runs: Iterable[Run], pace: Mapping[str, float] | None = None) -> Score | None:
    """The model against measured runs; None if it can predict none of them.

    Args:
        model: the parts.
        runs: measured after it, or not used for it.
        pace: samples/s of the runs on a machine as fast as the model's, by their ids (see `rates`).
    """
    errors = []
    for run in runs:
        if run.status == "ok" and (rate := run.samples_per_s) and (told := predict(model, run.recipe)):
            measured = run.samples_per_step / (pace or {}).get(run.id, rate.median)
            errors.append(abs(told.step_s - measured) / measured)
    if not errors:
        return None
    return Score(count=len(errors), median=float(np.median(errors)), p90=float(np.percentile(errors, 90)))
