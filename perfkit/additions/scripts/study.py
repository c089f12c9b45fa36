"""Scripts as a source of runs: each stage is the script with switches that are set from outside."""

import contextlib
import functools
import math
import shlex
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import msgspec
import numpy as np

from perfkit.additions.guard import landlock
from perfkit.additions.scripts.messages import LOSSES, TEXTS, RandomData, ScriptFacts, limits
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.errors import RunFailed
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import Slice, Stage, StopRule
from perfkit.process.locks import device_lock
from perfkit.recipe import Recipe, Value, allowed
from perfkit.results import Comparison, Run, RunStore, Spread, parity
from perfkit.rules import Target
from perfkit.show.document import Content, Notice
from perfkit.show.tables import checks
from perfkit.studies.conversation import StartedTraining
from perfkit.studies.here import RoundSession, target_of
from perfkit.studies.planning import plan
from perfkit.studies.sides import AskMore
from perfkit.studies.sources import Plan, Progress, Source
from perfkit.worker.messages import Description, DeviceFacts, TimedSteps, TrainingReport

UNCHANGED = "the unchanged script"  # the side that the others are compared with
LIMIT = limits("study")
OF_SCRIPTS = Spread(*LIMIT.spread)  # how much equal processes of a script differ
_RANDOM = TEXTS["random"]
_UNKNOWN = ScriptFacts(device="", facts=DeviceFacts(), samples_per_step=1)


@dataclass(frozen=True)
class ScriptStarter:
    """How the script of each stage is started, and which observers look at it."""

    launch: Launch
    observers: Sequence[str] = ()  # as for `WatchedScript`
    process: type[WatchedScript] = WatchedScript


@dataclass
class Pace:
    """The speed of a process, and its newest slice."""

    samples: int  # of a step
    step_s: float
    began_at: int = 0  # where the newest slice began, in samples
    size: int = 0  # samples of the newest slice

    def note(self, timed: TimedSteps) -> None:
        """Updates the speed from a slice: the warm-up ran while other processes were busy, too."""
        self.step_s = timed.seconds / max(1, len(timed.step_s))


class Pacer:
    """Sizes slices of scripts: all have as many samples, and begin at the same place of an epoch."""

    def __init__(self) -> None:
        self._paces: dict[WatchedScript, Pace] = {}

    def add(self, child: WatchedScript, trained: TrainingReport) -> None:
        """Sizes the slices of a script from now on."""
        times = trained.warmup.device_step_s or trained.warmup.step_s  # the host may see only launches
        step_s = statistics.median(times[-LIMIT.last_steps :])
        pace = Pace(max(1, trained.samples_per_step), max(step_s, 1e-9))
        self._paces = {**self._alive(), child: pace}
        child.before_slice = functools.partial(self.slice_of, child)
        child.after_slice = pace.note

    def slice_of(self, child: WatchedScript, samples: int, seconds: float) -> int:
        """The samples of a slice from where others began, if that is near: steps may slow in an epoch."""
        pace = self._paces[child]
        paces = self._alive().values()
        place = child.ask("reach", samples=0)
        behind = max(side.began_at for side in paces) - place
        if 0 < behind / pace.samples * pace.step_s <= LIMIT.catch_up_s:
            place = child.ask("reach", samples=place + behind)
        pace.began_at = place
        if not seconds:
            return samples
        sizes = [side.size for side in paces if side is not pace and side.began_at == place]
        sample_s = sum(side.step_s / side.samples for side in paces)
        pace.size = max(sizes, default=0) or max(1, round(len(paces) * seconds / sample_s))
        return pace.size

    def _alive(self) -> dict[WatchedScript, Pace]:
        return {child: pace for child, pace in self._paces.items() if not child.line.closed}


