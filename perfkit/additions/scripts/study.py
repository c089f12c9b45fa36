"""Scripts as a source of runs: each stage is the script, with switches that are set from outside."""

import contextlib
import functools
import math
import re
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
import psutil

from perfkit.additions.guard import landlock
from perfkit.additions.scripts.messages import LOSSES, TEXTS, RandomData, ScriptFacts, limits
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.errors import RunFailed
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import Slice, Stage, StopRule
from perfkit.process.child import Conversation
from perfkit.process.tree import Tree
from perfkit.recipe import Recipe, Value, allowed
from perfkit.results import Comparison, Run, RunStore, Spread, parity, stats
from perfkit.rules import Target
from perfkit.show.document import Content, Notice
from perfkit.show.tables import checks
from perfkit.studies.here import ThisMachine
from perfkit.studies.planning import plan
from perfkit.studies.sources import Plan, Progress
from perfkit.worker.messages import Block, Description, Trained

_More = Mapping[str, Launch] | None
UNCHANGED = "the unchanged script"  # the side that others are compared with
LIMIT = limits("study")
_RANDOM = TEXTS["random"]
_ENDED = "a script came to its end meanwhile; let both train longer, or compare whole runs with --whole"


@dataclass
class _Pace:
    """How fast a process is: samples of a step, and its seconds; where its newest slice began, in samples."""

    samples: int
    step_s: float
    began_at: int = 0
    size: int = 0  # samples of the newest slice

    def note(self, block: Block) -> None:
        """A slice tells how fast it is now: it was started while others were busy, too."""
        self.step_s = block.seconds / max(1, len(block.step_s))


class ScriptSource(ThisMachine):
    """A script that has taken its first steps; each stage is a process. `more`: other scripts by stage."""

    uses_any_device = True
    observers: ClassVar[tuple[str, ...]] = ()  # what looks at the scripts, as for `WatchedScript`
    starts: ClassVar[type[WatchedScript]] = WatchedScript

    def spread(self, recipes: Sequence[Recipe]) -> Spread:
        return stats.OF_SCRIPTS

    facts: ScriptFacts  # what trains in the script

    def __init__(
        self, plan: Plan, progress: Progress, store: RunStore | None, launch: Launch, more: _More = None
    ) -> None:
        super().__init__(plan, progress, store)
        self._launch = launch.frozen()
        self._more = {title: side.frozen() for title, side in (more or {}).items()}
        self._paces: dict[Conversation, _Pace] = {}  # of all processes, also those that have ended
        self._first: WatchedScript | None = None
        self._known: ScriptFacts | None = None

    def load(self) -> None:
        launch = self._launch
        self._first = child = self._start(launch, {})
        self._known = self.facts = facts = child.ask("describe")
        rule = affordable(self.plan.rule, facts.step_s)
        self.plan = replace(self.plan.on(device=facts.device), rule=rule)
        options = {"arguments": " ".join(launch.arguments)} if launch.arguments else {}
        self.description = Description(options, [], facts.facts, facts.convolves)

    def take(self) -> WatchedScript:
        child = self._first or self._start(self._launch, {})
        self._first = None
        return child

    @property
    def target(self) -> Target:
        own = allowed(self.facts.settings)
        return replace(super().target, own=own, refuses=refusing(self.facts.refused))

    def baseline(self) -> Recipe:
        return Recipe().replace(**self.target.own)

    def start(self, stage: Stage, has_losses: bool = False) -> tuple[Conversation, Trained]:
        launch = self._more.get(stage.title, self._launch)
        rule = self.plan.rule
        toggles = {name: values[0] for name, values in stage.recipe.diff(self.baseline()).items()}
        is_plain = launch == self._launch and not toggles
        child = self.take() if is_plain else self._start(launch, toggles)
        steps = int(rule.warmup_s / max(self.facts.step_s, 1e-3))
        steps = min(LIMIT.most_warmup, max(LIMIT.least_warmup, steps)) if rule.warmup_s else 1
        how = {"loss_steps": rule.loss_steps, "warmup_s": rule.warmup_s, "warmup_steps": steps}
        try:
            trained = child.ask("train", **how)
        except BaseException:
            child.stop()
            raise
        warm = trained.warmup.device_step_s or trained.warmup.step_s  # by the host it may be a launch
        step_s = statistics.median(warm[-LIMIT.last_steps :])
        self._paces[child] = _Pace(max(1, trained.samples_per_step), max(step_s, 1e-9))
        child.before_slice = functools.partial(self._slice_of, child)
        child.after_slice = self._paces[child].note
        return child, trained

    def _slice_of(self, child: Conversation, samples: int, seconds: float) -> dict[str, float]:
        """What a slice is: equal samples for all sides, from the same place of epochs on, if it is near.

        Steps may get slower within an epoch, so that slices from different places of it tell nothing.
        """
        pace = self._paces[child]
        paces = [each for other, each in self._paces.items() if not other.line.closed]
        place = child.ask("reach", samples=0)
        behind = max(each.began_at for each in paces) - place
        if 0 < behind / pace.samples * pace.step_s <= LIMIT.catch_up_s:
            place = child.ask("reach", samples=place + behind)
        pace.began_at = place
        if not seconds:
            return {"samples": samples, "seconds": 0.0}
        same = [each.size for each in paces if each is not pace and each.began_at == place]
        sample_s = sum(each.step_s / each.samples for each in paces)
        pace.size = max(same, default=0) or max(1, round(len(paces) * seconds / sample_s))
        return {"samples": pace.size, "seconds": 0.0}

    def measure(self, stages: Sequence[Stage], rule: StopRule) -> list[Run]:
        runs = super().measure(stages, affordable(rule, self.facts.step_s, len(stages)))
        more = {"ended": _ENDED} if isinstance(self.stopped, RunFailed) else {}
        for at, run in enumerate(runs):
            launch = self._more.get(run.title, self._launch)
            how = {"losses": self.losses(run), "script": launch.describe(), "code": launch.code}
            runs[at] = msgspec.structs.replace(run, facts={**run.facts, **more}, **how)
        return runs

    def losses(self, run: Run) -> list[float]:
        """Those that are compared."""
        return run.losses

    def _start(self, launch: Launch, toggles: Mapping[str, Value]) -> WatchedScript:
        child = self.starts(
            launch,
            toggles,
            seed=self.plan.subject.seed,
            known=self._known,
            observers=self.observers,
            on_progress=self.progress.phase,
            cancelled=self.progress.cancelled,
        )
        child.timeout_s = self.plan.timeout_s
        self._exit.callback(child.stop)
        return child


