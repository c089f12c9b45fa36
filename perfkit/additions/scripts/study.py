"""Scripts as a source of runs: each stage is the script, with switches that are set from outside."""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from perfkit.additions.scripts import landlock
from perfkit.additions.scripts.behaviour import LOSSES, Behaviour
from perfkit.additions.scripts.messages import RANDOM_DATA, ScriptFacts
from perfkit.additions.scripts.outputs import LIMITS
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.errors import PerfkitError, RunFailed
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import Stage, StopRule
from perfkit.process.child import Conversation
from perfkit.recipe import Recipe, Value, allowed
from perfkit.results import parity, stats
from perfkit.results.comparison import Comparison
from perfkit.results.parity import Check
from perfkit.results.run import Run
from perfkit.results.stats import Spread
from perfkit.rules import Target
from perfkit.show.document import Content, Notice
from perfkit.show.tables import checks
from perfkit.studies.here import ThisMachine
from perfkit.studies.sides import Side
from perfkit.studies.sources import Plan, Progress, plan
from perfkit.worker.messages import Description, Trained

_FAR = 3.0
"""Standard errors by which means may differ."""
_USUAL_STEPS = 120
"""Steps of both sides of a usual comparison: first losses, warm-up, five rounds with held batches."""
_FEWEST, _LOSSES_PART = 2, 0.1
"""If these do not fit: the fewest rounds and losses, and the part of the budget for the losses of a side."""
_ENDED = "a script came to its end meanwhile; let both train longer to measure more"


class ScriptSource(ThisMachine):
    """A script that has taken its first steps. Every stage is a process of its own.

    `more`: other scripts, by the titles of their stages. `observed` gets what the steps of each stage have
    done, by title; the losses of a run are those of steps then, however many backward passes they have.
    """

    uses_any_device = True

    def spread(self, recipes: Sequence[Recipe]) -> Spread:
        """Of a user's script, whose pairs no ladder measures, only what scripts usually do is known."""
        return stats.OF_SCRIPTS

    """Equal processes of a script differed by 2.1% (standard deviation, 18 pairs of three small scripts that
    are watched, two cores, torch 2.15), two of them by more than 4.5%."""
    facts: ScriptFacts
    """What trains in the script."""

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        launch: Launch,
        more: Mapping[str, Launch] | None = None,
        observed: dict[str, Behaviour] | None = None,
    ) -> None:
        super().__init__(plan, progress)
        self._launch = launch
        self._more = more or {}
        self._observed = observed
        self._first: WatchedScript | None = None
        self._known: ScriptFacts | None = None

    def load(self) -> None:
        """Starts the script and looks at its first steps."""
        launch = self._launch
        self._first = child = self._start(launch, {})
        self._known = self.facts = facts = child.ask("describe")
        rule = affordable(self.plan.rule, facts.step_s)
        self.plan = replace(self.plan.on(device=facts.device), rule=rule)
        options = {"arguments": " ".join(launch.arguments)} if launch.arguments else {}
        self.description = Description(options, [], facts.facts, facts.convolves)

    def take(self) -> WatchedScript:
        """The script with its own settings; at first it is the one that `facts` are of."""
        child, self._first = self._first or self._start(self._launch, {}), None
        return child

    @property
    def target(self) -> Target:
        facts = self.facts
        return replace(super().target, own=allowed(facts.settings), refuses=refusing(facts.refused))

    def baseline(self) -> Recipe:
        """The script's own settings."""
        return Recipe().replace(**self.target.own)

    def start(self, stage: Stage) -> tuple[Conversation, Trained]:
        """Starts the script with the switches of a stage that differ from its own settings."""
        launch, rule = self._more.get(stage.title, self._launch), self.plan.rule
        toggles = {name: values[0] for name, values in stage.recipe.diff(self.baseline()).items()}
        is_plain = launch == self._launch and not toggles
        child = self.take() if is_plain else self._start(launch, toggles)
        return self.train(stage.recipe, rule.loss_steps, rule.warmup_s, child=child)

    def measure(self, stages: Sequence[Stage], rule: StopRule) -> list[Run]:
        """See `Source.measure`; then asks both sides of a comparison what their steps did."""
        runs = super().measure(stages, affordable(rule, self.facts.step_s, len(stages)))
        more = {"ended": _ENDED} if isinstance(self.stopped, RunFailed) else {}
        for at, run in enumerate(runs):
            launch, losses = self._more.get(run.title, self._launch), run.losses
            if self._observed and run.title in self._observed:
                losses = self._observed[run.title].losses
            changes = {"facts": {**run.facts, **more}, "losses": losses, "script": launch.describe()}
            runs[at] = msgspec.structs.replace(run, **changes)
        return runs

    def ask_more(self, side: Side) -> None:
        """What the steps of a side have done, of its first process."""
        title, child = side.stage.title, side.child
        if self._observed is None or title in self._observed or child is None:
            return
        with contextlib.suppress(PerfkitError):  # it has ended, or a person stopped it
            self._observed[title] = child.ask("behaviour")

    def _start(self, launch: Launch, toggles: Mapping[str, Value]) -> WatchedScript:
        child = WatchedScript(
            launch,
            toggles,
            seed=self.plan.subject.seed,
            known=self._known,
            witness=self._observed is not None,
            on_progress=self.progress.phase,
            cancelled=self.progress.cancelled,
        )
        child.timeout_s = self.plan.timeout_s
        self._exit.callback(child.stop)
        return child