@dataclass(frozen=True, kw_only=True)
class ScriptSource(Source["ScriptSession"]):
    """Scripts: each stage is a process of a script, with switches that are set from outside."""

    is_costly = True
    starter: ScriptStarter
    facts: ScriptFacts = _UNKNOWN  # known once the script has taken its first steps

    def lock(self, progress: Progress) -> contextlib.AbstractContextManager[None]:
        return device_lock(None, progress.cancelled, progress.wait)  # a script may use any device

    @contextlib.contextmanager
    def session(self, progress: Progress, store: RunStore | None) -> Iterator["ScriptSession"]:
        with contextlib.ExitStack() as ending:
            first = ScriptSession(self, progress, store, ending).take()
            source = self.knowing(first.ask("describe"))
            rule = affordable(self.plan.rule, source.facts.step_s)
            subject = replace(self.plan.subject, device=source.facts.device)
            plan = replace(self.plan, subject=subject, rule=rule)
            yield ScriptSession(replace(source, plan=plan), progress, store, ending, first)

    def knowing(self, facts: ScriptFacts) -> Self:
        """The source with facts of the script."""
        arguments = shlex.join(self.starter.launch.arguments)
        options = {"arguments": arguments} if arguments else {}
        description = Description(options, [], facts.facts, facts.convolves)
        return replace(self, reported=description, facts=facts)

    @property
    def target(self) -> Target:
        return target(self.facts)

    def baseline(self) -> Recipe:
        return Recipe().replace(**self.target.defaults)


@dataclass(eq=False)
class ScriptSession(RoundSession):
    """Scripts that train."""

    source: ScriptSource
    spare: WatchedScript | None = None
    _pacer: Pacer = field(default_factory=Pacer, init=False)

    def take(self) -> WatchedScript:
        """A process of the unchanged script: the first one, unless it was taken before."""
        child = self.spare or self._started(self.source.starter.launch, {})
        self.spare = None
        return child

    def spread(self, recipes: Sequence[Recipe]) -> Spread:
        return OF_SCRIPTS

    def start_training(self, stage: Stage, has_losses: bool = False) -> StartedTraining:
        source = self.source
        rule = source.plan.rule
        launch: Launch = stage.program or source.starter.launch
        toggles = {name: values[0] for name, values in stage.recipe.diff(source.baseline()).items()}
        is_plain = launch == source.starter.launch and not toggles
        child = self.take() if is_plain else self._started(launch, toggles)
        steps = int(rule.warmup_s / max(source.facts.step_s, 1e-3))
        steps = min(LIMIT.most_warmup, max(LIMIT.least_warmup, steps)) if rule.warmup_s else 1
        report = self.report_of(child, loss_steps=rule.loss_steps, warmup_s=rule.warmup_s, warmup_steps=steps)
        self._pacer.add(child, report)
        return child, report

    def measure(self, stages: Sequence[Stage], rule: StopRule, ask_more: AskMore | None = None) -> list[Run]:
        rule = affordable(rule, self.source.facts.step_s, len(stages))
        runs = []
        for stage, run in zip(stages, super().measure(stages, rule, ask_more), strict=True):
            launch: Launch = stage.program or self.source.starter.launch
            ended = {"ended": TEXTS["study"]["ended"]} if isinstance(self.stopped, RunFailed) else {}
            facts = {"facts": run.facts | ended, "script": launch.describe(), "code": launch.code}
            runs.append(msgspec.structs.replace(run, **facts))
        return runs

    def _started(self, launch: Launch, toggles: Mapping[str, Value]) -> WatchedScript:
        source = self.source
        child = source.starter.process(
            launch,
            toggles,
            seed=source.plan.subject.seed,
            facts=source.facts,
            observers=source.starter.observers,
            on_progress=self.progress.phase,
            cancelled=self.progress.cancelled,
        ).start()
        self.ending.callback(child.stop)
        child.timeout_s = source.plan.timeout_s
        return child


def target(script: ScriptFacts) -> Target:
    """The target of a script: its device, its own settings, and switches that it refuses at any value."""
    base = target_of(script.device, Description({}, [], script.facts, script.convolves))
    own = allowed(script.settings)
    return replace(base, defaults=own, refuses=lambda name, recipe: script.refused.get(name, ""))


