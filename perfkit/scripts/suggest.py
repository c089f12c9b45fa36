"""What to try on a script that was watched, and the most that it can gain.

One model of gains: a plain step waits for data, then works. Loading can save the wait, everything else a
share of the work, by Amdahl's law. Where nothing that was seen tells, the gain is None.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from perfkit.recipe import Recipe, Value, shown
from perfkit.rules import Target, why_not
from perfkit.scripts.messages import Observation
from perfkit.trace import Analysis
from perfkit.trace.diagnosis import Bottleneck
from perfkit.worker.messages import Block, SyncReport

_WORTH_A_WORKER, _WORTH_A_LINE = 0.03, 0.01
"""Smaller shares of a step are left alone."""
_CONVOLUTIONS = r"aten::(_?convolution|mkldnn_conv|cudnn_conv|convolution_backward|slow_conv)"
_PRODUCTS = (
    rf"{_CONVOLUTIONS}|aten::(mm$|addmm|bmm|baddbmm|linear|matmul|_?scaled_dot|_flash|_efficient|lstm|gru"
    r"|mkldnn_linear)"
)
_UPDATES = r"aten::(_foreach|_fused)_"
_FUSIBLE = (
    r"aten::(add|sub|mul|div|relu|gelu|silu|sigmoid|tanh|clamp|threshold|where|exp|log|sum|mean|copy_|to$|pow"
    r"|sqrt|rsqrt|neg|native_(batch|layer|group)_norm|batch_norm|layer_norm|group_norm|_?softmax|_?log_softmax"
    r"|dropout|native_dropout|leaky_relu|hardtanh|hardswish)"
)


State = Literal["try", "edit", "refused", "on"]
"""Set it from outside; edit the script; it cannot be had here; the script has it already."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that may make a script faster, or why it will not."""

    title: str
    state: State
    settings: dict[str, bool | int | str] = {}
    why: str
    """What was seen that speaks for it, or the reason against it."""
    gain: float | None = None
    """Predicted samples/s over those of the script as it is; None where nothing that was seen tells."""
    at_most: bool = False
    """Whether the gain is a bound: all that it can save, at no cost."""
    basis: str = ""
    """How the gain follows from what was seen, or why there is none."""
    changes_training: bool = False

    @property
    def set_options(self) -> str:
        """The settings as options of the command line."""
        values = ((name, str(v).lower() if isinstance(v, bool) else v) for name, v in self.settings.items())
        return " ".join(f"--set {name}={value}" for name, value in values)


@dataclass(frozen=True)
class Seen:
    """What watching a script has shown, and what follows from it by arithmetic."""

    own: Recipe
    target: Target
    steps: Observation
    cores: int
    ceiling: Block | None = None
    """Steps on a held batch."""
    analysis: Analysis | None = None
    syncs: SyncReport | None = None
    in_16_bits: float | None = None
    """How many times as fast a step on a held batch is under autocast to bfloat16; None if not tried."""

    @property
    def work_s(self) -> float:
        """A step whose batch is there at once; on a GPU the wait may hide work that remains."""
        steps = self.steps
        work = steps.step_s * (1 - steps.waiting)
        if self.target.device != "cpu" and self.ceiling and self.ceiling.samples:
            samples = steps.block.samples / max(1, len(steps.block.step_s))
            work = min(steps.step_s, max(work, samples / self.ceiling.samples_per_s))
        return max(work, 1e-9)

    @property
    def without_waiting(self) -> float:
        """How many times as fast a step is that does not wait for data: the bound of all loading."""
        return self.steps.step_s / self.work_s

    def without(self, share: float) -> float:
        """How many times as fast a step is without this share of it, which is work."""
        return 1 / max(1 - min(share, self.work_s / self.steps.step_s), 0.02)

    def operators(self, names: str) -> float | None:
        """The share of a profiled step in operators of these names; None without a profile."""
        analysis = self.analysis
        if analysis is None or not analysis.steps or analysis.mean_us["other"] is None:
            return None
        times = (
            row.device_self_us if analysis.has_accelerator else row.host_self_us
            for row in analysis.operators
            if re.match(names, row.name)
        )
        whole = sum(step.duration_us for step in analysis.steps)
        return float(min(1.0, sum(time or 0.0 for time in times) / whole))

    def profiled(self, time_us: float | None) -> float | None:
        """The share of a profiled step that so many microseconds are."""
        step_us = self.analysis.mean_step_us if self.analysis else None
        return time_us / step_us if step_us and time_us is not None else None


