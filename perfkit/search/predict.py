"""What a recipe would take, predicted from a few measured parts, without training; predictions are scored.

For a sample the loader needs `fetch_s` of one core; the step on a batch that is already there needs
`compute_s(batch)`. On a CPU the two add up without workers, and compete for the cores with them; with an
accelerator they overlap (`Pipeline`), and the slower one is the bottleneck. What workers cost besides is
measured by number of workers and batch size. The parts come from runs that were measured for other reasons.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfkit.ladder import catalogue
from perfkit.recipe import Recipe, switches
from perfkit.results.run import Run

K = TypeVar("K")

DATA = catalogue.predicted("fetch")
COMPUTE = tuple(name for name in catalogue.predicted("compute") if name != "batch_size")
"""Without the batch size: the model has several batch sizes for each of these."""
SwitchKey = tuple[object, ...]
"""The values of some switches."""
_WORTH_A_SWITCH = 0.02
"""A smaller share of a step, saved, is not worth a suggestion."""


class Prediction(Struct, frozen=True, kw_only=True):
    """A recipe's step, in seconds, and its bottleneck."""

    step_s: float
    bottleneck: str
    """`data`, `compute` or `cores`."""
    fetch_s: float
    """Of one core, for a batch."""
    copy_s: float
    compute_s: float

    def samples_per_s(self, batch: int) -> float:
        """Throughput at a batch size."""
        return batch / self.step_s


class Pipeline(Struct, frozen=True, kw_only=True):
    """A loop that feeds an accelerator, and the step that it settles into; the parts in seconds a batch.

    Two queues connect three stages: batches wait for the host, kernels wait for the device.
    `show/pipeline.html` is the same model in JavaScript; a test compares the two.
    """

    fetch_s: float
    """Of one core."""
    workers: int
    """0: the host fetches."""
    copy_s: float
    launch_s: float = 0.0
    """In which the host launches the kernels of a step; 0 if `kernels_s` was measured with it."""
    kernels_s: float
    pinned: bool = True
    """The batch is in page-locked memory, and its copy does not block the host."""
    second_stream: bool = False
    """The copy has a stream of its own. On one stream it queues behind the kernels."""

    @property
    def device_s(self) -> float:
        """Copy and kernels of a step."""
        copy, kernels = self.copy_s, self.kernels_s
        return max(copy, kernels) if self.second_stream else copy + kernels

    @property
    def step_s(self) -> float:
        """The step once the queues are steady: the longest of what goes on at the same time."""
        host = self.launch_s if self.workers else self.launch_s + self.fetch_s
        if self.pinned:
            step = max(host, self.device_s)
        elif self.second_stream:
            step = max(host + self.copy_s, self.kernels_s)
        else:  # the host waits for the kernels before the copy, and for the copy
            step = max(host, self.kernels_s) + self.copy_s
        return max(step, self.fetch_s / self.workers) if self.workers else step

    def bound(self, part: str) -> float:
        """How many times as fast it would be if one part took no time: `fetch_s`, `copy_s` and so on."""
        return self.step_s / (replace(self, **{part: 0.0}).step_s or math.inf)


class Model(Struct, frozen=True, kw_only=True):
    """The measured parts, by the switches of the data path and of the computation."""

    cores: int
    device: str
    fetch_s: dict[SwitchKey, float]
    """Core seconds a sample."""
    compute_s: dict[SwitchKey, dict[int, float]]
    """Seconds a step by batch size, without the loader."""
    bytes_per_sample: dict[SwitchKey, int]
    overlap: dict[int, dict[int, float]] = {}
    """Measured step / the ideal one, by number of workers and batch size: workers compete for the cores and
    spend time on passing batches, the more so the smaller these are. Valid only for the cores of the measured
    machine."""


def switch_key(recipe: Mapping[str, object], names: Iterable[str]) -> SwitchKey:
    """The values of these switches."""
    return tuple(recipe[name] for name in names)