def affordable(rule: StopRule, step_s: float, stages: int = 2) -> StopRule:
    """A rule whose rounds fit into the budget: for slow steps, a few rounds of one step each."""
    if rule.budget is None or rule.budget.stage_s >= LIMIT.usual_steps * step_s:
        return rule
    short = replace(rule, slice=Slice(samples=1), warmup_s=0.0, rounds=LIMIT.fewest)
    losses = max(LIMIT.fewest, min(rule.loss_steps, int(rule.budget.stage_s * LIMIT.losses_part / step_s)))
    left_s = rule.budget.stage_s - 2 * stages * step_s
    budget = replace(rule.budget, stage_s=left_s) if left_s > 0 else None
    return replace(short, loss_steps=losses, budget=budget)


def losses(a: Run, b: Run) -> parity.Check:
    """Whether the first losses of two runs are equal, or near if workers draw random numbers."""
    ours, plain = Recipe.from_dict(b.recipe), Recipe.from_dict(a.recipe)
    facts = next((run.facts for run in (b, a) if "data" in run.facts), {})
    if ours.workers != plain.workers and facts and a.losses and b.losses:
        if facts["data"] == RandomData.DRAWN:
            return mean_losses(b.losses, a.losses)
        check = parity.check_losses(b.losses[:LOSSES], a.losses[:LOSSES], "tolerance", False)
        held = _RANDOM[RandomData.HELD].format(names=facts.get("generators", ""))
        why = "" if check.ok else f". The workers explain that: {held}; {_RANDOM['fair']}"
        return msgspec.structs.replace(check, evidence=f"{check.evidence}{why}")
    is_same = a.script == b.script  # else the runs differ in more than switches
    exactness = catalogue.exactness(ours, plain, b.device) if is_same else "tolerance"
    is_in_16_bits = {ours.amp, plain.amp} != {"off"}
    return parity.check_losses(b.losses[:LOSSES], a.losses[:LOSSES], exactness, is_in_16_bits)


def mean_losses(ours: Sequence[float], plain: Sequence[float]) -> parity.Check:
    """Whether the scatter of losses with other random numbers explains the distance of their means."""
    count = min(len(ours), len(plain))
    a, b = np.array(ours[:count]), np.array(plain[:count])
    scatter = LIMIT.far * math.sqrt((a.var() + b.var()) / max(1, count - 1))
    is_near = bool(abs(a.mean() - b.mean()) <= scatter)
    how = "as near as" if is_near else "further apart than"
    text = _RANDOM["means"].format(ours=a.mean(), plain=b.mean(), how=how, **_RANDOM)
    return parity.Check("losses", is_near, text)


def sides(result: Comparison, proofs: Sequence[parity.Check]) -> list[Content]:
    """Notices of switches that were not applied, and of a side that ended; the checks of both sides."""
    run = result.b
    notices = [Notice(f"not applied: {name}: {why}") for name, why in run.not_applied.items()]
    ended = [Notice(f"ended: {run.facts['ended']}")] if "ended" in run.facts else []
    return [*ended, *notices, checks("Checks", [*run.mechanism, *proofs])]


def script_plan(starter: ScriptStarter, preset: str | None = None, seed: int = 0) -> Plan[ScriptSession]:
    """The plan of a study of scripts as they are now; the device is known once they train."""
    if not landlock.is_there():
        warnings.warn(TEXTS["guard"]["limits"], stacklevel=2)
    starter = replace(starter, launch=starter.launch.frozen())
    checked = plan(None, catalogue.preset(preset).size.name, ["baseline"], seed=seed)
    rule = replace(checked.rule, loss_steps=max(LOSSES, checked.rule.loss_steps))
    subject = replace(checked.subject, workload=starter.launch.name, code=starter.launch.code)
    return Plan(subject, checked.ladder, rule, functools.partial(ScriptSource, starter=starter))
