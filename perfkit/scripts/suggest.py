"""What to try on a script that was watched, and the most that it can gain.

One model of gains (`Seen`): a plain step waits for data, then works. Loading can save the wait, everything
else a share of the work, by Amdahl's law. Where nothing that was seen tells, the gain is None.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from perfkit.recipe import Recipe, Value, shown
from perfkit.results.stats import Ratio
from perfkit.rules import Target, why_not
from perfkit.scripts.messages import Observation
from perfkit.trace import Analysis, Bottleneck
from perfkit.worker.messages import Block

_WORTH_A_WORKER, _WORTH_A_LINE = 0.03, 0.01
"""Smaller shares of a step are left alone."""
_CONVOLUTIONS = r"aten::(_?convolution|mkldnn_conv|cudnn_conv|slow_conv).*"
_PRODUCTS = (
    rf"{_CONVOLUTIONS}|aten::(mm|addmm|bmm|baddbmm|linear|matmul|lstm|gru"
    r"|(_?scaled_dot|_flash|_efficient|mkldnn_linear|mkldnn_rnn).*)"
)
_PRODUCT = "matrix products and convolutions"
_UPDATES = r"aten::(_foreach|_fused)_.*"
_FUSIBLE = (
    r"aten::(add|sub|mul|div|neg|exp|log|pow|sqrt|rsqrt|where|clamp|sum|mean|copy|to|relu|gelu|silu|sigmoid"
    r"|tanh|threshold|leaky_relu|hardtanh|hardswish|_?softmax|_?log_softmax|dropout|native_dropout"
    r"|(native_)?(batch|layer|group)_norm)(_|_backward|_backward_data)?"
)
"""Whole names of operators: `aten::add` is not `aten::addmm`."""


State = Literal["try", "edit", "refused", "on"]
"""Set it from outside; edit the script; it cannot be had here, or does not help; the script has it."""
_ORDER: tuple[State, ...] = ("try", "edit", "refused", "on")


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that may make a script faster, or why it will not.

    `why` is what was seen that speaks for it, or the reason against it. `gain` is the predicted ratio of
    samples/s, None where nothing that was seen tells, and a bound if `at_most`; `basis`: how it follows from
    what was seen. `measured`: what it gave, where it was tried.
    """

    title: str
    state: State
    settings: dict[str, bool | int | str] = {}
    why: str
    gain: float | None = None
    at_most: bool = False
    basis: str = ""
    measured: Ratio | None = None


@dataclass(frozen=True)
class Seen:
    """What watching a script has shown, and what follows from it by arithmetic.

    `ceiling`: steps on a held batch. `in_16_bits`: how many times as fast such a step is under autocast to
    bfloat16; None if that was not tried. `has_fused`: the optimizer has a fused implementation.
    """

    own: Recipe
    target: Target
    steps: Observation
    cores: int
    ceiling: Block | None = None
    analysis: Analysis | None = None
    in_16_bits: float | None = None
    has_fused: bool = True

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
            if re.fullmatch(names, row.name)
        )
        whole = sum(step.duration_us for step in analysis.steps)
        return float(min(1.0, sum(time or 0.0 for time in times) / whole))

    def profiled(self, time_us: float) -> float | None:
        """The share of a profiled step that so many microseconds are."""
        step_us = self.analysis.mean_step_us if self.analysis else None
        return time_us / step_us if step_us else None


def suggest(seen: Seen) -> list[Suggestion]:
    """What to try, the largest gain first; then edits; then what cannot be had, and what is on already."""
    ideas = [*_loading(seen), _amp(seen), *_computing(seen)]
    if seen.target.device == "cuda":
        ideas += _on_cuda(seen)
    elif seen.own.cpu_threads > seen.cores:
        why = f"{seen.own.cpu_threads} compute threads on {seen.cores} cores"
        ideas.append(_idea(seen, "CPU threads", why, {"cpu_threads": seen.cores}))
    return sorted(ideas, key=lambda idea: (_ORDER.index(idea.state), -(idea.gain or 0.0)))


def tried(
    ideas: Iterable[Suggestion], measured: Mapping[str, Ratio], failures: Mapping[str, str]
) -> list[Suggestion]:
    """Suggestions with what some of them gave, by their titles; what did not help is suggested no more.

    Those that were measured come first in their state.
    """
    results = []
    for idea in ideas:
        gave, why = measured.get(idea.title), failures.get(idea.title)
        is_open = gave and gave.verdict in ("disturbed", "too few rounds") and gave.high > 1
        helps = gave is None or gave.is_faster or is_open
        state: State = idea.state if helps and not why else "refused"
        results.append(msgspec.structs.replace(idea, measured=gave, state=state, why=why or idea.why))
    return sorted(results, key=lambda idea: (_ORDER.index(idea.state), idea.measured is None))


def bounded(found: Iterable[Bottleneck], seen: Seen, ideas: Iterable[Suggestion]) -> list[Bottleneck]:
    """The bottlenecks of a profile, with gains that plain steps allow and switches that are suggested.

    Waiting for data is left out: the plain steps tell it. Computing has no bound: no switch removes it.
    """
    names = {name for idea in ideas if idea.state == "try" for name in idea.settings}
    results = []
    for each in (each for each in found if each.bottleneck != "data-bound"):
        has_bound = each.bottleneck != "device-bound"
        gain = seen.without(each.share_of_step) if has_bound else None
        switches = [name for name in each.try_next if name in names]
        results.append(msgspec.structs.replace(each, gain_at_most=gain, try_next=switches))
    return results


