"""A script, watched as it stands: where the time of its steps goes, and what to try."""

import functools
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import PerfkitError
from perfkit.process.lock import EVERYTHING, device_lock
from perfkit.recipe import Recipe
from perfkit.results.pairing import DISTURBED
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation, ScriptFacts
from perfkit.scripts.study import target
from perfkit.scripts.suggest import Seen, Suggestion, bounded, suggest
from perfkit.scripts.watched import WatchedScript
from perfkit.studies.progress import Progress
from perfkit.trace import diagnosis
from perfkit.trace.diagnosis import Bottleneck
from perfkit.worker.messages import Block, Peak, ProfileReport, SyncReport, Trained

A = TypeVar("A")

STEPS, _FEWEST_STEPS, _STEPS_S = 60, 6, 60.0
"""Unless a number is asked for: so many plain steps, or fewer where they take longer than a minute."""
_ROUNDS = 3
"""Blocks of plain steps, each with one on a held batch: both see the same machine."""
_LOSSES, _WARMUP_S = 8, 3.0
_SYNC_STEPS, _PROFILED_STEPS = 4, 3


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What watching a script has shown; a part that was not measured is None or empty."""

    command: str
    """The command as one types it."""
    script: ScriptFacts
    own: dict[str, Any]
    """All switches as the script has them."""
    startup_s: float
    """From the start of the process to its first batch."""
    seen: Observation
    ceiling: Block | None = None
    """Steps on a held batch."""
    peak: Peak = Peak(None, None, 0)
    syncs: SyncReport | None = None
    trace: str | None = None
    """The file with the profiled steps."""
    bottlenecks: list[Bottleneck] = []
    suggestions: list[Suggestion] = []
    ranks: list[Block] = []
    """Always empty, as `communication`: a script is watched in one process."""
    communication: None = None
    warnings: list[str] = []


def watch(
    launch: Launch,
    steps: int | None = None,
    in_place: bool = False,
    out: Path | None = None,
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> Watched:
    """Watches a script for some steps.

    Args:
        launch: how it is started.
        steps: plain steps that are timed; None: 60, or fewer if they take longer than a minute.
        in_place: whether it writes where it would, not into a copy of its folder.
        out: the trace of some steps; a new file among the runs if None.
        progress: follows and stops it.
        timeout_s: the most that it may take; what was measured until then is reported.

    Raises:
        PerfkitError: it cannot be started, failed, or does not train.
    """
    progress = progress or Progress()
    deadline = time.monotonic() + timeout_s if timeout_s else None
    waits = functools.partial(progress.phase, "waiting: another run uses this machine")
    with (
        device_lock(EVERYTHING, progress.cancelled, waits),  # the device of a script shows only when it runs
        WatchedScript(
            launch,
            scratch=not in_place,
            on_progress=progress.phase,
            cancelled=progress.cancelled,
            deadline=deadline,
        ) as script,
    ):
        return _Watching(script, steps, out or _trace_file(), progress).result()


def _trace_file() -> Path:
    folder = machine.runs_folder() / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="watch-", dir=folder)) / "steps.pt.trace.json.gz"


class _Watching:
    """What is asked of a script, one after the other; a time limit ends it, and what is known is kept."""

    def __init__(self, script: WatchedScript, steps: int | None, out: Path, progress: Progress) -> None:
        self._script, self._steps, self._out, self._progress = script, steps, out, progress
        self._seen: Observation | None = None
        self._ceiling: Block | None = None
        self._in_16_bits: float | None = None
        self._peak = Peak(None, None, 0)
        self._syncs: SyncReport | None = None
        self._analysis: traces.Analysis | None = None

    def result(self) -> Watched:
        """Asks everything, and puts it together."""
        script = self._script
        trained = script.ask("train", Trained, loss_steps=_LOSSES, warmup_s=_WARMUP_S)
        self._facts = script.ask("describe", ScriptFacts)
        before, taken, warnings = machine.cpu_times(script.pids), 0.0, list[str]()
        parts: dict[str, tuple[float, Callable[[], None]]] = {
            "the steps": (0.3, lambda: self._rounds(trained)),
            "peak memory": (0.6, self._read_peak),
            "bfloat16": (0.6, self._try_amp),
            "hidden waits": (0.75, self._find_syncs),
            "a profile": (0.85, self._profile),
        }
        for number, (done, measure) in enumerate(parts.values()):
            self._progress.reach(done)
            try:
                measure()
                self._facts = script.ask("describe", ScriptFacts)
            except PerfkitError as problem:
                if getattr(problem, "kind", "") != "too late" or self._seen is None:
                    raise
                missing = ", ".join(list(parts)[max(1, number) :])
                warnings.append(f"the time limit was reached: {missing} not measured. Raise --timeout")
                break
            taken = taken or machine.taken_share(before, machine.cpu_times(script.pids))
            if number and self._seen and self._seen.ended:
                break
        assert self._seen
        own = Recipe.from_dict(trained.recipe)
        seen = Seen(
            own=own,
            target=target(self._facts),
            steps=self._seen,
            cores=machine.usable_cores(),
            ceiling=self._ceiling,
            analysis=self._analysis,
            syncs=self._syncs,
            in_16_bits=self._in_16_bits,
        )
        ideas = suggest(seen)
        found = diagnosis.diagnose(self._analysis) if self._analysis else []
        return Watched(
            command=script.launch.describe(),
            script=self._facts,
            own=own.to_dict(),
            startup_s=trained.startup_s,
            seen=self._seen,
            ceiling=self._ceiling,
            peak=self._peak,
            syncs=self._syncs,
            trace=str(self._out) if self._analysis else None,
            bottlenecks=bounded(found, seen, ideas),
            suggestions=ideas,
            warnings=[*self._facts.notes, *self._remarks(self._seen, taken), *warnings],
        )

    def _rounds(self, trained: Trained) -> None:
        """Plain steps in some blocks, with as many on a held batch in between."""
        script, step_s = self._script, trained.warm.seconds / max(1, len(trained.warm.step_s))
        affordable = max(_FEWEST_STEPS, min(STEPS, int(_STEPS_S / step_s)))
        each = math.ceil((self._steps or affordable) / _ROUNDS)
        for number in range(_ROUNDS):
            self._progress.reach(0.3 + 0.3 * number / _ROUNDS)
            steps = script.ask("observe", Observation, steps=each)
            self._seen = self._seen + steps if self._seen else steps
            if steps.ended:
                return
            if self._facts.loader:
                block = script.ask("ceiling", Block, samples=steps.block.samples)
                self._ceiling = self._ceiling + block if self._ceiling else block

    def _read_peak(self) -> None:
        self._peak = self._script.ask("peak", Peak)

    def _try_amp(self) -> None:
        """How many times as fast steps on a held batch are in bfloat16: both in turn."""
        off = self._facts.settings.get("amp") == "off"
        if not (self._ceiling and self._seen and off and target(self._facts).bf16) or self._seen.ended:
            return
        samples, plain_s, amp_s = self._seen.block.samples // _ROUNDS, 0.0, 0.0
        for _ in range(_ROUNDS):
            held = self._script.ask("ceiling", Block, samples=samples)
            half = self._optional("try_amp", Block, samples=samples, limit_s=2 * held.seconds)
            if half is None:
                return
            plain_s, amp_s = plain_s + 1 / held.samples_per_s, amp_s + 1 / half.samples_per_s
            if amp_s > 2 * plain_s:
                break  # far slower here: no need to know it better
        self._in_16_bits = plain_s / amp_s

    def _find_syncs(self) -> None:
        self._syncs = self._optional("syncs", SyncReport, steps=_SYNC_STEPS)

    def _profile(self) -> None:
        steps = {"wait": 1, "warmup": 2, "active": _PROFILED_STEPS}
        what = {"shapes": True, "memory": True, "stacks": False}
        self._optional("profile", ProfileReport, path=str(self._out.absolute()), **steps, **what)
        if self._out.exists():
            self._analysis = traces.analyse(traces.load(self._out))

    def _optional(self, question: str, kind: type[A], **arguments: Any) -> A | None:
        """The answer, or None where this script cannot give one."""
        try:
            return self._script.ask(question, kind, **arguments)
        except PerfkitError as problem:
            if getattr(problem, "kind", "") != "unavailable":
                raise
            return None

    def _remarks(self, steps: Observation, taken: float) -> Iterator[str]:
        if steps.ended:
            yield "the script came to its end meanwhile: fewer steps were timed than was asked for"
        if steps.skipped:
            yield f"the gradient scaler skipped {steps.skipped} steps; they are counted as steps"
        if taken > DISTURBED:
            yield f"other programs took {taken:.0%} of the cores: close them, then watch it again"
        for path in self._facts.written:
            yield f"the script writes to {path}, outside of its folder"
