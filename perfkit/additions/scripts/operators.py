"""The time of operators in the backward passes of one step, by the line that made them.

While torch looks for anomalies it notes, at each operator's node of the graph, the stack that made it. So the
time of a node belongs to a line of the forward pass, although no Python runs in the backward pass.
"""

import contextlib
import math
import os
import re
import sys
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Generator
from typing import Any

import torch

from perfkit.additions.scripts.messages import AGAIN, OWN, Unused, limits
from perfkit.additions.scripts.passes import Operator, Pass, Selected, by_line
from perfkit.additions.scripts.script import Script, ScriptStep, is_capturing
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.positions import Place, text_at
from perfkit.additions.shared.sampler import Times
from perfkit.additions.shared.tensors import graph
from perfkit.process.failures import is_users
from perfkit.worker.checks import compiled_graphs, synchronize

LIMIT = limits("evidence")
BOTH_PASSES = "forward and backward"
PASSES = limits("passes")
_NUMBER = re.compile(r"Backward\d+$")  # the end of the name of an operator's node
_FRAME = re.compile(r'\s*File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)')

Function = tuple[str, str]  # a file, and the name of a function in it


class OperatorTimes:
    """Adds up the seconds of operators in backward passes, by the innermost user's line that made them."""

    def __init__(
        self,
        script: Script,
        users: Callable[[str], str],
        untrained: Collection[int] = (),
        still: Collection[int] = (),
    ) -> None:
        self.seconds = defaultdict[Place, float](float)
        self.in_vain = defaultdict[Place, float](float)  # for gradients that no optimizer takes
        self.still_s = 0.0  # for gradients of weights whose learning rate is 0
        self.by_line = defaultdict[Place, float](float)  # seconds, with those of lines that a line calls
        self.selected = list[Selected]()
        self.are_too_many = False  # whether the step has so many operators that they are not timed
        self._script = script
        self._users = users  # maps a file to the user's
        self._untrained = set(untrained)  # weights that nothing trains
        self._still = set(still)  # weights whose learning rate is 0
        self._count = 0
        self._timers = dict[Any, _NodeTimer]()  # of the pass under way
        self._caller: Function | None = None  # of the pass under way
        self._passes = list[Pass]()
        self._gradients = script.updates.gradients  # calls of `grad` until now
        self._is_kept = False  # whether other passes may go through operators of these as well

    def time(self, roots: Any, is_kept: bool = False) -> None:
        """Times the operators of the backward pass that begins, except for a pass within another one."""
        if self._script.steps.in_backward or self.are_too_many or is_capturing():
            return
        self._end_pass()
        self._is_kept |= is_kept
        nodes = list(graph(roots, LIMIT.most_traced))
        self._count += len(nodes)
        self.are_too_many = self._count >= LIMIT.most_traced
        if self.are_too_many:
            look_for_anomalies(False)
            return
        frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
        code = next((frame.f_code for frame in frames if is_users(frame.f_code.co_filename)), None)
        self._caller = (code.co_filename, code.co_name) if code else None
        self._timers = {node: _NodeTimer(self, node) for node in nodes}

    def _end_pass(self) -> None:
        """Records the pass that has ended, and releases its nodes."""
        indices = {node: index for index, node in enumerate(self._timers)}
        operators = list[Operator]()
        for node, timer in self._timers.items():
            timer.remove()
            lines = self._made_at(node)
            leads_to = [indices[target] for target, _ in node.next_functions if target in indices]
            name = _NUMBER.sub("", node.name())
            size = _elements(node) if name in PASSES.products + PASSES.by_element else math.inf
            operators.append(Operator(timer.seconds, _weight(node), leads_to, lines, name, size))
            if lines:
                self.seconds[lines[-1]] += timer.seconds
        self._timers = {}
        if operators:
            weights = {operator.weight for operator in operators if operator.weight is not None}
            self._passes.append(Pass(operators, weights))

    def taken(self, weights: Collection[Any]) -> None:
        """An optimizer takes the gradients of these weights."""
        self._end_pass()
        for backward in self._passes:
            taken = backward.waiting & set(map(id, weights))
            backward.is_taken |= bool(taken)
            backward.waiting -= taken

    def cleared(self, weights: Collection[Any]) -> None:
        """The gradients of these weights are set to zero."""
        self._end_pass()
        for backward in self._passes:
            lost = backward.waiting & set(map(id, weights))
            backward.waiting -= lost
            if backward.is_taken:  # else the script may have read them before, as for several tasks
                backward.thrown_away |= lost

    def now(self) -> float:
        """The time when the device has done its work, minus the time of checkpointed forward passes."""
        synchronize(self._script.device)
        return clock() - self._script.steps.now.spent[AGAIN]

    def stop(self) -> None:
        """Adds up the seconds that were in vain, or for weights that stay, and products used in part."""
        self._end_pass()
        is_all_known = not self._is_kept and self._script.updates.gradients == self._gradients
        for backward in self._passes:
            backward.thrown_away |= backward.waiting & self._untrained
            for line, seconds in backward.lines_in_vain().items():
                self.in_vain[line] += seconds
            self.still_s += sum(operator.seconds for operator in backward.leading_to(self._still))
            for line, seconds in by_line(backward.operators).items():
                self.by_line[line] += seconds
            if is_all_known:
                self.selected += backward.selected()
        self._passes.clear()

    def _made_at(self, node: Any) -> list[Place]:
        """The user's lines that led to an operator, from the function that asked for the pass inwards."""
        lines = list[Place]()
        for text in node.metadata.get("traceback_", []):
            frame = _FRAME.match(text)
            if frame and is_users(frame["file"]):
                if (frame["file"], frame["function"]) == self._caller:
                    lines.clear()  # what is outside of it
                lines.append((self._users(frame["file"]), int(frame["line"])))
        return lines