def suggest(seen: Seen) -> list[Suggestion]:
    """What to try, the largest gain first; then edits; then what cannot be had, and what is on already."""
    ideas = [*_loading(seen), _amp(seen), *_switches(seen), *_waits(seen)]
    order: list[State] = ["try", "edit", "refused", "on"]
    return sorted(ideas, key=lambda idea: (order.index(idea.state), -(idea.gain or 0.0)))


def bounded(found: Iterable[Bottleneck], seen: Seen, ideas: Iterable[Suggestion]) -> list[Bottleneck]:
    """The bottlenecks of a profile, with bounds that plain steps allow and switches that can be set here.

    Computing has no bound: no switch removes it.
    """
    settable = {name for idea in ideas if idea.state == "try" for name in idea.settings}
    results = []
    for each in found:
        most = seen.without_waiting if each.bottleneck == "data-bound" else seen.without(each.share_of_step)
        computes = each.bottleneck in ("device-bound", "memory-bound")
        bound = None if computes or not each.gain_at_most else min(each.gain_at_most, most)
        switches = [name for name in each.try_next if name in settable]
        results.append(msgspec.structs.replace(each, gain_at_most=bound, try_next=switches))
    return results


def _idea(
    seen: Seen, title: str, settings: dict[str, Value], why: str, gain: float | None, basis: str
) -> Suggestion:
    """A suggestion; refused if its first switch is on already, or cannot be set here, or gains nothing."""
    name, value = next(iter(settings.items()))
    wanted = seen.own.replace(**settings)
    if getattr(seen.own, name) == value:
        return Suggestion(title=title, state="on", why=f"the script has {name}={shown(value)}")
    if reason := why_not(name, wanted, seen.target):
        return Suggestion(title=title, state="refused", why=reason)
    if gain is not None and gain < 1.005:
        return Suggestion(title=title, state="refused", why=f"{why}; no gain ({basis})")
    return Suggestion(
        title=title,
        state="try",
        settings={key: each for key, each in settings.items() if not why_not(key, wanted, seen.target)},
        why=why,
        gain=gain,
        at_most=gain is not None,
        basis=basis,
        changes_training=name == "batch_size",
    )


def _switches(seen: Seen) -> Iterator[Suggestion]:
    """Switches that speed up a share of a step; for some the share bounds the gain."""
    own, target, analysis = seen.own, seen.target, seen.analysis

    def idea(
        title: str, settings: dict[str, Value], what: str, share: float | None, saves: float
    ) -> Suggestion:
        why = what if share is None else f"{what}: {share:.0%} of a step"
        if share is None or not saves:
            return _idea(seen, title, settings, why, None, "only measuring tells")
        basis = "as if it took no time" if saves == 1 else "as if it took half the time"
        return _idea(seen, title, settings, why, seen.without(saves * share), basis)

    convolutions = seen.operators(_CONVOLUTIONS)
    if target.convolves or "channels_last" in target.refused:
        yield idea("channels_last", {"channels_last": True}, "convolutions", convolutions, 0)
    yield idea("torch.compile", {"compile": True}, "operators that can be fused", seen.operators(_FUSIBLE), 1)
    timed = seen.steps.optimizer_s
    # A loop over parameters is made of operators that the model uses as well: they do not tell its share.
    update = seen.operators(_UPDATES) or None if timed is None else min(1.0, timed / seen.steps.block.seconds)
    yield idea("Optimizer", {"optimizer_impl": "fused"}, "the optimizer's own work", update, 1)
    host = seen.profiled(analysis.mean_us["other"]) if analysis else None
    if (host or 0) > 0.2 and "batch_size" not in target.refused:
        yield idea(
            "Batch size", {"batch_size": 2 * own.batch_size}, "neither operators nor waiting", host, 0.5
        )
    if target.device == "cpu":
        if own.cpu_threads > seen.cores:
            yield idea("CPU threads", {"cpu_threads": seen.cores}, "more threads than cores", None, 0)
        if own.workers:
            what = "threads that spin while they wait for each other"
            yield idea("Passive waiting", {"wait_policy": "passive"}, what, None, 0)
    if target.device == "cuda":
        copies = analysis.transfers if analysis else ()
        pageable = [c for c in copies if (c.direction, c.host_memory) == ("HtoD", "pageable")]
        share = seen.profiled(sum(copy.us_per_step for copy in pageable))
        if (share or 0) > _WORTH_A_LINE or own.pin_memory:
            settings: dict[str, Value] = {"pin_memory": True, "non_blocking": True}
            yield idea("Pinned memory", settings, "copying batches from pageable memory", share, 1)
        if own.amp == "off":
            products = seen.operators(_PRODUCTS)
            yield idea("TF32", {"fp32_precision": "tf32"}, "matrix products and convolutions", products, 0)
        if target.convolves:
            yield idea("cuDNN benchmark", {"cudnn_benchmark": True}, "convolutions", convolutions, 0)


