"""What to try on a script that was watched, the largest predicted gain first.

A prediction follows from what was seen: the wait for data and the step on a held batch, or the share of a
profile that a switch can save, by Amdahl's law. No prediction exceeds what it saves; where nothing tells, the
gain is None.
"""

import math
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from perfkit.recipe import Recipe, Value, shown
from perfkit.rules import Target, why_not
from perfkit.scripts.messages import Observation
from perfkit.trace import Analysis
from perfkit.worker.messages import Block, SyncReport

State = Literal["try", "edit", "refused", "on"]
"""Set it from outside; edit the script; it cannot be had here; the script has it already."""

_WAITS = 0.03
"""A smaller share of waiting is not worth a worker."""
_FEWEST_FAULTS = 64
"""Page faults a step; fewer are no large block that is freed and fetched again."""
_SMALL = 0.01
"""A share of a step that is not worth a switch."""
_PRODUCTS = re.compile(
    r"aten::(_?convolution|mkldnn_convolution|cudnn_convolution|convolution_backward|slow_conv"
    r"|mm$|addmm|bmm|baddbmm|linear|matmul|_scaled_dot|scaled_dot|_flash|_efficient|lstm|gru|mkldnn_linear)"
)
_CONVOLUTIONS = re.compile(r"aten::(_?convolution|mkldnn_conv|cudnn_conv|convolution_backward|slow_conv)")
_UPDATES = re.compile(r"aten::(_foreach|_fused)_")
_FILLS = re.compile(r"aten::(zero_|fill_|_foreach_zero_)$")
_FUSIBLE = re.compile(
    r"aten::(add|sub|mul|div|relu|gelu|silu|sigmoid|tanh|clamp|threshold|where|exp|log|sum|mean|copy_|to$|pow"
    r"|sqrt|rsqrt|neg|native_(batch|layer|group)_norm|batch_norm|layer_norm|group_norm|_?softmax|_?log_softmax"
    r"|dropout|native_dropout|leaky_relu|hardtanh|hardswish)"
)


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that may make a script faster, or why it will not."""

    title: str
    state: State
    settings: dict[str, bool | int | str] = {}
    """The switches to set; none where only an edit helps."""
    why: str
    """What was seen that speaks for it, or the reason against it."""
    gain: float | None = None
    """Predicted samples/s over those of the script as it is; None where nothing that was seen tells."""
    at_most: bool = False
    """Whether the gain is a bound: all of what it can save, and no cost."""
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
    """The switches as the script sets them."""
    target: Target
    """Where it runs, with what cannot be set from outside."""
    steps: Observation
    """Plain steps, as the script is."""
    cores: int
    """Usable ones."""
    ceiling: Block | None = None
    """Steps on a held batch."""
    analysis: Analysis | None = None
    """A profile of some steps."""
    syncs: SyncReport | None = None
    in_16_bits: float | None = None
    """How many times as fast a step on a held batch is under autocast to bfloat16; None if not tried."""

    @property
    def waits(self) -> float:
        """The share of a step that is waiting for data."""
        return min(1.0, sum(self.steps.block.data_wait_s) / self.steps.block.seconds)

    @property
    def step_s(self) -> float:
        """A step, as the script is."""
        return self.steps.block.seconds / max(1, len(self.steps.block.step_s))

    @property
    def all_s(self) -> float:
        """Seconds of all steps, those with something else in them too."""
        return self.steps.block.seconds + sum(seconds for _, seconds in self.steps.outside.values())

    @property
    def without_waiting_s(self) -> float:
        """A step whose batch is there at once; on a GPU the wait may hide work that remains."""
        working, steps = self.step_s * (1 - self.waits), self.steps.block
        if self.target.device != "cpu" and self.ceiling and self.ceiling.samples:
            samples = steps.samples / max(1, len(steps.step_s))
            working = min(self.step_s, max(working, samples / self.ceiling.samples_per_s))
        return max(working, 1e-9)

    def share(self, operators: re.Pattern[str]) -> float | None:
        """The share of a profiled step in operators of these names; None without a profile."""
        analysis = self.analysis
        if analysis is None or not analysis.steps or analysis.mean_us["other"] is None:
            return None
        own = sum(
            (row.device_self_us if analysis.has_accelerator else row.host_self_us) or 0.0
            for row in analysis.operators
            if operators.match(row.name)
        )
        return float(min(1.0, own / sum(step.duration_us for step in analysis.steps)))

    @property
    def pageable_share(self) -> float | None:
        """The share of a step that copies batches from pageable memory."""
        if self.analysis is None or not self.analysis.mean_step_us:
            return None
        pageable = sum(
            row.us_per_step
            for row in self.analysis.transfers
            if (row.direction, row.host_memory) == ("HtoD", "pageable")
        )
        return float(pageable / self.analysis.mean_step_us)

    @property
    def optimizer_share(self) -> float | None:
        """The share of a step in optimizers."""
        if self.steps.optimizer_s is not None:
            return min(1.0, self.steps.optimizer_s / self.steps.block.seconds)
        # A loop over parameters is made of operators that the model uses as well: they do not tell its share.
        return self.share(_UPDATES) or None

    @property
    def fixed_share(self) -> float | None:
        """The share of a step that is neither operators nor waiting."""
        host = self.analysis.mean_us["other"] if self.analysis else None
        return (
            host / self.analysis.mean_step_us
            if host and self.analysis and self.analysis.mean_step_us
            else None
        )

    @property
    def system_share(self) -> float:
        """The share of the time in which the system worked for the script."""
        return min(0.95, self.steps.system_s / self.all_s)

    @property
    def faults(self) -> float:
        """Page faults of a step."""
        return self.steps.page_faults * self.step_s / self.all_s

    @property
    def restart_share(self) -> float:
        """The share of the time that the first steps of epochs took beyond other steps."""
        count, seconds = self.steps.outside.get("new epoch", (0, 0.0))
        return max(0.0, seconds - count * self.step_s) / self.all_s


def suggest(seen: Seen) -> list[Suggestion]:
    """What to try, the largest gain first; then edits; then what cannot be had, and what is on already."""
    ideas = [*_loading(seen), *_amp(seen), *filter(None, (rule.apply(seen) for rule in RULES)), *_waits(seen)]
    order: list[State] = ["try", "edit", "refused", "on"]
    return sorted(ideas, key=lambda idea: (order.index(idea.state), -(idea.gain or 0.0)))


def _saved(share: float, times: float = math.inf) -> float:
    """How many times as fast a step becomes if this share of it becomes some times as fast."""
    return 1 / max(1 - share + share / times, 0.02)


def _idea(
    seen: Seen,
    title: str,
    settings: dict[str, Value],
    why: str,
    gain: float | None,
    basis: str,
    at_most: bool = True,
) -> Suggestion:
    """A suggestion; refused if its first switch is on already, or cannot be set here, or gains nothing."""
    name, value = next(iter(settings.items()))
    if getattr(seen.own, name) == value:
        return Suggestion(title=title, state="on", why=f"the script has {name}={shown(value)} already")
    wanted = seen.own.replace(**settings)
    if reason := why_not(name, wanted, seen.target):
        return Suggestion(title=title, state="refused", why=reason)
    if gain is not None and gain < 1.005:
        return Suggestion(title=title, state="refused", why=f"{why}: it would gain nothing ({basis})")
    return Suggestion(
        title=title,
        state="try",
        settings={key: v for key, v in settings.items() if not why_not(key, wanted, seen.target)},
        why=why,
        gain=gain,
        at_most=at_most and gain is not None,
        basis=basis,
        changes_training=name == "batch_size",
    )


def _percent(what: str, share: float | None) -> str:
    return f"{what}: {'a share that is not known' if share is None else f'{share:.0%} of a step'}"


# ---------------------------------------------------------------- switches that save a share of a step


@dataclass(frozen=True)
class Rule:
    """A switch that saves a share of a step.

    Args:
        title: of the suggestion.
        settings: what to set, the main switch first.
        what: what takes the share.
        share: the share; None where it is not known.
        basis: how the gain follows from the share; alone, why there is no prediction.
        applies: whether it is worth a line for this script.
        times: how many times as fast the share becomes.
        predicts: whether the share tells a gain.
    """

    title: str
    settings: dict[str, Value] | Callable[[Seen], dict[str, Value]]
    what: str
    share: Callable[[Seen], float | None]
    basis: str
    applies: Callable[[Seen], bool] = lambda seen: True
    times: float = math.inf
    predicts: bool = True

    def apply(self, seen: Seen) -> Suggestion | None:
        """The suggestion for a script; None if the rule does not apply to it."""
        if not self.applies(seen):
            return None
        share = self.share(seen)
        settings = self.settings(seen) if callable(self.settings) else self.settings
        gain = _saved(share, self.times) if self.predicts and share is not None else None
        basis = self.basis if gain or not self.predicts else "the share is not known: only measuring tells"
        return _idea(seen, self.title, settings, _percent(self.what, share), gain, basis)


def _fetches_memory(seen: Seen) -> bool:
    """Large blocks that are freed go back to the system: the next step gets them again, page by page."""
    on_glibc = seen.target.device == "cpu" and platform.libc_ver()[0] == "glibc"
    return on_glibc and seen.faults >= _FEWEST_FAULTS and seen.system_share >= 0.03


_ONLY_MEASURING = "other kernels: only measuring tells"
_IN_THE_WAY = "how much they are in each other's way only measuring tells"
# fmt: off
RULES = (
    Rule("Pinned memory", {"pin_memory": True, "non_blocking": True}, "copying batches from pageable memory",
         lambda s: s.pageable_share, "as if these copies took no time",
         lambda s: s.target.device == "cuda" and ((s.pageable_share or 0) > _SMALL or s.own.pin_memory)),
    Rule("channels_last", {"channels_last": True}, "convolutions",
         lambda s: s.share(_CONVOLUTIONS), _ONLY_MEASURING,
         lambda s: s.target.convolves or "channels_last" in s.target.refused, predicts=False),
    Rule("torch.compile", {"compile": True}, "operators that can be fused",
         lambda s: s.share(_FUSIBLE), "as if fused operators took no time"),
    Rule("Optimizer", {"optimizer_impl": "fused"}, "the optimizer's own work",
         lambda s: s.optimizer_share, "as if the optimizer took no time"),
    Rule("zero_grad to None", {"zero_grad_set_to_none": True}, "filling gradients with zeros",
         lambda s: s.share(_FILLS), "as if the filling took no time",
         lambda s: not s.own.zero_grad_set_to_none),
    Rule("CPU threads", lambda s: {"cpu_threads": s.cores}, "more compute threads than usable cores",
         lambda s: None, _IN_THE_WAY,
         lambda s: s.target.device == "cpu" and s.own.cpu_threads > s.cores, predicts=False),
    Rule("Keep freed memory", {"allocator": "keep"},
         "the system, which takes freed memory back and gives it again",
         lambda s: s.system_share, "as if the system took no time", _fetches_memory),
    Rule("Passive waiting", {"wait_policy": "passive"}, "threads that spin while they wait for each other",
         lambda s: None, _IN_THE_WAY,
         lambda s: s.target.device == "cpu" and s.own.workers > 0, predicts=False),
    Rule("TF32", {"fp32_precision": "tf32"}, "matrix products and convolutions",
         lambda s: s.share(_PRODUCTS), _ONLY_MEASURING,
         lambda s: s.target.device == "cuda" and s.own.amp == "off", predicts=False),
    Rule("cuDNN benchmark", {"cudnn_benchmark": True}, "convolutions",
         lambda s: s.share(_CONVOLUTIONS), _ONLY_MEASURING,
         lambda s: s.target.device == "cuda" and s.target.convolves, predicts=False),
    Rule("Batch size", lambda s: {"batch_size": 2 * s.own.batch_size}, "neither operators nor waiting",
         lambda s: s.fixed_share, "that part divided by two; the larger batch changes the training",
         lambda s: (s.fixed_share or 0) > 0.2 and "batch_size" not in s.target.refused, times=2.0),
)
# fmt: on


# ---------------------------------------------------------------- data, precision, waits


def _loading(seen: Seen) -> Iterator[Suggestion]:
    own, cores, on_cpu = seen.own, seen.cores, seen.target.device == "cpu"
    title = "Loader workers"
    if "workers" in seen.target.refused:
        yield Suggestion(title=title, state="refused", why=seen.target.refused["workers"])
        return
    count = max(1, cores // 2 if on_cpu else cores)
    if on_cpu and own.workers and own.workers + own.cpu_threads > cores:
        fewer = 0 if own.workers <= count else count
        why = f"{own.workers} workers and {own.cpu_threads} compute threads share {cores} cores"
        basis = "how much they are in each other's way only measuring tells"
        yield _idea(seen, "Fewer workers", {"workers": fewer}, why, None, basis)
    loaded_by = f"{own.workers} workers" if own.workers else "the loop itself"
    loads = "load" if own.workers else "loads"
    why = f"{seen.waits:.0%} of a step is waiting for data, which {loaded_by} {loads}"
    if seen.waits < _WAITS:
        state: State = "on" if own.workers else "refused"
        yield Suggestion(title=title, state=state, why=f"{why}: faster loading would save next to nothing")
    elif own.workers >= count:
        yield Suggestion(
            title=f"{title}: {own.workers} on {cores} cores",
            state="edit",
            why=f"{why}: make a sample cheaper (smaller or decoded files, fewer transforms), or cache it",
            gain=seen.step_s / seen.without_waiting_s,
            at_most=True,
            basis="the step without its wait",
        )
    else:
        settings: dict[str, Value] = {"workers": count}
        if not on_cpu:
            settings |= {"pin_memory": True, "non_blocking": True}
        yield _idea(seen, title, settings, why, *_with_workers(seen, count))
    if own.workers and seen.restart_share > _SMALL:
        yield Suggestion(
            title="Keep workers",
            state="edit",
            why=f"starting workers again for each epoch took {seen.restart_share:.0%} of the time: pass "
            "persistent_workers=True to the DataLoader",
            gain=_saved(seen.restart_share),
            at_most=True,
            basis="as if epochs started at once; long epochs gain less",
        )


def _with_workers(seen: Seen, count: int) -> tuple[float, str]:
    """The gain of so many workers: they load beside the step, and on a CPU they share its cores."""
    loading_s, step_s = seen.waits * seen.step_s, seen.without_waiting_s
    limits = {"the step on a held batch": step_s}
    if not seen.own.workers:
        limits["loading"] = loading_s / count
        if seen.target.device == "cpu":
            threads = min(seen.own.cpu_threads or seen.cores, seen.cores)
            limits["the cores that both share"] = (loading_s + step_s * threads) / seen.cores
    limit = max(limits, key=lambda name: limits[name])
    return seen.step_s / limits[
        limit
    ], f"{count} load{'s' if count == 1 else ''} beside the step; then {limit} would limit it"


def _amp(seen: Seen) -> Iterator[Suggestion]:
    if seen.own.amp != "off":
        yield Suggestion(title="AMP", state="on", why=f"the script computes in {seen.own.amp} already")
        return
    kind = "bf16" if seen.target.bf16 else "fp16"
    gain, basis = None, f"a step in {kind} was not tried"
    if seen.in_16_bits and kind == "bf16":
        computing_s = seen.without_waiting_s
        gain = seen.step_s / (seen.step_s - computing_s + computing_s / seen.in_16_bits)
        basis = f"tried on a held batch: {seen.in_16_bits:.2f}× as fast in {kind}; the wait for data stays"
    why = _percent("matrix products and convolutions", seen.share(_PRODUCTS))
    yield _idea(seen, "AMP", {"amp": kind}, why, gain, basis, at_most=False)


def _waits(seen: Seen) -> Iterator[Suggestion]:
    """Lines that wait for the device: only an edit helps."""
    if seen.syncs is None or seen.target.device == "cpu":
        return
    for place in sorted(seen.syncs.places, key=lambda place: -place.seconds)[:3]:
        share = min(0.95, place.seconds / max(1, seen.syncs.steps) / seen.step_s)
        if share >= _SMALL and place.kind != "host to device":
            yield Suggestion(
                title=f"{place.call} at {place.where}",
                state="edit",
                why=f"{place.fix} ({share:.0%} of a step)",
                gain=_saved(share),
                at_most=True,
                basis="as if nothing had to be waited for there",
            )
