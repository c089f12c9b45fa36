"""The account of a run: where its wall time goes."""

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

import psutil

from perfkit.additions.scripts import messages
from perfkit.additions.scripts.messages import Account, StepTime
from perfkit.additions.scripts.script import Callback, Script, ScriptStep
from perfkit.additions.scripts.startup import StartUp
from perfkit.additions.shared.clock import clock, cpu_clock

LIMIT = messages.limits("run_account")


class Evaluations(Callback):
    """Notices when the script evaluates; costs nothing in a plain step."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._evaluating_since: float | None = None
        self._before_s = 0.0  # seconds of other parts before it, in the same step
        self._end = (script.steps.now, 0.0)  # of the last evaluation: the step, and its starts of loaders
        self._has_evaluated = False  # whether a model is in eval mode since the last training pass

    def part_now(self) -> str:
        """What the script does at this moment."""
        own = messages.OWN if self._evaluating_since is None else messages.EVALUATION
        return self._script.parts.now or own

    def on_mode(self, trains: bool) -> None:
        if not trains:
            self._script.calls.note("eval mode")
            self.on_evaluation()
        else:
            if self._has_evaluated:
                self._script.steps.now.marks.add("eval()")  # even if no model was called in eval mode
            self._end_evaluation()  # the training is prepared next
        self._has_evaluated = not trains

    def on_evaluation(self) -> None:
        self._script.parts.begin_other()
        if self._evaluating_since is None:
            self._evaluating_since = self._script.parts.fetching_since or clock()
            step, started_s = self._end
            now = self._script.steps.now
            earlier_s = started_s if step is now else 0.0  # of loaders of earlier evaluations
            self._before_s = now.spent["checkpoint"] + now.spent["evaluated"] + earlier_s

    def on_training(self) -> None:
        self._end_evaluation()
        self._has_evaluated = False

    def _end_evaluation(self) -> None:
        if self._evaluating_since is not None:
            now = self._script.steps.now
            spent = now.spent
            others_s = spent["checkpoint"] + spent["evaluated"] + spent["start"] - self._before_s
            spent["evaluated"] += max(0.0, clock() - self._evaluating_since - others_s)
            self._end = now, spent["start"]
        self._evaluating_since = None


class RunAccount(Evaluations):
    """Adds up the steps of a script by part of the run, at little cost."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._is_open = True  # from the first step on
        is_watched = not script.settings.observers  # else it is compared with another script
        self._sees_memory = is_watched
        self._start_up = StartUp(script) if is_watched else None
        self._plain = list[StepTime]()
        self._marked = dict[int, ScriptStep]()  # by the number of the step in the run
        self._unlisted_s = 0.0  # of plain steps that `_plain` does not have
        self._epochs = list[int]()
        self._count = 0
        self._imported_at = time.time()
        self._bytes_before = self._evaluation_bytes = 0
        self._memory_at = 0.0  # when the memory was read last
        self._process = psutil.Process()
        self._cpu_s = 0.0  # of the thread that trains, at the end of the last step

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def on_evaluation(self) -> None:
        is_new = self._evaluating_since is None
        super().on_evaluation()
        if self._is_open and self._sees_memory and (is_new or clock() - self._memory_at >= LIMIT.every_s):
            self._memory_at = clock()
            resident = self._process.memory_info().rss
            if is_new:
                self._bytes_before = resident
            self._evaluation_bytes = max(self._evaluation_bytes, resident - self._bytes_before)

    def on_end(self) -> None:
        self.on_training()
        last = self._script.steps.now
        last.seconds = clock() - self._script.steps.since
        last.marks.add("end")
        self._marked[self._script.steps.count + 1] = last

    def on_steps(self, steps: list[ScriptStep]) -> None:
        self.on_training()
        first = self._script.steps.count - len(steps) + 1
        used_s = cpu_clock()
        cpu_s = (used_s - self._cpu_s) / len(steps)
        self._cpu_s = used_s
        for number, step in enumerate(steps, first):
            step.cpu_s = cpu_s
            if "new epoch" in step.marks:
                self._epochs.append(number)
            if not self._is_open:
                continue
            self._count += 1
            if step.marks or step.spent["start"]:  # workers may be ended in any step
                self._marked[number] = step
            elif not self._script.parts.looked_at.value and len(self._plain) < LIMIT.kept:
                self._plain.append(_time_of(number, step))
            else:
                self._unlisted_s += step.seconds

    def account(self, started: float, began: float) -> Account:
        plain, marked = self._plain, self._marked.values()
        usual_s = statistics.median(step.seconds for step in plain) if plain else None
        parts = defaultdict[str, float](float)
        parts[messages.START] = max(0.0, began - started)
        parts[messages.STEPS] = self._unlisted_s + sum(step.seconds for step in plain)
        for step in marked:
            for name, seconds in split(step, usual_s).items():
                parts[name] += seconds
        return Account(
            parts={name: parts[name] for name in messages.PARTS if parts[name] > 0},
            imports_s=max(0.0, self._imported_at - started),
            steps=self._count,
            last=self._script.steps.count,
            plain=plain or [_time_of(number, step) for number, step in self._marked.items()],
            epochs=self._epochs,
            evaluations=sum(bool({"evaluation", "eval()"} & step.marks) for step in marked),
            marked=len(marked),
            compiled=sum("compilation" in step.marks for step in marked),
            evaluation_bytes=self._evaluation_bytes,
            start_lines=self._start_up.lines() if self._start_up else [],
        )


def _time_of(number: int, step: ScriptStep) -> StepTime:
    parts = [step.waited, step.spent["forward"], step.spent["backward"], step.spent["optimizer"]]
    own_s = max(0.0, step.seconds - sum(parts))
    return StepTime(number, step.seconds, [*parts, own_s], step.cpu_s)


def split(step: ScriptStep, usual_s: float | None) -> dict[str, float]:
    """The seconds of a marked step by part of the run; of these, `STEPS` has those of a usual step."""
    spent = step.spent
    parts = {messages.EPOCHS: spent["start"], messages.CHECKPOINTS: spent["checkpoint"]}
    parts[messages.EVALUATION] = spent["evaluated"]
    rest_s = max(0.0, step.seconds - sum(parts.values()))
    if usual_s is None:  # no step was plain: most of a compiled one is usually compilation
        return {**parts, messages.COMPILING if "compilation" in step.marks else messages.STEPS: rest_s}
    extra_s = rest_s - usual_s
    if extra_s < usual_s:  # no longer than some plain steps are
        return {**parts, messages.STEPS: rest_s}
    part = messages.COMPILING if "compilation" in step.marks else messages.BETWEEN
    return {**parts, messages.STEPS: usual_s, part: extra_s}
