"""What a recipe would take, from a few measured parts: no training, no device; predictions that are scored.

Per sample the loader needs `fetch_s` of one core; the step on a batch that is already there needs
`compute_s(batch)`. Without workers they add up; with workers the slower one binds, and on a CPU both need the
same cores. The parts come from runs that were measured for other reasons.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from perfkit.runs import Run

DATA = ("uint8_copy", "device_resize", "batched_fetch")
COMPUTE = ("amp", "channels_last", "compile", "compile_mode", "optimizer_impl", "set_to_none", "tf32",
            "cudnn_benchmark", "cpu_threads", "accumulation", "uint8_copy", "device_resize")  # fmt: skip
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


def flavour(recipe: Mapping[str, object], names: Iterable[str]) -> Flavour:
    """The values that decide a part."""
    return tuple(recipe[name] for name in names)


def fit(runs: Iterable[Run]) -> Model:
    """The parts, from measured runs of one machine and workload; medians where there are several."""
    fetch: dict[Flavour, list[float]] = {}
    compute: dict[Flavour, dict[int, list[float]]] = {}
    sizes: dict[Flavour, int] = {}
    cores, device = 1, "cpu"
    for run in runs:
        if run.status != "ok" or run.recipe.get("resident"):
            continue
        cores, device = int(run.machine.get("cpu", {}).get("cores_usable") or cores), run.device
        batch = run.samples_per_step
        data, computed = flavour(run.recipe, DATA), flavour(run.recipe, COMPUTE)
        if run.recipe["workers"] == 0 and run.data_wait_s:
            fetch.setdefault(data, []).append(
                run.data_wait_s.median / batch * int(run.recipe["accumulation"])
            )
        if ceiling := run.ceiling_samples_per_s:
            compute.setdefault(computed, {}).setdefault(batch, []).append(batch / ceiling)
        sizes[data] = run.batch_bytes_per_sample or 0
    return Model(
        cores=cores, device=device, fetch_s={key: statistics.median(v) for key, v in fetch.items()},
        compute_s={
            key: {batch: statistics.median(v) for batch, v in found.items()} for key, found in compute.items()
        },
        bytes_per_sample=sizes,
    )  # fmt: skip


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
    hidden = bool(recipe["pin_memory"] and recipe["non_blocking"])
    beside = max(copy, compute) if hidden else copy + compute
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
        step = known[binds]
    return Prediction(step_s=step, binds=binds, fetch_s=fetch, copy_s=copy, compute_s=compute)


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


class Score(Struct, frozen=True, kw_only=True):
    """How far predictions were from what was measured afterwards: relative errors of the step's time."""

    count: int
    median: float
    p90: float


def score(model: Model, runs: Iterable[Run]) -> Score | None:
    """The model against measured runs; None if it can predict none of them."""
    errors = []
    for run in runs:
        if run.status == "ok" and (rate := run.samples_per_s) and (told := predict(model, run.recipe)):
            measured = run.samples_per_step / rate.median
            errors.append(abs(told.step_s - measured) / measured)
    if not errors:
        return None
    return Score(count=len(errors), median=float(np.median(errors)), p90=float(np.percentile(errors, 90)))
