"""A script, watched as it stands: where the time of its steps goes, and what to try."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import PerfkitError
from perfkit.process.conversation import OnProgress as Progress
from perfkit.process.lock import EVERYTHING, device_lock
from perfkit.recipe import Recipe
from perfkit.results.pairing import DISTURBED
from perfkit.results.run import Communication
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation, ScriptFacts
from perfkit.scripts.report import Watched
from perfkit.scripts.seen import Seen
from perfkit.scripts.study import target
from perfkit.scripts.suggest import suggest
from perfkit.scripts.watched import WatchedScript
from perfkit.trace import diagnosis
from perfkit.worker.messages import Block, Peak, Trained
from perfkit.worker.reports import ProfileReport, SyncReport

_ROUNDS = 3
"""Blocks of plain steps, each with one on a held batch: both see the same machine."""
_LOSSES, _WARMUP_S = 8, 3.0
_SYNC_STEPS, _PROFILED = 4, 3
_STARTED, _TIMED, _TRIED, _LOOKED = 0.3, 0.6, 0.75, 0.85
"""Roughly which share of the whole is done at the end of these parts; the profile comes last."""


class _Share:
    """Tells the share of the whole that is done, from that of the part under way."""

    def __init__(self, tell: Progress) -> None:
        self._tell, self._from, self._to, self._done = tell, 0.0, _STARTED, 0.0

    def part(self, end: float) -> None:
        """The next part begins; at its end so much of the whole is done."""
        self._from, self._to = self._to, end

    def __call__(self, phase: str, fraction: float) -> None:
        """Takes what the part tells; one that has several phases begins at 0 more than once."""
        self._done = max(self._done, self._from + (self._to - self._from) * min(1.0, fraction))
        self._tell(phase, self._done)


def watch(
    launch: Launch,
    steps: int = 60,
    run_on: bool = False,
    in_place: bool = False,
    out: Path | None = None,
    on_progress: Progress = lambda phase, fraction: None,
    cancelled: threading.Event | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    on_start: Callable[[WatchedScript], None] = lambda script: None,
) -> tuple[Watched, WatchedScript | None]:
    """Watches a script for some steps.

    Args:
        launch: how it is started.
        steps: plain steps that are timed.
        run_on: whether the script goes on afterwards: then it is returned, running, and was only looked at.
        in_place: whether it writes where it would, not into a scratch folder.
        out: the trace of some steps; a new one among the runs if None.
        on_progress: called with the phase, and roughly how much of the whole is done.
        cancelled: set it from any thread to stop.
        timeout_s: the most that it may take.
        environment: variables beside its own.
        on_start: called with the script as soon as it is started.

    Raises:
        PerfkitError: it cannot be started, failed, or does not train.
    """
    deadline, share = time.monotonic() + timeout_s if timeout_s else None, _Share(on_progress)
    with contextlib.ExitStack() as stack:
        # Which device it uses is known only when it runs: all scripts of a machine are watched one by one.
        waits = lambda: share("waiting: another run uses this machine", 0.0)  # noqa: E731
        stack.enter_context(device_lock(EVERYTHING, cancelled, waits))
        script = WatchedScript(
            launch,
            scratch=not in_place,
            environment=environment,
            on_progress=share,
            cancelled=cancelled,
            deadline=deadline,
        )
        stack.callback(script.stop)
        on_start(script)
        result = _watch(script, steps, run_on, out or _trace_file(), share)
        if run_on:
            script.ask("release", dict)
            stack.pop_all()
            return result, script
    return result, None


def _trace_file() -> Path:
    folder = machine.runs_folder() / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="watch-", dir=folder)) / "steps.pt.trace.json.gz"


def _watch(script: WatchedScript, steps: int, run_on: bool, out: Path, share: _Share) -> Watched:
    trained = script.ask("train", Trained, recipe={}, seed=0, loss_steps=_LOSSES, warmup_s=_WARMUP_S)
    facts = script.ask("facts", ScriptFacts)
    before = machine.cpu_times(script.pids)
    seen, ceiling, ranks = _rounds(script, steps, not run_on and bool(facts.loader), share)
    taken = machine.taken_share(before, machine.cpu_times(script.pids))
    peak = script.ask("peak", Peak)
    tries = ceiling and not seen.ended and target(facts).bf16 and facts.settings.get("amp") == "off"
    share.part(_TRIED)
    in_16_bits = _in_16_bits(script, seen.block.samples // _ROUNDS) if tries else None
    communication = None
    share.part(_LOOKED)
    if not run_on and script.ranks > 1:
        communication = _optional(
            script, "communication", Communication, samples=4 * facts.samples_per_step * script.ranks
        )
    syncs = _optional(script, "syncs", SyncReport, steps=_SYNC_STEPS)
    share.part(1.0)
    analysis, trace = _profile(script, out)
    facts = script.ask("facts", ScriptFacts)
    own = Recipe.from_dict(trained.recipe)
    restarts, whole = _restarts(seen)
    suggestions = suggest(Seen(
        own=own, target=target(facts), block=seen.block, cores=machine.usable_cores(), ceiling=ceiling,
        in_16_bits=in_16_bits, analysis=analysis, syncs=syncs, restarts_s=restarts, whole_s=whole,
        optimizer_s=seen.optimizer_s, system_s=seen.system_s, page_faults=seen.page_faults,
    ))  # fmt: skip
    return Watched(
        command=script.launch.describe(), script=facts, own=own.to_dict(), startup_s=trained.startup_s,
        seen=seen, ceiling=ceiling, peak=peak, syncs=syncs,
        trace=str(trace) if trace else None,
        bottlenecks=diagnosis.diagnose(analysis) if analysis else [], suggestions=suggestions, ranks=ranks,
        communication=communication, warnings=list(_warnings(trained, facts, seen, taken)),
    )  # fmt: skip


def _rounds(
    script: WatchedScript, steps: int, holds: bool, share: _Share
) -> tuple[Observation, Block | None, list[Block]]:
    """Plain steps in some blocks, with as many on a held batch in between; and the plain ones by rank."""
    each, total, held = -(-steps // _ROUNDS), None, None
    ranks: list[Block] = []
    for round in range(1, _ROUNDS + 1):
        share.part(_STARTED + (_TIMED - _STARTED) * round / _ROUNDS)
        seen = script.ask("observe", Observation, steps=each)
        blocks = [msgspec.convert(answer, Observation).block for answer in script.answers]
        ranks = [one + other for one, other in zip(ranks, blocks, strict=True)] if ranks else blocks
        total = _joined(total, seen) if total else seen
        if seen.ended:
            break
        if holds:
            block = script.ask("ceiling", Block, samples=seen.block.samples)
            held = held + block if held else block
    assert total
    return total, held, ranks if len(ranks) > 1 else []


def _in_16_bits(script: WatchedScript, samples: int) -> float | None:
    """How many times as fast steps on a held batch are in bfloat16; None where that cannot be tried."""
    plain, amp = 0.0, 0.0
    for _ in range(_ROUNDS):
        held = script.ask("ceiling", Block, samples=samples)
        half = _optional(script, "try_amp", Block, samples=samples)
        if half is None:
            return None
        plain, amp = plain + 1 / held.samples_per_s, amp + 1 / half.samples_per_s
    return plain / amp


def _joined(one: Observation, other: Observation) -> Observation:
    outside = dict(one.outside)
    for name, (count, seconds) in other.outside.items():
        before = outside.get(name, (0, 0.0))
        outside[name] = before[0] + count, before[1] + seconds
    return msgspec.structs.replace(
        other, block=one.block + other.block, tokens=one.tokens + other.tokens, outside=outside,
        optimizer_s=_sum(one.optimizer_s, other.optimizer_s),
        system_s=one.system_s + other.system_s, page_faults=one.page_faults + other.page_faults,
    )  # fmt: skip


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _optional(script: WatchedScript, question: str, kind: type[Any], **arguments: Any) -> Any:
    """The answer, or None where this script cannot give one."""
    try:
        return script.ask(question, kind, **arguments)
    except PerfkitError as problem:
        if getattr(problem, "kind", "") != "unavailable":
            raise
        return None


def _profile(script: WatchedScript, out: Path) -> tuple[traces.Analysis | None, Path | None]:
    _optional(
        script, "profile", ProfileReport, path=str(out.absolute()), wait=1, warmup=2, active=_PROFILED,
        shapes=True, memory=True, stacks=False,
    )  # fmt: skip
    if not out.exists():
        return None, None
    return traces.analyse(traces.load(out)), out


def _restarts(seen: Observation) -> tuple[float, float]:
    """Seconds that the first steps of epochs took beyond others, and of all steps."""
    step_s = seen.block.seconds / max(1, len(seen.block.step_s))
    count, seconds = seen.outside.get("new epoch", (0, 0.0))
    whole = seen.block.seconds + sum(each for _, each in seen.outside.values())
    return max(0.0, seconds - count * step_s), whole


def _warnings(trained: Trained, facts: ScriptFacts, seen: Observation, taken: float) -> Iterator[str]:
    yield from facts.notes
    if seen.ended:
        yield "the script came to its end meanwhile: fewer steps were timed than was asked for"
    if seen.skipped:
        yield f"the gradient scaler skipped {seen.skipped} steps; they are counted as steps"
    if taken > DISTURBED:
        spinning = facts.device == "cpu" and not trained.wait_policy
        remedy = ", or start it with OMP_WAIT_POLICY=PASSIVE: threads that spin lose most" * spinning
        yield f"other programs took {taken:.0%} of the cores: close them, then watch it again{remedy}"
    for path in facts.written:
        yield f"the script writes to {path}, outside of its working directory"
