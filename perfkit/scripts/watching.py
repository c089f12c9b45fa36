"""A script, watched as it stands: where the time of its steps goes, and what to try."""

import functools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import Cancelled, PerfkitError
from perfkit.process.lock import EVERYTHING, device_lock
from perfkit.recipe import Recipe
from perfkit.results.pairing import DISTURBED
from perfkit.results.stats import Ratio
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation, ScriptFacts
from perfkit.scripts.study import script_plan, target
from perfkit.scripts.suggest import Seen, Suggestion, bounded, suggest, tried
from perfkit.scripts.watched import WatchedScript
from perfkit.show import units
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.progress import Progress
from perfkit.trace import Bottleneck
from perfkit.worker.messages import Block, Peak, ProfileReport, SyncReport

A = TypeVar("A")

BUDGET_S, TRY_S = 60.0, 30.0
"""Seconds for watching once the script trains, and for each suggestion that is tried."""
_STEPS, _TRIED, _SYNC_STEPS = 60, 2, 4
_PROFILED = {"wait": 1, "warmup": 2, "active": 3}
_COSTS = 20
"""How many plain steps a further question takes, at most."""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What watching a script has shown; a part that was not measured is None or empty.

    `command`: as one types it. `own`: all switches as the script has them. `startup_s`: from the start of the
    process to its first batch. `ceiling`: steps on a held batch. `trace`: the file with the profiled steps.
    """

    command: str
    script: ScriptFacts
    own: dict[str, Any]
    startup_s: float
    seen: Observation
    ceiling: Block | None = None
    peak: Peak = Peak(None, None, 0)
    syncs: SyncReport | None = None
    trace: str | None = None
    bottlenecks: list[Bottleneck] = []
    suggestions: list[Suggestion] = []
    warnings: list[str] = []


def watch(
    launch: Launch,
    steps: int | None = None,
    progress: Progress | None = None,
    budget_s: float = BUDGET_S,
    timeout_s: float | None = None,
    tries: bool = False,
) -> Watched:
    """Watches a script for so many plain steps, fewer if they take longer than half of the budget.

    `budget_s`: seconds that it may take once the script trains; what does not fit is left out. `timeout_s`:
    after so many it is ended. `tries`: the two best suggestions are measured too, for about 30 s each.

    Raises:
        PerfkitError: it cannot be started, failed, or does not train.
    """
    progress = progress or Progress()
    deadline = time.monotonic() + timeout_s if timeout_s else None
    waits = functools.partial(progress.phase, "waiting: another run uses this machine")
    with (
        progress.part(0, 1 + tries),
        device_lock(EVERYTHING, progress.cancelled, waits),  # the device of a script shows only when it runs
        WatchedScript(
            launch,
            on_progress=progress.phase,
            cancelled=progress.cancelled,
            deadline=deadline,
        ) as script,
    ):
        result, seen = _ask(script, steps or _STEPS, budget_s, progress)
    ideas, found = suggest(seen), seen.analysis.diagnosis if seen.analysis else []
    if tries:
        with progress.part(1, 2):
            ideas = _try_best(ideas, launch, progress)
    return msgspec.structs.replace(result, suggestions=ideas, bottlenecks=bounded(found, seen, ideas))


def _trace_file() -> Path:
    folder = machine.runs_folder() / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="watch-", dir=folder)) / "steps.pt.trace.json.gz"


def _ask(script: WatchedScript, steps: int, budget_s: float, progress: Progress) -> tuple[Watched, Seen]:
    """Asks the script everything for which there is time."""
    script.ask("describe", ScriptFacts)  # it trains from here on
    until, before, missing = time.monotonic() + budget_s, machine.cpu_times(script.pids), list[str]()
    progress.reach(0.3)
    observed = {"steps": steps, "seconds": budget_s / 2}
    plain, ceiling = script.ask("observe", tuple[Observation, Block | None], **observed)
    taken = machine.taken_share(before, machine.cpu_times(script.pids))
    peak = script.ask("peak", Peak)
    facts = script.ask("describe", ScriptFacts)

    def ask(what: str, question: str, kind: type[A], **arguments: Any) -> A | None:
        """The answer, or None: the script cannot give one, or so many plain steps take too long."""
        if plain.ended:
            return None
        if _COSTS * plain.step_s < until - time.monotonic():
            try:
                return script.ask(question, kind, **arguments)
            except PerfkitError as problem:
                reason = getattr(problem, "kind", "")
                if reason == "unavailable":
                    return None
                if reason not in ("too late", "ended"):
                    raise
        missing.append(what)
        return None

    where, in_16_bits = target(facts), None
    progress.reach(0.6)
    if ceiling and where.bf16 and facts.settings.get("amp") == "off":
        in_16_bits = ask("bfloat16", "try_amp", float, seconds=budget_s / 10)
    progress.reach(0.75)
    syncs = ask("hidden waits", "syncs", SyncReport, steps=_SYNC_STEPS)
    progress.reach(0.85)
    out = _trace_file()
    options = {**_PROFILED, "stacks": False, "path": str(out)}
    profile = ask("a profile", "profile", ProfileReport, **options)
    analysis = traces.analyse(traces.load(out)) if profile else None
    own = Recipe().replace(**where.own)
    seen = Seen(own, where, plain, machine.usable_cores(), ceiling, analysis, in_16_bits, facts.has_fused)
    result = Watched(
        command=script.launch.describe(),
        script=facts,
        own=own.to_dict(),
        startup_s=facts.startup_s,
        seen=plain,
        ceiling=ceiling,
        peak=peak,
        syncs=syncs,
        trace=str(out) if analysis else None,
        warnings=[*facts.notes, *_remarks(plain, taken, missing)],
    )
    return result, seen


def _remarks(seen: Observation, taken: float, missing: list[str]) -> Iterator[str]:
    if seen.ended:
        yield f"the script came to its end after {seen.steps} steps: let it train longer to see more"
    if missing:
        what = (
            f"no time was left to measure {', '.join(missing)} (a step takes {units.duration(seen.step_s)})"
        )
        yield f"{what}: raise --budget"
    if taken > DISTURBED:
        yield f"other programs took {taken:.0%} of the cores: close them, then watch it again"


def _try_best(ideas: list[Suggestion], launch: Launch, progress: Progress) -> list[Suggestion]:
    """Measures the best suggestions, in turn with the script as it is."""
    best = [idea for idea in ideas if idea.state == "try"][:_TRIED]
    plan, measured, failures = script_plan(launch), dict[str, Ratio](), dict[str, str]()
    for number, idea in enumerate(best):
        sides = Candidate("as it is"), Candidate(idea.title, changes=idea.settings)
        try:
            with progress.part(number, len(best)):
                result = compare(
                    *sides, plan, TRY_S / 2, plan.preset.precision, 1, False, plan.preset.part, progress
                )
            measured[idea.title] = result.ratio
        except Cancelled:
            break
        except PerfkitError as problem:
            failures[idea.title] = f"could not be tried: {problem}"
    return tried(ideas, measured, failures)
