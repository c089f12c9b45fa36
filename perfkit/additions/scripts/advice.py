"""Avoidable costs of a script, the largest first, and switches to try, with bounds of their gains."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from perfkit.additions.advice.finding import Finding, Found
from perfkit.additions.scripts.causes import loading, outside, steps
from perfkit.additions.scripts.messages import ALIKE, EVALUATION, STEPS, TEXTS, Observation, Symptoms
from perfkit.recipe import Recipe, Value, shown
from perfkit.rules import Target, applicable
from perfkit.show import units

_SHARES_ITS_LINE = ("automatic_collection", "evaluation")  # causes at whose line steps may spend time, too
_LEAST_GAIN = 1.03  # a smaller gain cannot be told from chance


def findings(symptoms: Symptoms) -> list[Finding]:
    """The avoidable costs, the largest first."""
    outside_steps = [cost for cause in outside.CAUSES for cost in cause(symptoms)]
    of_steps = [cost for cause in (*steps.CAUSES, *loading.CAUSES) for cost in cause(symptoms)]
    others = [cost for cost in outside_steps + of_steps if cost.cause not in _SHARES_ITS_LINE]
    of_steps += [*steps.lines(symptoms, others), *loading.lines(symptoms, others)]
    costs = outside_steps + [_with_evaluations(cost, symptoms) for cost in of_steps]
    costs = [_bounded(cost, symptoms) for cost in costs]
    places = Counter(cost.where for cost in costs)
    of_workers = symptoms.evidence.loading.lines if symptoms.evidence.loading else []
    functions = dict[str, str]()  # lines with their functions
    for line in [*symptoms.evidence.lines, *of_workers]:  # the largest first
        if line.with_function != line.where:
            functions.setdefault(line.where, line.with_function)
    # What is collected at the line of a cause are the objects that this cause makes.
    costs = [cost for cost in costs if cost.cause != "automatic_collection" or places[cost.where] == 1]
    return ordered([structs.replace(cost, where=functions.get(cost.where, cost.where)) for cost in costs])


def _with_evaluations(cost: Finding, symptoms: Symptoms) -> Finding:
    """A cost of steps, with what evaluations spend at its line: whoever removes it gains that, too."""
    spent_s = sum(line.seconds for line, _ in symptoms.lines(EVALUATION) if line.where == cost.where)
    share = cost.around_share or cost.share
    if not (spent_s and share):
        return cost
    of_evaluations = spent_s / symptoms.evidence.parts[EVALUATION] * symptoms.run.running(EVALUATION)
    return structs.replace(cost, around_share=share + of_evaluations)


def _bounded(cost: Finding, symptoms: Symptoms) -> Finding:
    """A cost, without a bound of its gain if the run may gain more than the cost's share."""
    # When workers load less, the steps get their cores, and become faster, too.
    has_workers = symptoms.evidence.data is not None and symptoms.evidence.data.workers > 0
    frees_cores = has_workers and symptoms.script.device == "cpu" and cost.cause in loading.LIMIT.of_the_wait
    may_gain_more = symptoms.growing or frees_cores  # a part that grows has another share in other steps
    return structs.replace(cost, limit="") if may_gain_more else cost


def ordered(ideas: Sequence[Finding]) -> list[Finding]:
    """Ideas in order: those that helped when tried, untried ones, others; the largest gains first."""
    # A cause comes before a switch that may give more, if it is a plain waste, or gives about as much.
    bounds = [idea.weight for idea in ideas if idea.settings and idea.limit == "up to"]
    least = ALIKE * max(bounds, default=0.0)

    def rank(idea: Finding) -> tuple[bool, bool, bool, float]:
        is_cause = not idea.settings and idea.is_worth_a_sentence
        leads = is_cause and (idea.kind == "waste" or idea.weight >= least)
        gain = idea.measured.ratio if idea.measured else idea.weight
        return not idea.may_help, idea.measured is None, not leads, -gain

    return sorted(ideas, key=rank)