class Memory(NamedTuple):
    """Bytes of a script's own process, now and at its most, and of others what they share with none."""

    own: int = 0
    peak: int = 0
    others: int = 0
    threads: int = 0  # most threads of a process of the others

    @classmethod
    def of(cls, tree: Tree) -> "Memory":
        """The memory of a script and of all processes that it has started."""
        own = peak = others = threads = 0
        for process in tree.processes():
            with contextlib.suppress(psutil.Error, OSError, AttributeError):  # it has just ended
                if process == tree.root:
                    own = peak = process.memory_info().rss
                    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="ignore")
                    peak = max(own, *(int(size) << 10 for size in re.findall(r"VmHWM:\s+(\d+) kB", status)))
                else:
                    others += process.memory_full_info().uss
                    threads = max(threads, process.num_threads())
        return cls(own, peak, others, threads)


def refusing(reasons: Mapping[str, str]) -> Callable[[str, Recipe], str]:
    """What a script refuses, as a target asks for it: whatever the value."""
    return lambda name, recipe: reasons.get(name, "")


def affordable(rule: StopRule, step_s: float, stages: int = 2) -> StopRule:
    """A rule whose rounds fit into the budget, with a first one and a last one: of one step, if slow."""
    if rule.budget is None or rule.budget.stage_s >= LIMIT.usual_steps * step_s:
        return rule
    short = replace(rule, slice=Slice(samples=1), warmup_s=0.0, rounds=LIMIT.fewest)
    losses = max(LIMIT.fewest, min(rule.loss_steps, int(rule.budget.stage_s * LIMIT.losses_part / step_s)))
    left_s = rule.budget.stage_s - 2 * stages * step_s
    budget = replace(rule.budget, stage_s=left_s) if left_s > 0 else None
    return replace(short, loss_steps=losses, budget=budget)


def losses(a: Run, b: Run) -> parity.Check:
    """Whether the first losses are those of another run, or near them where workers draw random numbers."""
    ours, plain = Recipe.from_dict(b.recipe), Recipe.from_dict(a.recipe)
    facts = next((run.facts for run in (b, a) if "data" in run.facts), {})
    if ours.workers != plain.workers and facts and a.losses and b.losses:
        if facts["data"] == RandomData.DRAWN:
            return mean_losses(b.losses, a.losses)
        check = parity.check_losses(b.losses[:LOSSES], a.losses[:LOSSES], "tolerance", False)
        held = _RANDOM[RandomData.HELD].format(names=facts.get("generators", ""))
        why = "" if check.ok else f". The workers explain that: {held}; {_RANDOM['fair']}"
        return msgspec.structs.replace(check, evidence=f"{check.evidence}{why}")
    is_same = a.script == b.script  # else more differs than the switches
    exactness = catalogue.exactness(ours, plain, b.device) if is_same else "tolerance"
    is_in_16_bits = {ours.amp, plain.amp} != {"off"}
    return parity.check_losses(b.losses[:LOSSES], a.losses[:LOSSES], exactness, is_in_16_bits)


def mean_losses(ours: Sequence[float], plain: Sequence[float]) -> parity.Check:
    """Whether losses of other random numbers are as near to each other as their scatter explains."""
    count = min(len(ours), len(plain))
    a, b = np.array(ours[:count]), np.array(plain[:count])
    scatter = LIMIT.far * math.sqrt((a.var() + b.var()) / max(1, count - 1))
    is_near = bool(abs(a.mean() - b.mean()) <= scatter)
    how = "as near as" if is_near else "further apart than"
    text = _RANDOM["means"].format(ours=a.mean(), plain=b.mean(), how=how, **_RANDOM)
    return parity.Check("losses", is_near, text)


def sides(result: Comparison, proofs: Sequence[parity.Check]) -> list[Content]:
    """What was set from outside in a script, with its proof, what was not, and what both sides train."""
    run = result.b
    notices = [Notice(f"not applied: {name}: {why}") for name, why in run.not_applied.items()]
    ended = [Notice(f"ended: {run.facts['ended']}")] if "ended" in run.facts else []
    return [*ended, *notices, checks("Checks", [*run.mechanism, *proofs])]


def script_plan(
    launch: Launch,
    preset: str | None = None,
    seed: int = 0,
    source: type[ScriptSource] = ScriptSource,
    more: _More = None,
) -> Plan:
    """The plan of a study of a script, whose device is known once it trains; `more` as for its source."""
    if not landlock.is_there():
        warnings.warn(TEXTS["guard"]["limits"], stacklevel=2)
    checked = plan(None, catalogue.preset(preset).size.name, ["baseline"]).on(seed=seed)
    rule = replace(checked.rule, loss_steps=max(LOSSES, checked.rule.loss_steps))
    subject = checked.on(workload=launch.name, code=launch.frozen().code)
    return replace(subject, rule=rule, make_source=functools.partial(source, launch=launch, more=more))
