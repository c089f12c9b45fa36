"""Which switches to try on a script that was watched, and the most that they can gain.

One model of gains (`Seen`): a plain step waits for data, then works. Loading can save the wait, everything
else a share of the work, by Amdahl's law. Where nothing that was seen tells, the gain is None; so it is while
other programs take the cores, as shares are not certain then. What to edit is said by `causes`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from perfkit.additions.scripts.messages import Observation
from perfkit.recipe import Recipe, Value, shown
from perfkit.results.stats import Ratio
from perfkit.rules import Target, applicable
from perfkit.worker.messages import Block

_LEAST = 1.03
"""A smaller gain is not told from chance."""
_NO_BOUND: tuple[tuple[str, bool, str, dict[str, Value]], ...] = (
    ("TF32", True, "matrix products and convolutions", {"fp32_precision": "tf32"}),
    ("channels_last", False, "convolutions", {"channels_last": True}),
    ("cuDNN benchmark", True, "convolutions", {"cudnn_benchmark": True}),
    ("torch.compile", False, "small operators, and Python between them", {"compile": True}),
    ("Pinned memory", True, "copies to the device", {"pin_memory": True, "non_blocking": True}),
)
"""What is made faster, on CUDA alone if so marked: nothing that was seen bounds what it gains."""

_STATES = ("try", "refused", "on")
"""In the order in which they are shown; `refused`: it cannot be had here, or does not help."""
_HELPS = 1.05
"""What a suggestion that was tried must have given, to be suggested still."""


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

    `ceiling`: steps on a cached batch. `has_fused`: the optimizer has a fused implementation.
    """

    target: Target
    steps: Observation
    cores: int
    ceiling: Block | None = None
    has_fused: bool = True
    is_disturbed: bool = False
    """Whether other programs took the cores."""
    cpu_has_bf16: bool = True
    one_thread: float | None = None
    """How many times as fast steps were with one compute thread."""

    @cached_property
    def own(self) -> Recipe:
        """All switches as the script has them."""
        return Recipe().replace(**self.target.own)

    @cached_property
    def work_s(self) -> float:
        """A step whose batch is there at once.

        On a GPU the wait may hide work that remains. On a CPU loading takes cores from the work, so that the
        work alone may be faster than what is left of a step without its wait.
        """
        steps = self.steps
        work = steps.step_s * (1 - steps.waiting)
        if self.ceiling and self.ceiling.samples:
            samples = steps.block.samples / max(1, len(steps.block.step_s))
            alone = samples / self.ceiling.samples_per_s
            work = min(work, alone) if self.target.device == "cpu" else min(steps.step_s, max(work, alone))
        return max(work, 1e-9)

    def idea(
        self, title: str, why: str, settings: Mapping[str, Value], left_s: float | None = None
    ) -> Suggestion:
        """A suggestion; refused if its first switch is on already, or cannot be set here, or gains nothing.

        `left_s`: what a step would take; None where only measuring tells.
        """
        name, gain = next(iter(settings)), self.steps.step_s / left_s if left_s else None
        recipe, refused = applicable(self.own.replace(**settings), self.target)
        left = {key: new for key, (new, _) in recipe.diff(self.own).items()}
        if name in left and (gain is None or gain >= _LEAST):
            is_bound = gain is not None and name != "cpu_threads"  # which was tried for a moment
            if is_bound and self.is_disturbed:
                gain, is_bound = None, False
            return Suggestion(title=title, state="try", settings=left, why=why, gain=gain, at_most=is_bound)
        if name in left or name in refused:
            return Suggestion(title=title, state="refused", why=refused.get(name, f"{why}; no gain"))
        return Suggestion(title=title, state="on", why=f"the script has {name}={shown(settings[name])}")


def suggest(seen: Seen, causes: Collection[str] = ()) -> list[Suggestion]:
    """What to try, except what does not help against known `causes`; then what is on or cannot be had."""
    ideas = [*_loading(seen), *_computing(seen)]
    if "rows_one_by_one" in causes:
        ideas = [idea for idea in ideas if idea.title != "Loader workers"]
    return ordered(ideas)


def ordered(ideas: Sequence[Suggestion]) -> list[Suggestion]:
    """Those to try first: by what they gave, then by what they can give."""

    def place(idea: Suggestion) -> tuple[int, int, float]:
        if idea.measured:
            return _STATES.index(idea.state), 0, -idea.measured.ratio
        return _STATES.index(idea.state), 1 if idea.gain else 2, -(idea.gain or 0.0)

    return sorted(ideas, key=place)


def tried(idea: Suggestion, gave: Ratio) -> Suggestion:
    """A suggestion with what it gave; one that did not help is suggested no more."""
    is_no_help = gave.ratio < _HELPS or gave.verdict == "no measurable difference"
    return msgspec.structs.replace(idea, measured=gave, state="refused" if is_no_help else "try")


def _loading(seen: Seen) -> Iterator[Suggestion]:
    """Workers, as if they took no core, and compute threads that leave them cores."""
    own, cores, waiting, step_s = seen.own, seen.cores, seen.steps.waiting, seen.steps.step_s
    on_cpu = seen.target.device == "cpu"
    count = cores // 2 if on_cpu else cores
    workers = f"{own.workers or 'no'} worker{'s' * (own.workers != 1)}"
    have = f"{cores} core{'s' * (cores != 1)}"
    if on_cpu and own.workers and own.workers + own.cpu_threads > cores:
        why = f"{workers} and cpu_threads={own.cpu_threads} share {have}"
        yield seen.idea("Fewer workers", why, {"workers": count if count < own.workers else 0})
        if own.cpu_threads > 1 and not seen.one_thread:
            yield seen.idea("One compute thread", why, {"cpu_threads": 1})
    if seen.one_thread:
        why = f"threads wait for busy cores: with one, steps were {seen.one_thread:.1f}× as fast"
        yield seen.idea("One compute thread", why, {"cpu_threads": 1}, step_s / seen.one_thread)
    why = f"{waiting:.0%} of a step is spent waiting for data, with {workers}"
    if own.workers < count:
        load_s = 0.0 if own.workers else waiting * step_s
        settings: dict[str, Value] = {"workers": count, "pin_memory": True, "non_blocking": True}
        yield seen.idea("Loader workers", why, settings, max(seen.work_s, load_s / count))


def _computing(seen: Seen) -> Iterator[Suggestion]:
    """What makes parts of the work faster, or saves them."""
    steps, where, work_s = seen.steps, seen.target, seen.work_s
    amp = seen.own.amp if seen.own.amp != "off" else "bf16" if where.bf16 else "fp16"
    if where.device == "cpu" and not seen.cpu_has_bf16 and seen.own.amp == "off":
        slower = "this CPU has no instructions for bfloat16: it would be slower"
        yield Suggestion(title="AMP", state="refused", why=slower)
    else:
        yield seen.idea("AMP", "matrix products and convolutions", {"amp": amp})
    for title, needs_cuda, what, settings in _NO_BOUND:
        if needs_cuda <= (where.device == "cuda") and (where.convolves or what != "convolutions"):
            yield seen.idea(title, what, settings)
    why, left_s = "the optimizer's own work", None
    if steps.optimizer_s is not None:  # at most all of the work
        share = steps.optimizer_s / steps.block.seconds
        why += f": {share:.0%} of a step"
        left_s = max(steps.step_s - min(share * steps.step_s, work_s), 0.02 * steps.step_s)
    yield seen.idea("Optimizer", why, {"optimizer_impl": "fused" if seen.has_fused else "foreach"}, left_s)