def _idea(
    seen: Seen, title: str, why: str, settings: dict[str, Value], gain: float | None = None, basis: str = ""
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
        basis="only measuring tells" if gain is None else basis,
    )


def _faster(
    seen: Seen, title: str, what: str, share: float | None, saves: bool = False, **settings: Value
) -> Suggestion:
    """A suggestion that speeds up a share of a step; with `saves`, it can save at most all of that."""
    why = what if share is None else f"{what}: {share:.0%} of a step"
    gain = seen.without(share) if share is not None and saves else None
    return _idea(seen, title, why, settings, gain, "as if it took no time")


def _computing(seen: Seen) -> Iterator[Suggestion]:
    if seen.target.convolves:
        share = seen.operators(_CONVOLUTIONS)
        yield _faster(seen, "channels_last", "convolutions", share, channels_last=True)
    yield _faster(
        seen, "torch.compile", "operators that can be fused", seen.operators(_FUSIBLE), True, compile=True
    )
    timed = seen.steps.optimizer_s
    # A loop over parameters is made of operators that the model uses as well: they do not tell its share.
    update = seen.operators(_UPDATES) or None if timed is None else min(1.0, timed / seen.steps.block.seconds)
    kind = "fused" if seen.has_fused else "foreach"
    yield _faster(seen, "Optimizer", "the optimizer's own work", update, True, optimizer_impl=kind)


def _on_cuda(seen: Seen) -> Iterator[Suggestion]:
    own, copies = seen.own, seen.analysis.transfers if seen.analysis else ()
    pageable = [c for c in copies if (c.direction, c.host_memory) == ("HtoD", "pageable")]
    share = seen.profiled(sum(copy.us_per_step for copy in pageable))
    if (share or 0) > _WORTH_A_LINE or own.pin_memory:
        what = "copying batches from pageable memory"
        yield _faster(seen, "Pinned memory", what, share, True, pin_memory=True, non_blocking=True)
    if own.amp == "off":
        yield _faster(seen, "TF32", _PRODUCT, seen.operators(_PRODUCTS), fp32_precision="tf32")
    if seen.target.convolves:
        share = seen.operators(_CONVOLUTIONS)
        yield _faster(seen, "cuDNN benchmark", "convolutions", share, cudnn_benchmark=True)


def _loading(seen: Seen) -> Iterator[Suggestion]:
    own, cores, waiting, title = seen.own, seen.cores, seen.steps.waiting, "Loader workers"
    if reason := seen.target.refused.get("workers"):
        yield Suggestion(title=title, state="refused", why=reason)
        return
    on_cpu = seen.target.device == "cpu"
    count = max(1, cores // 2 if on_cpu else cores)
    workers = f"{own.workers or 'no'} worker{'s' * (own.workers != 1)}"
    if on_cpu and own.workers and own.workers + own.cpu_threads > cores:
        fewer = 0 if own.workers <= count else count
        why = f"{workers} and cpu_threads={own.cpu_threads} share {cores} cores"
        yield _idea(seen, "Fewer workers", why, {"workers": fewer})
    why = f"{waiting:.0%} of a step is spent waiting for data, with {workers}"
    if waiting < _WORTH_A_WORKER:
        yield Suggestion(title=title, state="on" if own.workers else "refused", why=why)
    elif own.workers >= count:
        yield Suggestion(
            title="Cheaper samples",
            state="edit",
            why=f"{why} on {cores} cores: use smaller or decoded files, fewer transforms, or a cache",
            gain=seen.without_waiting,
            at_most=True,
            basis="as if nothing were waited for",
        )
    else:
        settings: dict[str, Value] = {"workers": count}
        if not on_cpu:
            settings |= {"pin_memory": True, "non_blocking": True}
        gain = seen.steps.step_s / _with_workers(seen, count)
        yield _idea(seen, title, why, settings, gain, "workers load while the model computes")


def _with_workers(seen: Seen, count: int) -> float:
    """Seconds of a step beside so many workers, which on a CPU share its cores."""
    if seen.own.workers:
        return seen.work_s
    load_s = seen.steps.waiting * seen.steps.step_s
    threads = min(seen.own.cpu_threads or seen.cores, seen.cores)
    on_cores = (load_s + seen.work_s * threads) / seen.cores if seen.target.device == "cpu" else 0.0
    return max(seen.work_s, load_s / count, on_cores)


def _amp(seen: Seen) -> Suggestion:
    if seen.own.amp != "off":
        return Suggestion(title="AMP", state="on", why=f"the script computes in {seen.own.amp}")
    kind, gain, basis = "bf16" if seen.target.bf16 else "fp16", None, ""
    if seen.in_16_bits and kind == "bf16":
        step_s = seen.steps.step_s
        gain = step_s / (step_s - seen.work_s + seen.work_s / seen.in_16_bits)
        basis = f"tried on a held batch: {seen.in_16_bits:.2f}× as fast"
    share = seen.operators(_PRODUCTS)
    why = _PRODUCT if share is None else f"{_PRODUCT}: {share:.0%} of a step"
    idea = _idea(seen, "AMP", why, {"amp": kind}, gain, basis)
    return msgspec.structs.replace(idea, at_most=False)  # measured, not a bound