def refusing(reasons: Mapping[str, str]) -> Callable[[str, Recipe], str]:
    """What a script refuses, as a target asks for it: whatever the value."""
    return lambda name, recipe: reasons.get(name, "")


def affordable(rule: StopRule, step_s: float, stages: int = 2) -> StopRule:
    """A rule whose rounds fit into the budget, with a first one and a last one: of one step, if slow."""
    if not 0 < rule.budget_s < _USUAL_STEPS * step_s:
        return rule
    short = replace(rule, slice_samples=1, slice_s=0.0, warmup_s=0.0, rounds=_FEWEST)
    losses = max(_FEWEST, min(rule.loss_steps, int(rule.budget_s * _LOSSES_PART / step_s)))
    left_s = max(0.0, rule.budget_s - 2 * stages * step_s)
    return replace(short, loss_steps=losses, budget_s=left_s)


def losses(a: Run, b: Run) -> Check:
    """Whether the first losses of a script are those of another run of it, as far as its switches allow.

    If the data set draws random numbers, other workers draw other ones: then the means of all losses are
    compared.
    """
    ours, plain = Recipe.from_dict(b.recipe), Recipe.from_dict(a.recipe)
    if ours.workers != plain.workers and b.facts.get("data") == RANDOM_DATA and a.losses and b.losses:
        return mean_losses(b.losses, a.losses)
    is_same = a.script == b.script  # else more differs than the switches
    exactness = catalogue.exactness(ours, plain, b.device) if is_same else "tolerance"
    is_in_16_bits = {ours.amp, plain.amp} != {"off"}
    return parity.losses(b.losses[:LOSSES], a.losses[:LOSSES], exactness, is_in_16_bits)


def mean_losses(ours: Sequence[float], plain: Sequence[float]) -> Check:
    """Whether losses of other random numbers are as near to each other as their scatter explains."""
    count = min(len(ours), len(plain))
    a, b = np.array(ours[:count]), np.array(plain[:count])
    scatter = _FAR * math.sqrt((a.var() + b.var()) / max(1, count - 1))
    is_near = bool(abs(a.mean() - b.mean()) <= scatter)
    how = "as near as" if is_near else "further apart than"
    text = f"{a.mean():.4g} on average, and {b.mean():.4g}: {how} their scatter explains"
    return Check("losses", is_near, f"{text}. They are not compared one by one, because {RANDOM_DATA}")


def sides(result: Comparison, proofs: Sequence[Check]) -> list[Content]:
    """What was set from outside in a script, with its proof, what was not, and what both sides train."""
    facts, shown = result.b.facts.items(), ("ended", "not applied")
    notices = [Notice(f"{name}: {text}") for name, text in facts if name.startswith(shown)]
    return [*notices, checks("Checks", [*result.b.mechanism, *proofs])]


def script_plan(launch: Launch, preset: str | None = None, seed: int = 0, **more: Any) -> Plan:
    """The plan of a study of a script; `more` as for its source.

    The device is the script's own choice, known once it trains.
    """
    if not landlock.is_there():
        warnings.warn(LIMITS, stacklevel=2)
    checked = plan(None, catalogue.preset(preset).size.name, ["baseline"], seed=seed)
    rule = replace(checked.rule, loss_steps=max(LOSSES, checked.rule.loss_steps))
    source = functools.partial(ScriptSource, launch=launch, **more)
    return replace(checked.on(workload=launch.name), rule=rule, source=source)
