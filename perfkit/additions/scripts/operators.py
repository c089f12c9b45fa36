"""Which lines' operators take the time of backward passes, in one step.

While torch looks for anomalies it notes, at each operator's node of the graph, the stack that made it. So the
time of a node belongs to a line of the forward pass, though no Python runs in the backward pass.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch

from perfkit.additions.scripts.messages import OWN, limits
from perfkit.additions.scripts.script import Script, ScriptStep, is_capturing
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.lines import Line, Times, text_at
from perfkit.additions.shared.tensors import graph
from perfkit.process.failures import is_users
from perfkit.worker.checks import compiled_graphs, synchronize

LIMIT = limits("evidence")
BOTH_PASSES = "forward and backward"
_FRAME = re.compile(r'\s*File "(?P<file>.+?)", line (?P<line>\d+)')

Place = tuple[str, int]
"""A file and a line."""


class OperatorTimes:
    """Adds up seconds of operators in backward passes, by the innermost line of the user's that made them."""

    def __init__(self, script: Script, users: Callable[[str], str]) -> None:
        self.seconds = defaultdict[Place, float](float)
        self._script = script
        self._users = users  # maps a file to the user's
        self._timed = dict[Any, list[Any]]()  # the hooks of each node

    def time(self, roots: Any) -> None:
        """Times the operators of the backward pass that begins, but not those of a pass within it."""
        if self._script.steps.in_backward or is_capturing():
            return
        for node in graph(roots, LIMIT.most_traced):
            place = self._made_at(node) if node.next_functions and node not in self._timed else None
            if place:
                timer = _NodeTimer(self, place)
                self._timed[node] = [node.register_prehook(timer.begin), node.register_hook(timer.end)]

    def _made_at(self, node: Any) -> Place | None:
        for text in reversed(node.metadata.get("traceback_", [])):
            frame = _FRAME.match(text)
            if frame and is_users(frame["file"]):
                return self._users(frame["file"]), int(frame["line"])
        return None

    def now(self) -> float:
        """The time when the device has done what was launched."""
        synchronize(self._script.device)
        return clock()

    def stop(self) -> None:
        """Leaves the nodes as they were; a graph that is kept may be gone through again."""
        for hooks_of_node in self._timed.values():
            for hook in hooks_of_node:
                hook.remove()
        self._timed.clear()


class _NodeTimer:
    def __init__(self, times: OperatorTimes, place: Place) -> None:
        self._times = times
        self._place = place
        self._began = 0.0

    def begin(self, _gradients: Any) -> None:
        self._began = self._times.now()

    def end(self, _inputs: Any, _outputs: Any) -> None:
        self._times.seconds[self._place] += self._times.now() - self._began


def of_one_step(times: OperatorTimes) -> Generator[None, ScriptStep, Mapping[Place, float]]:
    """The times of a plain step; empty if it is not one, is compiled, or the script looks for anomalies."""
    if compiled_graphs() or torch.is_anomaly_enabled():
        return {}
    torch.set_anomaly_enabled(True, check_nan=False)
    try:
        step = yield
    finally:
        times.stop()
        torch.set_anomaly_enabled(False)
    return {} if step.marks else times.seconds


def lines_of(seconds: Mapping[Place, float], looks: Times, backward_s: float) -> list[Line]:
    """The lines whose operators take most of both passes, if these are some.

    `looks` has the seconds of forward passes, and `backward_s` those of the backward passes meanwhile.
    """
    total = sum(seconds.values())
    forward = defaultdict[Place, float](float)
    for (part, stack), spent in looks.items():
        if stack and part in ("forward", OWN):
            forward[stack[-1].file, stack[-1].line] += spent
    found = list[Line]()
    for (file, line), of_line in seconds.items():
        both_s = forward[file, line] + backward_s * of_line / total
        found.append(Line(BOTH_PASSES, file, line, both_s, text=text_at(f"{file}:{line}")))
    least = LIMIT.least_of_passes * sum(looks.values())
    return sorted((line for line in found if line.seconds >= least), key=lambda line: -line.seconds)
