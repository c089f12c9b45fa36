"""A script, watched as it stands: where the time of its steps goes, and what to try."""

import functools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import PerfkitError
from perfkit.process.lock import EVERYTHING, device_lock
from perfkit.recipe import Recipe
from perfkit.results.pairing import DISTURBED
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation, ScriptFacts
from perfkit.scripts.report import Watched
from perfkit.scripts.study import target
from perfkit.scripts.suggest import Seen, suggest
from perfkit.scripts.watched import WatchedScript
from perfkit.studies.progress import Progress
from perfkit.trace import diagnosis
from perfkit.worker.messages import Block, Peak, ProfileReport, SyncReport, Trained

A = TypeVar("A")

STEPS = 60
_FEWEST_STEPS = 6
_STEPS_S = 60.0
"""Unless a number is asked for, plain steps end after so many seconds."""
_ROUNDS = 3
"""Blocks of plain steps, each with one on a held batch: both see the same machine."""
_LOSSES, _WARMUP_S = 8, 3.0
_SYNC_STEPS, _PROFILED_STEPS = 4, 3


def watch(
    launch: Launch,
    steps: int | None = None,
    run_on: bool = False,
    in_place: bool = False,
    out: Path | None = None,
    progress: Progress | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    on_start: Callable[[WatchedScript], None] = lambda script: None,
) -> tuple[Watched, WatchedScript | None]:
    """Watches a script for some steps.

    Args:
        launch: how it is started.
        steps: plain steps that are timed; None: 60, or fewer if they take longer than a minute.
        run_on: whether the script goes on afterwards: then it is returned, running, and was only looked at.
        in_place: whether it writes where it would, not into a copy of its folder.
        out: the trace of some steps; a new file among the runs if None.
        progress: follows and stops it.
        timeout_s: the most that it may take; what was measured until then is reported.
        environment: variables beside the user's own.
        on_start: called with the script as soon as it is started.

    Raises:
        PerfkitError: it cannot be started, failed, or does not train.
    """
    progress = progress or Progress()
    deadline = time.monotonic() + timeout_s if timeout_s else None
    waits = functools.partial(progress.phase, "waiting: another run uses this machine")
    with device_lock(EVERYTHING, progress.cancelled, waits):  # the device of a script shows only when it runs
        script = WatchedScript(
            launch,
            scratch=not in_place,
            environment=environment,
            on_progress=progress.phase,
            cancelled=progress.cancelled,
            deadline=deadline,
        )
        try:
            on_start(script)
            result = _Watching(script, steps, run_on, out or _trace_file(), progress).result()
            if run_on:
                script.ask("release", type(None))
                return result, script
        except BaseException:
            script.stop()
            raise
        script.stop()
        return result, None


def _trace_file() -> Path:
    folder = machine.runs_folder() / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="watch-", dir=folder)) / "steps.pt.trace.json.gz"