class _NodeTimer:
    def __init__(self, times: OperatorTimes, node: Any) -> None:
        self.seconds = 0.0
        self._times = times
        self._began = 0.0
        is_weight = not node.next_functions
        self._hooks = [] if is_weight else [node.register_prehook(self._begin), node.register_hook(self._end)]

    def _begin(self, _gradients: Any) -> None:
        self._began = self._times.now()

    def _end(self, _inputs: Any, _outputs: Any) -> None:
        self.seconds += self._times.now() - self._began

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _weight(node: Any) -> int | None:
    return None if node.next_functions or not hasattr(node, "variable") else id(node.variable)


def _elements(node: Any) -> float:
    """How many elements an operator's result had; infinite for rows of several lengths."""
    result = node._input_metadata[0]  # the gradient that comes in is as large
    return math.inf if result.is_nested_tensor else math.prod(result.shape)


def look_for_anomalies(wanted: bool) -> None:
    """Switches anomaly detection, which notes the stacks that make operators; a script's own mode stays."""
    if not (torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()):
        torch.set_anomaly_enabled(wanted, check_nan=False)


def of_one_step(times: OperatorTimes) -> Generator[None, ScriptStep, None]:
    """Times the operators of the next step, if nothing in it is compiled and no anomalies are looked for."""
    if compiled_graphs() or torch.is_anomaly_enabled():
        return
    look_for_anomalies(True)
    # If a pass fails, torch warns of that first; where warnings are errors, the script would see that one.
    warnings.filterwarnings("ignore", message="Error detected in")
    added = warnings.filters[0]
    try:
        step = yield
    finally:
        with contextlib.suppress(ValueError):  # unless the script has set others
            warnings.filters.remove(added)  # type: ignore[attr-defined]
        look_for_anomalies(False)
        times.stop()
    if step.marks or times.are_too_many:  # it was not a plain step, or is known only in part
        times.seconds.clear()
        times.in_vain.clear()
        times.selected.clear()


def lines_of(times: OperatorTimes, looks: Times) -> list[TimedLine]:
    """The lines whose operators take most of both passes, if any; `looks` are times of other steps."""
    forward = defaultdict[Place, float](float)
    for (part, stack), seconds in looks.items():
        if stack and part in ("forward", OWN):
            forward[stack[-1].place] += seconds
    scale = _scale(times, looks)
    backward = {place: scale * seconds for place, seconds in times.seconds.items()}
    lines = [_line(BOTH_PASSES, place, forward[place] + seconds) for place, seconds in backward.items()]
    least = LIMIT.least_of_passes * sum(looks.values())
    return sorted((line for line in lines if line.seconds >= least), key=lambda line: -line.seconds)


def lines_in_vain(times: OperatorTimes, looks: Times) -> list[TimedLine]:
    """The lines whose backward pass is for gradients that no optimizer takes, the largest first."""
    seconds, scale = times.in_vain, _scale(times, looks)
    largest_first = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return [_line("backward", place, scale * seconds[place]) for place in largest_first]


def still_s(times: OperatorTimes, looks: Times) -> float | None:
    """Seconds for gradients of weights whose learning rate is 0; None if operators were not timed."""
    return _scale(times, looks) * times.still_s if times.seconds else None


def lines_unused(times: OperatorTimes, looks: Times) -> list[Unused]:
    """The lines whose results the loss mostly does not need, the largest first."""
    forward = defaultdict[Place, float](float)
    for (part, stack), seconds in looks.items():
        if part in ("forward", OWN):
            for place in {spot.place for spot in stack}:
                forward[place] += seconds
    by_place = defaultdict[Place, list[Selected]](list)
    seconds_of = defaultdict[Place, float](float)
    for product in times.selected:
        by_place[product.place].append(product)
        seconds_of[product.place] += product.up_to_selections_s
    found = list[Unused]()
    scale = _scale(times, looks)
    for place, seconds in seconds_of.items():
        # Of a line that computes more, the product has the same part of the forward pass as of the other.
        of_line = sum(product.seconds for product in by_place[place]) / max(times.by_line[place], 1e-9)
        found.append(_unused(place, by_place[place], scale * seconds + of_line * forward[place]))
    return sorted(found, key=lambda unused: -unused.line.seconds)


def _unused(place: Place, products: list[Selected], seconds: float) -> Unused:
    kept = sum(product.needed for product in products) / sum(product.elements for product in products)
    file, line = products[0].selected_at
    return Unused(_line(BOTH_PASSES, place, (1 - kept) * seconds), kept, f"{os.path.basename(file)}:{line}")


def _scale(times: OperatorTimes, looks: Times) -> float:
    """Seconds of the backward passes that were looked at, for each second of those that were timed."""
    looked_s = sum(seconds for (part, _), seconds in looks.items() if part == "backward")
    return looked_s / max(sum(times.seconds.values()), 1e-9)


def _line(part: str, place: Place, seconds: float) -> TimedLine:
    file, line = place
    return TimedLine(part, file, line, seconds, text=text_at(f"{file}:{line}"))