def drift_corrected_rates(runs: Sequence[Run]) -> dict[str, float]:
    """samples/s of each measured run, by its id, as if the machine had been as fast as during the first one.

    The speed of a shared machine may halve within minutes, or drop to nothing for a second. If a run was
    interleaved with a baseline of the first run's recipe, its rate is the first run's rate times the median
    ratio of their rounds; the rates of the others cannot be corrected.
    """
    measured = {run.id: run for run in runs if run.raw.block_samples_per_s}
    rates = {key: statistics.median(run.raw.block_samples_per_s) for key, run in measured.items()}
    if not measured:
        return rates
    first = next(iter(measured.values()))
    reference = rates[first.id]
    for run in measured.values():
        pairing = run.pairing("baseline")
        together = pairing if pairing and pairing.interleaved else None
        base = measured.get(together.against) if together else run
        speedup = statistics.median(together.round_ratios) if together else 1.0
        if base and _same(base, first):
            rates[run.id] = reference * speedup
    return rates


def _same(a: Run, b: Run) -> bool:
    return (a.recipe, a.workload, a.options) == (b.recipe, b.workload, b.options)


def fit(runs: Iterable[Run]) -> Model:
    """The parts, from measured runs of one machine and workload; medians where there are several.

    All times are as if the machine had been as fast as during the first run (see `drift_corrected_rates`).
    """
    runs = [run for run in runs if run.status == "ok"]
    rates = drift_corrected_rates(runs)
    fetch: dict[SwitchKey, list[float]] = {}
    compute: dict[SwitchKey, dict[int, list[float]]] = {}
    sizes: dict[SwitchKey, int] = {}
    cores, device = 1, "cpu"
    for run in runs:
        cores, device = int(run.machine.get("cpu", {}).get("cores_usable") or cores), run.device
        batch = run.samples_per_step
        data, computed = switch_key(run.recipe, DATA), switch_key(run.recipe, COMPUTE)
        if run.recipe["workers"] == 0 and (wait := run.data_wait_s) and (step := run.step_s):
            share = wait.value * int(run.recipe["accumulation"]) / step.value
            fetch.setdefault(data, []).append(share / rates[run.id])
        if efficiency := run.pipeline_efficiency:
            seconds = batch * efficiency / rates[run.id]
            compute.setdefault(computed, {}).setdefault(batch, []).append(seconds)
        sizes[data] = run.batch_bytes_per_sample or 0
    model = Model(
        cores=cores, device=device, fetch_s={key: statistics.median(v) for key, v in fetch.items()},
        compute_s=_medians(compute), bytes_per_sample=sizes,
    )  # fmt: skip
    overlap: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        workers, batch = int(run.recipe["workers"]), int(run.recipe["batch_size"])
        if workers and (ideal := predict(model, run.recipe)):
            factor = run.samples_per_step / rates[run.id] / ideal.step_s
            overlap.setdefault(workers, {}).setdefault(batch, []).append(factor)
    return replace(model, overlap=_medians(overlap))