class _Watching:
    """What is asked of a script, one after the other; a time limit ends it, and what is known is kept."""

    def __init__(
        self, script: WatchedScript, steps: int | None, run_on: bool, out: Path, progress: Progress
    ) -> None:
        self._script, self._run_on, self._out, self._progress = script, run_on, out, progress
        self._asked = steps
        self._warnings: list[str] = []
        self._steps: Observation | None = None
        self._ranks: list[Block] = []
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
        before = machine.cpu_times(script.pids)
        parts: tuple[tuple[str, Callable[[], None], float], ...] = (
            ("the steps", lambda: self._rounds(trained), 0.3),
            ("peak memory", self._read_peak, 0.6),
            ("bfloat16", self._try_amp, 0.6),
            ("hidden waits", self._find_syncs, 0.75),
            ("a profile", self._profile, 0.85),
        )
        taken = 0.0
        for number, (_, measure, done) in enumerate(parts):
            self._progress.reach(done)
            try:
                measure()
                self._facts = script.ask("describe", ScriptFacts)
            except PerfkitError as problem:
                if getattr(problem, "kind", "") != "too late" or self._steps is None:
                    raise
                missing = ", ".join(name for name, _, _ in parts[max(1, number) :])
                self._warnings.append(f"the time limit was reached: {missing} not measured. Raise --timeout")
                break
            taken = taken or machine.taken_share(before, machine.cpu_times(script.pids))
        assert self._steps
        return self._watched(trained, self._steps, taken)

    def _watched(self, trained: Trained, steps: Observation, taken: float) -> Watched:
        own = Recipe.from_dict(trained.recipe)
        seen = Seen(
            own=own,
            target=target(self._facts),
            steps=steps,
            cores=machine.usable_cores(),
            ceiling=self._ceiling,
            analysis=self._analysis,
            syncs=self._syncs,
            in_16_bits=self._in_16_bits,
        )
        return Watched(
            command=self._script.launch.describe(),
            script=self._facts,
            own=own.to_dict(),
            startup_s=trained.startup_s,
            seen=steps,
            ceiling=self._ceiling,
            peak=self._peak,
            syncs=self._syncs,
            trace=str(self._out) if self._analysis else None,
            bottlenecks=diagnosis.diagnose(self._analysis) if self._analysis else [],
            suggestions=suggest(seen),
            ranks=self._ranks,
            warnings=[*self._facts.notes, *self._remarks(steps, own, taken), *self._warnings],
        )

    # ------------------------------------------------------------ parts

    def _rounds(self, trained: Trained) -> None:
        """Plain steps in some blocks, with as many on a held batch in between."""
        script, step_s = self._script, trained.warm.seconds / max(1, len(trained.warm.step_s))
        affordable = max(_FEWEST_STEPS, min(STEPS, int(_STEPS_S / step_s)))
        each = math.ceil((self._asked or affordable) / _ROUNDS)
        holds = not self._run_on and bool(self._facts.loader)
        for round in range(_ROUNDS):
            self._progress.reach(0.3 + 0.3 * round / _ROUNDS)
            steps = script.ask("observe", Observation, steps=each)
            by_rank = [Block(**answer["block"]) for answer in script.answers]
            self._ranks = (
                [a + b for a, b in zip(self._ranks, by_rank, strict=True)] if self._steps else by_rank
            )
            self._steps = self._steps + steps if self._steps else steps
            if steps.ended:
                break
            if holds:
                block = script.ask("ceiling", Block, samples=steps.block.samples)
                self._ceiling = self._ceiling + block if self._ceiling else block
        if len(self._ranks) == 1:
            self._ranks = []

    def _read_peak(self) -> None:
        self._peak = self._script.ask("peak", Peak)

    def _try_amp(self) -> None:
        """How many times as fast steps on a held batch are in bfloat16."""
        off = self._facts.settings.get("amp") == "off"
        if not (self._ceiling and self._steps and off and target(self._facts).bf16) or self._steps.ended:
            return
        samples, plain_s, amp_s = self._steps.block.samples // _ROUNDS, 0.0, 0.0
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
        self._optional(
            "profile",
            ProfileReport,
            path=str(self._out.absolute()),
            wait=1,
            warmup=2,
            active=_PROFILED_STEPS,
            shapes=True,
            memory=True,
            stacks=False,
        )
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

    def _remarks(self, steps: Observation, own: Recipe, taken: float) -> Iterator[str]:
        if steps.ended:
            yield "the script came to its end meanwhile: fewer steps were timed than was asked for"
        if steps.skipped:
            yield f"the gradient scaler skipped {steps.skipped} steps; they are counted as steps"
        if taken > DISTURBED:
            spins = self._facts.device == "cpu" and own.wait_policy == "default"
            remedy = ", or set wait_policy=passive: threads that spin lose most" if spins else ""
            yield f"other programs took {taken:.0%} of the cores: close them, then watch it again{remedy}"
        for path in self._facts.written:
            yield f"the script writes to {path}, outside of its folder"