def _loading(seen: Seen) -> Iterator[Suggestion]:
    own, cores, waiting, title = seen.own, seen.cores, seen.steps.waiting, "Loader workers"
    if reason := seen.target.refused.get("workers"):
        yield Suggestion(title=title, state="refused", why=reason)
        return
    on_cpu = seen.target.device == "cpu"
    count = max(1, cores // 2 if on_cpu else cores)
    if on_cpu and own.workers and own.workers + own.cpu_threads > cores:
        fewer = 0 if own.workers <= count else count
        why = f"{own.workers} workers and {own.cpu_threads} compute threads share {cores} cores"
        yield _idea(seen, "Fewer workers", {"workers": fewer}, why, None, "only measuring tells")
    why = f"{waiting:.0%} of a step is waiting for data, with {own.workers} workers"
    if waiting < _WORTH_A_WORKER:
        yield Suggestion(title=title, state="on" if own.workers else "refused", why=why)
    elif own.workers >= count:
        yield Suggestion(
            title=f"{title}: {own.workers} on {cores} cores",
            state="edit",
            why=f"{why}: make a sample cheaper (smaller or decoded files, fewer transforms), or cache it",
            gain=seen.without_waiting,
            at_most=True,
            basis="as if nothing were waited for",
        )
    else:
        settings: dict[str, Value] = {"workers": count}
        if not on_cpu:
            settings |= {"pin_memory": True, "non_blocking": True}
        gain = seen.steps.step_s / _with_workers(seen, count)
        yield _idea(seen, title, settings, why, gain, f"{count} load beside the step")


def _with_workers(seen: Seen, count: int) -> float:
    """Seconds of a step beside so many workers, which on a CPU share its cores."""
    if seen.own.workers:
        return seen.work_s
    load_s, threads = (
        seen.steps.waiting * seen.steps.step_s,
        min(seen.own.cpu_threads or seen.cores, seen.cores),
    )
    on_cores = (load_s + seen.work_s * threads) / seen.cores if seen.target.device == "cpu" else 0.0
    return max(seen.work_s, load_s / count, on_cores)


def _amp(seen: Seen) -> Suggestion:
    if seen.own.amp != "off":
        return Suggestion(title="AMP", state="on", why=f"the script computes in {seen.own.amp}")
    kind, gain, basis = "bf16" if seen.target.bf16 else "fp16", None, "only measuring tells"
    if seen.in_16_bits and kind == "bf16":
        step_s = seen.steps.step_s
        gain = step_s / (step_s - seen.work_s + seen.work_s / seen.in_16_bits)
        basis = f"tried on a held batch: {seen.in_16_bits:.2f}× as fast"
    share, why = seen.operators(_PRODUCTS), "matrix products and convolutions"
    why = why if share is None else f"{why}: {share:.0%} of a step"
    idea = _idea(seen, "AMP", {"amp": kind}, why, gain, basis)
    return msgspec.structs.replace(idea, at_most=False)  # measured, not a bound


def _waits(seen: Seen) -> Iterator[Suggestion]:
    """Lines that wait for a GPU: only an edit helps."""
    if seen.syncs is None or seen.target.device == "cpu":
        return
    for place in sorted(seen.syncs.places, key=lambda place: -place.seconds)[:3]:
        share = place.seconds / max(1, seen.syncs.steps) / seen.steps.step_s
        if share >= _WORTH_A_LINE and place.kind != "host to device":
            yield Suggestion(
                title=f"{place.call} at {place.where}",
                state="edit",
                why=f"{place.fix} ({share:.0%} of a step)",
                gain=seen.without(share),
                at_most=True,
                basis="as if nothing were waited for there",
            )