@dataclass(frozen=True)
class Switches:
    """The measurements from which gains of switches are estimated."""

    symptoms: Symptoms
    target: Target
    steps: Observation
    one_thread: float | None = None  # how many times as fast the steps were

    @property
    def own(self) -> Recipe:
        return Recipe().replace(**self.target.defaults)

    @property
    def work_s(self) -> float:
        """Seconds of a step whose batch is ready; on a GPU, waiting may hide a part of the work."""
        return max(self.steps.step_s * (1 - self.steps.waiting), 1e-9)

    def idea(self, title: str, why: str, settings: Mapping[str, Value], rest_s: float | None = None) -> Found:
        """A suggestion, if its first switch can be set and gains. `rest_s`: the shortest step with it."""
        first = next(iter(settings))
        gain = self.steps.step_s / rest_s if rest_s else None
        recipe, _ = applicable(self.own.replace(**settings), self.target)
        changes = {name: value for name, (value, _) in recipe.diff(self.own).items()}
        if first not in changes or (gain is not None and gain < _LEAST_GAIN):
            return
        limit = "about" if first == "cpu_threads" else "up to"  # one thread was tried for a moment
        shares_cores = self.own.workers > 0 and self.target.device == "cpu"  # as for `_bounded`
        if limit == "up to" and (self.symptoms.is_disturbed or shares_cores):
            gain = None
        share = self.symptoms.run.running(STEPS) * (1 - 1 / gain) if gain else None
        change = f"{title}: {', '.join(f'{name}={shown(value)}' for name, value in changes.items())}"
        yield Finding(title, why, change, share=share, limit=limit, settings=changes)


def suggest(switches: Switches, causes: Collection[str] = ()) -> list[Finding]:
    """Switches to try, the most promising first, except those that do not help against these causes."""
    return ordered([*_loading(switches, causes), *_computing(switches)])


def _loading(switches: Switches, causes: Collection[str]) -> Found:
    recipe = switches.own
    cores = switches.symptoms.cores
    step_s = switches.steps.step_s
    on_cpu = switches.target.device == "cpu"
    count = cores // 2 if on_cpu else cores
    workers = units.plural(recipe.workers, "worker") if recipe.workers else "no workers"
    if on_cpu and recipe.workers and recipe.workers + recipe.cpu_threads > cores:
        why = f"{workers} and cpu_threads={recipe.cpu_threads} share {units.plural(cores, 'core')}"
        yield from switches.idea("Fewer workers", why, {"workers": count if count < recipe.workers else 0})
        if recipe.cpu_threads > 1 and not switches.one_thread:
            yield from switches.idea("One compute thread", why, {"cpu_threads": 1})
    if switches.one_thread:
        why = f"other programs take the cores: with one thread, steps were {switches.one_thread:.1f}× as fast"
        yield from switches.idea("One compute thread", why, {"cpu_threads": 1}, step_s / switches.one_thread)
    if recipe.workers < count and not {"rows_one_by_one", "workers_cost_more", "sampler_line"} & {*causes}:
        why = f"waiting for data takes {switches.steps.waiting:.0%} of a step, with {workers}"
        settings: dict[str, Value] = {"workers": count, "pin_memory": True, "non_blocking": True}
        rest_s = max(switches.work_s, switches.steps.waiting * step_s / count)
        yield from switches.idea("Loader workers", why, settings, rest_s)


def _computing(switches: Switches) -> Found:
    """Switches that make parts of the work faster, or save them; only the optimizer's gain has a bound."""
    target, symptoms = switches.target, switches.symptoms
    amp = switches.own.amp
    if amp == "off":
        amp = "bf16" if target.bf16 else "fp16"
    if target.device != "cpu" or symptoms.cpu_has_bf16:
        why = "matrix products and convolutions can compute in 16 bits"
        yield from switches.idea("AMP", why, {"amp": amp})
    for title, text in TEXTS["switches"].items():
        if title != "cuDNN benchmark" or target.convolves:
            yield from switches.idea(title, text["why"], text["settings"])
    why = "the optimizer can update many weights at once"
    rest_s = None
    parts = symptoms.run.of_step
    if target.device == "cpu" and parts:  # a GPU works on by itself
        step_s = switches.steps.step_s
        share = parts["optimizer"] / max(sum(parts.values()), 1e-9)
        why = f"the optimizer takes {share:.0%} of a step"
        rest_s = max(step_s - min(share * step_s, switches.work_s), 0.02 * step_s)  # at most all of the work
    kind = "fused" if symptoms.script.has_fused else "foreach"
    yield from switches.idea("Optimizer", why, {"optimizer_impl": kind}, rest_s)
