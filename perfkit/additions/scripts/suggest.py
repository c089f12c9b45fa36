"""What to try on a script that was watched, and the most that it can gain.

One model of gains (`Seen`): a plain step waits for data, then works. Loading can save the wait, everything
else a share of the work, by Amdahl's law. Where nothing that was seen tells, the gain is None.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from perfkit.additions.scripts.messages import Observation
from perfkit.recipe import Recipe, Value, shown
from perfkit.results.stats import Ratio
from perfkit.rules import Target, applicable
from perfkit.show import sentences, units
from perfkit.show.document import Col, Table, tabulate
from perfkit.show.units import clean
from perfkit.worker.messages import Block

_LEAST = 1.03
"""A smaller gain is not told from chance."""
_UNKNOWN = 1.1
"""The place in the order of a gain that is not known."""
_NO_BOUND: tuple[tuple[str, bool, str, dict[str, Value]], ...] = (
    ("TF32", True, "matrix products and convolutions", {"fp32_precision": "tf32"}),
    ("channels_last", False, "convolutions", {"channels_last": True}),
    ("cuDNN benchmark", True, "convolutions", {"cudnn_benchmark": True}),
    ("torch.compile", False, "small operators, and Python between them", {"compile": True}),
    ("Pinned memory", True, "copies to the device", {"pin_memory": True, "non_blocking": True}),
)
"""What is made faster, on CUDA alone if so marked: nothing that was seen bounds what it gains."""

_STATES = {"try": "", "edit": "edit the script", "refused": "no", "on": "has it"}
"""In the order in which they are shown, each with the words in place of switches: set it from outside; edit
the script; it cannot be had here, or does not help; the script has it."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that may make a script faster, or why it will not.

    `why` is what was seen that speaks for it, or the reason against it. `gain` is the predicted ratio of
    samples/s, None where nothing that was seen tells, and a bound if `at_most`: as if its part took no time.
    `measured`: what it gave, where it was tried.
    """

    title: str
    state: str
    settings: dict[str, bool | int | str] = {}
    why: str
    gain: float | None = None
    at_most: bool = False
    measured: Ratio | None = None


@dataclass(frozen=True)
class Seen:
    """What watching a script has shown, and what follows from it by arithmetic.

    `ceiling`: steps on a held batch. `in_16_bits`: how many times as fast such a step is under autocast to
    bfloat16; None if that was not tried. `has_fused`: the optimizer has a fused implementation.
    """

    target: Target
    steps: Observation
    cores: int
    ceiling: Block | None = None
    in_16_bits: float | None = None
    has_fused: bool = True

    @cached_property
    def own(self) -> Recipe:
        """All switches as the script has them."""
        return Recipe().replace(**self.target.own)

    @cached_property
    def work_s(self) -> float:
        """A step whose batch is there at once; on a GPU the wait may hide work that remains."""
        steps = self.steps
        work = steps.step_s * (1 - steps.waiting)
        if self.target.device != "cpu" and self.ceiling and self.ceiling.samples:
            samples = steps.block.samples / max(1, len(steps.block.step_s))
            work = min(steps.step_s, max(work, samples / self.ceiling.samples_per_s))
        return max(work, 1e-9)

    def idea(
        self, title: str, why: str, settings: Mapping[str, Value], left_s: float | None = None
    ) -> Suggestion:
        """A suggestion; refused if its first switch is on already, or cannot be set here, or gains nothing.

        `left_s`: what a step would take; None where only measuring tells.
        """
        name, gain = next(iter(settings)), left_s and self.steps.step_s / left_s
        recipe, refused = applicable(self.own.replace(**settings), self.target)
        left = {key: new for key, (new, _) in recipe.diff(self.own).items()}
        if name in left and (gain is None or gain >= _LEAST):
            is_bound = gain is not None and name != "amp"  # that was tried on a held batch
            return Suggestion(title=title, state="try", settings=left, why=why, gain=gain, at_most=is_bound)
        if name in left or name in refused:
            return Suggestion(title=title, state="refused", why=refused.get(name, f"{why}; no gain"))
        return Suggestion(title=title, state="on", why=f"the script has {name}={shown(settings[name])}")


def suggest(seen: Seen) -> list[Suggestion]:
    """What to try, the largest gain first; then edits; then what cannot be had, and what is on already.

    Where only measuring tells, that is worth more than a small bound.
    """
    ideas = [*_loading(seen), *_computing(seen)]
    return sorted(ideas, key=lambda idea: ([*_STATES].index(idea.state), -(idea.gain or _UNKNOWN)))


def tried(idea: Suggestion, gave: Ratio) -> Suggestion:
    """A suggestion with what it gave; one that did not help is suggested no more."""
    is_no_help = gave.high <= 1 or gave.verdict == "no measurable difference"
    return msgspec.structs.replace(idea, measured=gave, state="refused" if is_no_help else "try")


def _loading(seen: Seen) -> Iterator[Suggestion]:
    """As if workers took no core."""
    own, cores, waiting, step_s = seen.own, seen.cores, seen.steps.waiting, seen.steps.step_s
    on_cpu = seen.target.device == "cpu"
    count = cores // 2 if on_cpu else cores
    workers = f"{own.workers or 'no'} worker{'s' * (own.workers != 1)}"
    have = f"{cores} core{'s' * (cores != 1)}"
    if on_cpu and own.workers and own.workers + own.cpu_threads > cores:
        why = f"{workers} and cpu_threads={own.cpu_threads} share {have}"
        yield seen.idea("Fewer workers", why, {"workers": count if count < own.workers else 0})
    why = f"{waiting:.0%} of a step is spent waiting for data, with {workers}"
    if own.workers < count:
        load_s = 0.0 if own.workers else waiting * step_s
        settings: dict[str, Value] = {"workers": count, "pin_memory": True, "non_blocking": True}
        yield seen.idea("Loader workers", why, settings, max(seen.work_s, load_s / count))
    if waiting > 1 - 1 / _LEAST and (on_cpu or own.workers >= count):  # workers may not pay on few cores
        advice = f"{why} on {have}: use smaller or decoded files, fewer transforms, or a cache"
        gain = step_s / seen.work_s
        yield Suggestion(title="Cheaper samples", state="edit", why=advice, gain=gain, at_most=True)


def _computing(seen: Seen) -> Iterator[Suggestion]:
    """What makes parts of the work faster, or saves them."""
    steps, where, work_s = seen.steps, seen.target, seen.work_s
    amp = seen.own.amp if seen.own.amp != "off" else "bf16" if where.bf16 else "fp16"
    why, left_s = "matrix products and convolutions", None
    if speed := seen.in_16_bits:
        why += f" (tried on a held batch: {speed:.2f}× as fast)"
        left_s = steps.step_s - work_s + work_s / speed
    yield seen.idea("AMP", why, {"amp": amp}, left_s)
    for title, needs_cuda, what, settings in _NO_BOUND:
        if needs_cuda <= (where.device == "cuda") and (where.convolves or what != "convolutions"):
            yield seen.idea(title, what, settings)
    why, left_s = "the optimizer's own work", None
    if steps.optimizer_s is not None:  # at most all of the work
        share = steps.optimizer_s / steps.block.seconds
        why += f": {share:.0%} of a step"
        left_s = max(steps.step_s - min(share * steps.step_s, work_s), 0.02 * steps.step_s)
    yield seen.idea("Optimizer", why, {"optimizer_impl": "fused" if seen.has_fused else "foreach"}, left_s)


def table(ideas: Sequence[Suggestion]) -> Table:
    """What to try, the most promising first."""

    def gain(idea: Suggestion) -> str:
        if idea.measured:
            return sentences.result(idea.measured)
        if idea.gain is None:
            return units.NOT_AVAILABLE if idea.state == "try" else ""
        return f"{'≤ ' * idea.at_most}{units.times(idea.gain)}"

    def settings(idea: Suggestion) -> str:
        texts = [f"{name}={shown(value)}" for name, value in idea.settings.items()]
        return _STATES[idea.state] or ", ".join(texts)

    columns = [
        Col("switch", "title"),
        Col("gain", gain),
        Col("set", settings),
        Col("why", lambda idea: clean(idea.why)),
    ]
    note = (
        "An interval is measured (disturbed: beside other programs); ≤ is a bound, as if its part took no "
        "time; n/a: only measuring tells."
    )
    return tabulate(columns, ideas, note=note)
