"""What is avoidable in a script, the largest first, and which switches to try, with their bounds."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from perfkit.additions.advice.finding import Finding, Found
from perfkit.additions.scripts.causes import loading, outside, steps
from perfkit.additions.scripts.messages import ALIKE, STEPS, TEXTS, Observation, Symptoms
from perfkit.recipe import Recipe, Value, shown
from perfkit.rules import Target, applicable
from perfkit.show import units

_LEAST_GAIN = 1.03  # a smaller one is not told from chance
CAUSES = (*outside.CAUSES, *steps.CAUSES, *loading.CAUSES)


def findings(seen: Symptoms) -> list[Finding]:
    """What is avoidable, the largest first."""
    found = [finding for cause in CAUSES for finding in cause(seen)]
    named = [each for each in found if each.cause != "automatic_collection"]
    found += [*steps.lines(seen, named), *loading.lines(seen, named)]
    found = [structs.replace(it, limit="") if _may_gain_more(it, seen) else it for it in found]
    places = Counter(finding.where for finding in found)
    # Objects that are made in a cause are collected there.
    found = [each for each in found if each.cause != "automatic_collection" or places[each.where] == 1]
    of_workers = seen.evidence.loading.lines if seen.evidence.loading else []
    in_full = dict[str, str]()
    for line in [*seen.evidence.lines, *of_workers]:  # the largest first
        if line.with_function != line.where:
            in_full.setdefault(line.where, line.with_function)
    return ordered([structs.replace(each, where=in_full.get(each.where, each.where)) for each in found])


def _may_gain_more(finding: Finding, seen: Symptoms) -> bool:
    """Whether the run may gain more than the cost's share of the steps that were looked at."""
    if seen.growing:  # in other steps it has another share
        return True
    # What workers do not load any more leaves their cores to the steps, which get faster, too.
    has_workers = seen.evidence.data is not None and seen.evidence.data.workers > 0
    return has_workers and seen.script.device == "cpu" and finding.cause in loading.LIMIT.of_the_wait


def ordered(ideas: Sequence[Finding]) -> list[Finding]:
    """Those that were tried and help, those that were not tried, and the others; the most first."""
    # A cause comes before a switch that may give more, if it is a plain waste, or gives about as much.
    bounds = [idea.weight for idea in ideas if idea.settings and idea.limit == "up to"]
    least = ALIKE * max(bounds, default=0.0)

    def place(idea: Finding) -> tuple[bool, bool, bool, float]:
        is_cause = not idea.settings and idea.is_worth_a_sentence
        leads = is_cause and (idea.kind == "waste" or idea.weight >= least)
        gain = idea.measured.ratio if idea.measured else idea.weight
        return not idea.may_help, idea.measured is None, not leads, -gain

    return sorted(ideas, key=place)


@dataclass(frozen=True)
class Switches:
    """What was seen, and some plain steps; `one_thread`: how many times as fast with one compute thread."""

    symptoms: Symptoms
    target: Target
    steps: Observation
    one_thread: float | None = None

    @property
    def own(self) -> Recipe:
        return Recipe().replace(**self.target.defaults)

    @property
    def work_s(self) -> float:
        """A step whose batch is there at once; on a GPU the wait may hide work that remains."""
        return max(self.steps.step_s * (1 - self.steps.waiting), 1e-9)

    def idea(self, title: str, why: str, settings: Mapping[str, Value], left_s: float | None = None) -> Found:
        """A switch, if the first can be set, and gains: a step takes `left_s` at least, if that is known."""
        first = next(iter(settings))
        gain = self.steps.step_s / left_s if left_s else None
        recipe, _ = applicable(self.own.replace(**settings), self.target)
        left = {name: new for name, (new, _) in recipe.diff(self.own).items()}
        if first not in left or (gain is not None and gain < _LEAST_GAIN):
            return
        limit = "about" if first == "cpu_threads" else "up to"  # which was tried for a moment
        # Workers that have less to do leave their cores to the steps, which get faster, too.
        shares_cores = self.own.workers > 0 and self.target.device == "cpu"
        if limit == "up to" and (self.symptoms.is_disturbed or shares_cores):
            gain = None
        share = self.symptoms.run.running(STEPS) * (1 - 1 / gain) if gain else None
        change = f"{title}: {', '.join(f'{name}={shown(value)}' for name, value in left.items())}"
        yield Finding(title, why, change, share=share, limit=limit, settings=left)


def suggest(seen: Switches, causes: Collection[str] = ()) -> list[Finding]:
    """Switches to try, the most promising first, except what does not help against known `causes`."""
    return ordered([*_loading(seen, causes), *_computing(seen)])


def _loading(seen: Switches, causes: Collection[str]) -> Found:
    own = seen.own
    cores = seen.symptoms.cores
    step_s = seen.steps.step_s
    on_cpu = seen.target.device == "cpu"
    count = cores // 2 if on_cpu else cores
    workers = units.plural(own.workers, "worker") if own.workers else "no workers"
    if on_cpu and own.workers and own.workers + own.cpu_threads > cores:
        why = f"{workers} and cpu_threads={own.cpu_threads} share {units.plural(cores, 'core')}"
        yield from seen.idea("Fewer workers", why, {"workers": count if count < own.workers else 0})
        if own.cpu_threads > 1 and not seen.one_thread:
            yield from seen.idea("One compute thread", why, {"cpu_threads": 1})
    if seen.one_thread:
        why = f"other programs take the cores: with one thread, steps were {seen.one_thread:.1f}× as fast"
        yield from seen.idea("One compute thread", why, {"cpu_threads": 1}, step_s / seen.one_thread)
    if own.workers < count and not {"rows_one_by_one", "workers_cost_more", "sampler_line"} & {*causes}:
        why = f"waiting for data takes {seen.steps.waiting:.0%} of a step, with {workers}"
        settings: dict[str, Value] = {"workers": count, "pin_memory": True, "non_blocking": True}
        left_s = max(seen.work_s, seen.steps.waiting * step_s / count)
        yield from seen.idea("Loader workers", why, settings, left_s)


def _computing(seen: Switches) -> Found:
    """What makes parts of the work faster, or saves them; of all but the optimizer, only measuring tells."""
    amp = seen.own.amp
    if amp == "off":
        amp = "bf16" if seen.target.bf16 else "fp16"
    if seen.target.device != "cpu" or seen.symptoms.cpu_has_bf16:
        yield from seen.idea("AMP", "matrix products and convolutions can compute in 16 bits", {"amp": amp})
    for title, of in TEXTS["switches"].items():
        if title != "cuDNN benchmark" or seen.target.convolves:
            yield from seen.idea(title, of["why"], of["settings"])
    why = "the optimizer can update many weights at once"
    left_s = None
    step = seen.symptoms.run.of_step
    if seen.target.device == "cpu" and step:  # a GPU works on by itself
        step_s = seen.steps.step_s
        share = step["optimizer"] / max(sum(step.values()), 1e-9)
        why = f"the optimizer takes {share:.0%} of a step"
        left_s = max(step_s - min(share * step_s, seen.work_s), 0.02 * step_s)  # at most all of the work
    kind = "fused" if seen.symptoms.script.has_fused else "foreach"
    yield from seen.idea("Optimizer", why, {"optimizer_impl": kind}, left_s)