def _medians(values: Mapping[K, Mapping[int, list[float]]]) -> dict[K, dict[int, float]]:
    return {
        key: {size: statistics.median(by_size[size]) for size in sorted(by_size)}
        for key, by_size in values.items()
    }


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
        link_bytes_per_s: host to device; None where nothing is copied or the measured parts include the copy.
    """
    data, batch = switch_key(recipe, DATA), _number(recipe, "batch_size") * _number(recipe, "accumulation")
    measured_s = _compute(model, switch_key(recipe, COMPUTE), batch)
    if measured_s is None or data not in model.fetch_s:
        return None
    compute = measured_s / speed
    fetch = model.fetch_s[data] * batch
    copy = batch * model.bytes_per_sample.get(data, 0) / link_bytes_per_s if link_bytes_per_s else 0.0
    workers, usable = _number(recipe, "workers"), cores or model.cores
    pipeline = Pipeline(
        fetch_s=fetch, workers=min(workers, usable), copy_s=copy, kernels_s=compute,
        pinned=bool(recipe["pin_memory"] and recipe["non_blocking"]),
        second_stream=bool(recipe["device_prefetch"]),
    )  # fmt: skip
    device = pipeline.device_s
    if workers == 0:
        step = fetch + device if model.device == "cpu" else pipeline.step_s
        bottleneck = "data" if fetch > device else "compute"
    else:
        parts = {"data": fetch / pipeline.workers, "compute": device}
        if model.device == "cpu":
            threads = _number(recipe, "cpu_threads") or usable
            parts["cores"] = (fetch + device * min(threads, usable)) / usable
        bottleneck = max(parts, key=lambda name: parts[name])
        step = parts[bottleneck] * (_overlap(model, workers, recipe) if usable == model.cores else 1.0)
    return Prediction(step_s=step, bottleneck=bottleneck, fetch_s=fetch, copy_s=copy, compute_s=compute)


def climb(
    model: Model, start: Recipe, names: Iterable[str], acts: Callable[[Recipe], bool]
) -> tuple[Recipe, float]:
    """Changes one switch after the other, each time the one with the largest predicted gain.

    Args:
        model: the parts.
        start: a recipe that can be predicted; otherwise it is the answer, with a gain of 1.
        names: the switches that may change.
        acts: whether a recipe can act where it is to run.

    Returns:
        The last recipe, and how many times as fast as the first one it is predicted to be.
    """
    first = predict(model, start.to_dict())
    names, recipe, step_s = list(names), start, first.step_s if first else 0.0
    while first:
        changed = [recipe.replace(**{name: level}) for name in names for level in switches()[name].levels]
        ahead = {
            one: found.step_s for one in changed
            if one.workers <= model.cores and acts(one) and (found := predict(model, one.to_dict()))
        }  # fmt: skip
        best = min(ahead, key=lambda one: ahead[one], default=recipe)
        if ahead.get(best, step_s) > (1 - _WORTH_A_SWITCH) * step_s:
            break
        recipe, step_s = best, ahead[best]
    return recipe, first.step_s / step_s if first else 1.0


def _number(recipe: Mapping[str, object], name: str) -> int:
    return int(str(recipe[name]))


def _overlap(model: Model, workers: int, recipe: Mapping[str, object]) -> float:
    """That of the nearest measured number of workers, interpolated between batch sizes (log-log)."""
    if not model.overlap:
        return 1.0
    by_size = model.overlap[min(model.overlap, key=lambda count: abs(math.log(count / workers)))]
    sizes, factors = np.log(list(by_size)), np.log(list(by_size.values()))
    return float(np.exp(np.interp(math.log(_number(recipe, "batch_size")), sizes, factors)))


def _compute(model: Model, wanted: SwitchKey, batch: int) -> float | None:
    """A step's time on a batch that is there: as measured, or combined from what was measured.

    For switches never measured together it is the product of what each does by itself; for another batch size
    it follows the line over the batch sizes of the switches that were measured at most of them.
    """
    measured = model.compute_s.get(wanted, {})
    if batch in measured:
        return measured[batch]
    if not model.compute_s:
        return None
    most = max(model.compute_s.values(), key=len)
    if measured:
        near = min(measured, key=lambda size: abs(size - batch))
        here, there = _line(most, batch), _line(most, near)
        return measured[near] * here / there if here and there else None
    for base in model.compute_s:
        singles = [
            (*base[:at], wanted[at], *base[at + 1 :]) for at in range(len(base)) if base[at] != wanted[at]
        ]
        if all(single in model.compute_s for single in singles):
            start = _compute(model, base, batch)
            each = [_compute(model, single, batch) for single in singles]
            if start and all(each):
                return start * math.prod((value or start) / start for value in each)
    return None


def _line(measured: Mapping[int, float], batch: int) -> float | None:
    """A step's time on the line through the measured batch sizes; proportional if there is only one."""
    if batch in measured:
        return measured[batch]
    if len(measured) == 1:
        (size, value), *_ = measured.items()
        return value * batch / size
    slope, start = np.polyfit(list(measured), list(measured.values()), 1)
    return max(float(start + slope * batch), min(measured.values()) / 4)
