"""Where the wall time of a run goes: `RunAccount` adds up what was seen."""

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
    """Knows whether the script evaluates; it has nothing to do in a plain step."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._evaluating_since: float | None = None
        self._has_evaluated = False  # a model has been set to, and none has trained since

    def part_now(self) -> str:
        """What the script does at this moment."""
        return self._script.part or (messages.OWN if self._evaluating_since is None else messages.EVALUATION)

    def on_mode(self, trains: bool) -> None:
        if not trains:
            self._script.calls.note("eval mode")
            self.on_evaluation()
        elif self._has_evaluated:
            self._script.steps.now.marks.add("eval()")  # what it has done meanwhile may be nothing
        self._has_evaluated = not trains

    def on_evaluation(self) -> None:
        self._script.is_between = True
        if self._evaluating_since is None:
            self._evaluating_since = self._script.fetching_since or clock()

    def on_training(self) -> None:
        """An evaluation, if there was one, is over."""
        if self._evaluating_since is not None:
            spent = self._script.steps.now.spent
            known = spent["checkpoint"] + spent["start"] + spent["evaluated"]
            spent["evaluated"] += max(0.0, clock() - self._evaluating_since - known)
        self._evaluating_since = None
        self._has_evaluated = False


class RunAccount(Evaluations):
    """Adds up the steps of a script while little but their time is looked at."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._is_open = True  # from the first step on
        is_watched = not script.settings.observers  # else it is compared, from outside
        self._sees_memory = is_watched
        self._start_up = StartUp(script) if is_watched else None
        self._plain = list[StepTime]()
        self._marked = dict[int, ScriptStep]()  # by their numbers in the run
        self._more_s = 0.0  # of plain steps that are not kept
        self._epochs = list[int]()
        self._count = 0
        self._imported_at = time.time()
        self._bytes_before = self._evaluation_bytes = 0
        self._asked_at = 0.0  # for its memory, the last time
        self._process = psutil.Process()
        self._cpu_s = 0.0  # that the thread which trains had used at the end of the last step

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def on_evaluation(self) -> None:
        begins = self._evaluating_since is None
        super().on_evaluation()
        if self._is_open and self._sees_memory and (begins or clock() - self._asked_at >= LIMIT.every_s):
            self._asked_at = clock()
            now = self._process.memory_info().rss
            if begins:
                self._bytes_before = now
            self._evaluation_bytes = max(self._evaluation_bytes, now - self._bytes_before)

    def on_end(self) -> None:
        self.on_training()
        last = self._script.steps.now
        last.seconds = clock() - self._script.steps.since
        last.marks.add("end")
        self._marked[self._script.steps.count + 1] = last

    def on_steps(self, steps: list[ScriptStep]) -> None:
        self.on_training()
        first = self._script.steps.count - len(steps) + 1
        now = cpu_clock()
        cpu_s = (now - self._cpu_s) / len(steps)
        self._cpu_s = now
        for number, step in enumerate(steps, first):
            step.cpu_s = cpu_s
            if "new epoch" in step.marks:
                self._epochs.append(number)
            if not self._is_open:
                continue
            self._count += 1
            if step.marks or step.spent["start"]:  # workers may be ended in any step
                self._marked[number] = step
            elif not self._script.looked_at.value and len(self._plain) < LIMIT.kept:
                self._plain.append(_time_of(number, step))
            else:
                self._more_s += step.seconds

    def account(self, started: float, began: float) -> Account:
        plain, marked = self._plain, self._marked.values()
        usual_s = statistics.median(step.seconds for step in plain) if plain else None
        parts = defaultdict[str, float](float)
        parts[messages.START] = max(0.0, began - started)
        parts[messages.STEPS] = self._more_s + sum(step.seconds for step in plain)
        for step in marked:
            for name, seconds in split(step, usual_s).items():
                parts[name] += seconds
        return Account(
            parts={name: parts[name] for name in messages.PARTS if parts[name] > 0},
            imports_s=max(0.0, self._imported_at - started),
            steps=self._count,
            last=self._script.steps.count,
            plain=plain or [_time_of(*each) for each in self._marked.items()],
            epochs=self._epochs,
            evaluations=sum(bool({"evaluation", "eval()"} & step.marks) for step in marked),
            marked=len(marked),
            compiled=sum("compilation" in step.marks for step in marked),
            evaluation_bytes=self._evaluation_bytes,
            start_lines=self._start_up.lines() if self._start_up else [],
        )


def _time_of(number: int, step: ScriptStep) -> StepTime:
    known = [step.waited, step.spent["forward"], step.spent["backward"], step.spent["optimizer"]]
    own = max(0.0, step.seconds - sum(known))
    return StepTime(number, step.seconds, [*known, own], step.cpu_s)


def split(step: ScriptStep, usual_s: float | None) -> dict[str, float]:
    """The seconds of a step with something else in it, by part; what a usual step would take is a step."""
    spent = step.spent
    split = {messages.EPOCHS: spent["start"], messages.CHECKPOINTS: spent["checkpoint"]}
    split[messages.EVALUATION] = spent["evaluated"]
    rest = max(0.0, step.seconds - sum(split.values()))
    if usual_s is None:  # no step was plain: how much of it was compiling is not known, most as a rule
        return {**split, messages.COMPILING if "compilation" in step.marks else messages.STEPS: rest}
    extra = rest - usual_s
    if extra < usual_s:  # as long as a step may be
        return {**split, messages.STEPS: rest}
    more = messages.COMPILING if "compilation" in step.marks else messages.BETWEEN
    return {**split, messages.STEPS: usual_s, more: extra}
