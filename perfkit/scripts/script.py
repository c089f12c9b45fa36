"""The script of this process: what is known of it, its steps, and what its parts tell each other."""

import collections.abc
import contextlib
import copy
import functools
import operator
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from perfkit.scripts.outputs import Outputs, clock
from perfkit.scripts.sites import Sites
from perfkit.worker.checks import FP32_PARTS

_STEPS_FOR_TYPICAL_SIZE = 12
_functorch: Any = torch._C._functorch


class Unavailable(Exception):
    """A question that this script cannot answer; the script goes on."""


def around(holder: Any, name: str, function: Callable[..., Any]) -> None:
    """Replaces a function of a module or class by another one, which is given the plain one first."""
    plain = getattr(holder, name)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(plain, *args, **kwargs)

    setattr(holder, name, call)


# ---------------------------------------------------------------- steps


@dataclass(eq=False)
class Step:
    """One step, from the end of the one before to its own end, by the host's clock."""

    seconds: float = 0.0
    waited: float = 0.0
    """The part of its seconds spent in the training loader's `next`."""
    updated: float = 0.0
    """The part of its seconds spent in optimizers."""
    samples: int = 0
    tokens: int = 0
    forward_samples: int = 0
    """Samples that went into the model: they count where there is no loader."""
    forward_tokens: int = 0
    marks: set[str] = field(default_factory=set)
    """What else happened in it: `new epoch`, `evaluation`, `checkpoint`."""

    def since(self, first: "Step") -> "Step":
        """What came after the first part."""
        return Step(*map(operator.sub, vars(self).values(), vars(first).values()))

    def ended(self, seconds: float) -> "Step":
        """This step, which took so long."""
        self.seconds = seconds
        self.samples = self.samples or self.forward_samples or 1  # where none is seen, steps are counted
        self.tokens = self.tokens or self.forward_tokens
        return self


class Steps:
    """Counts steps and hands each to a listener at its end; the first two are handed over together."""

    def __init__(self, listener: Callable[[list[Step]], None]) -> None:
        self._listener = listener
        self.count = 0
        self.began_at = 0.0
        """`time.time()` at which the first step began."""
        self.now = Step()
        self.in_backward = False
        self.cycle: list[object] = []
        """The optimizers that have made a step, in their order."""
        self._last_of_cycle: object = None
        self._since = clock()
        self._first: Step | None = None
        self._backward_is_step = False

    @property
    def are_first(self) -> bool:
        """Whether the steps are under way in which more than their time is recorded."""
        return self.count < 3

    def begin(self) -> None:
        """A batch is fetched, or a forward or backward pass begins."""
        if self._backward_is_step and not self.in_backward:
            self._backward_is_step = False
            self.end()
        if not self.began_at:
            self.began_at, self._since = time.time(), clock()

    on_fetch = on_forward = on_backward = begin

    def backward_is_step(self) -> None:
        """The backward pass under way makes the step, which ends when something else begins.

        It does not end within `Tensor.backward`, where torch has taken function modes off their stack.
        """
        self._backward_is_step = True

    def first_may_end(self) -> None:
        """Keeps what has happened so far as the first step, in case it turns out to have ended here."""
        if self.count == 0 and not self._backward_is_step:
            self._first = copy.deepcopy(self.now)
            self._first.seconds = clock() - self._since

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer has made its step. The last optimizer of a cycle ends the training step.

        A cycle is complete when it begins again, so the first step is handed on with the second.
        """
        if self.in_backward:
            self.backward_is_step()
            return
        if any(optimizer is known for known in self.cycle):
            self._last_of_cycle = self._last_of_cycle or self.cycle[-1]
        else:  # an optimizer that shows up later is rarer, and ends a step from then on
            self.cycle.append(optimizer)
            self._last_of_cycle = None
            self.first_may_end()
        if optimizer is self._last_of_cycle:
            self.end()

    def end(self) -> None:
        """A step has ended."""
        steps, seconds = [self.now], clock() - self._since
        if first := self._first:
            seconds -= first.seconds
            steps = [first, self.now.since(first)]
            first.ended(first.seconds)
            self._first = None
        steps[-1].ended(seconds)
        self.count += len(steps)
        self._listener(steps)
        self.now, self._since = Step(), clock()


# ---------------------------------------------------------------- the script


class Script:
    """What is known of the script, as its parts see it: the subject of `Procedures`.

    `parts` are told what happens: `fetch` (a batch), `evaluation`, `forward`, `graph` (what a backward pass
    starts from), `backward`, `update` (by an optimizer) and `steps` (have ended). They react in their methods
    `on_fetch` and so on.
    """

    def __init__(self, settings: dict[str, Any], outputs: Outputs) -> None:
        self.settings, self.outputs = settings, outputs
        self.toggles: dict[str, Any] = dict(settings["toggles"])
        """Switches that are set from outside."""
        self.refused: dict[str, str] = {}
        self.notes: list[str] = []
        self.sites = Sites(settings["scratch"])
        self.steps = Steps(functools.partial(self.tell, "steps"))
        self.parts: list[Any] = [self, self.steps]
        self.loader: Any = None  # whose batches were trained on last
        self.iterator: Any = None  # the loader's, which holds the worker processes
        self.models: list[nn.Module] = []
        self.optimizers: list[Any] = []
        """Those that have made a step; a scaler may have left it out."""
        self.backwards = 0
        self.losses: list[torch.Tensor] = []
        """The mean of what each of the first backward passes started from, before any gradient scaling."""
        self.samples_per_step = 0
        """Of a typical step."""
        self.step_is = ""
        """What counts as a step, where it is not an optimizer's."""
        self.held_on: torch.device | None = None
        """The device of the batch that is handed over again and again; None if batches are fetched."""
        self.held: dict[int, Any] = {}
        self._is_profiled = False
        self._seen: list[Step] = []

    def tell(self, event: str, *facts: Any) -> None:
        """Tells all parts what has happened."""
        for part in self.parts:
            if react := getattr(part, f"on_{event}", None):
                react(*facts)

    def note(self, text: str) -> None:
        """Keeps a remark for the parent, once."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, switch: str, reason: str) -> None:
        """A switch cannot be set here; the first reason counts."""
        self.refused.setdefault(switch, reason)

    def wants(self, switch: str) -> Any:
        """The value that is to be set from outside; None if there is none, or it is refused."""
        return None if switch in self.refused else self.toggles.get(switch)

    def set_process(self) -> None:
        """Sets the switches of the process; again before the first step, as the script may have set them."""
        if threads := self.toggles.get("cpu_threads"):
            torch.set_num_threads(threads)
        if (precision := self.toggles.get("fp32_precision", "default")) != "default":
            for part in FP32_PARTS:
                part.fp32_precision = precision
        if "cudnn_benchmark" in self.toggles:
            torch.backends.cudnn.benchmark = self.toggles["cudnn_benchmark"]

    def on_steps(self, steps: list[Step]) -> None:
        if len(self._seen) < _STEPS_FOR_TYPICAL_SIZE:
            self._seen += steps
            self.samples_per_step = statistics.median_low(step.samples for step in self._seen)

    def step_in_words(self) -> str:
        """What counts as a step."""
        names = dict.fromkeys(type(optimizer).__name__ for optimizer in self.steps.cycle)
        return self.step_is or f"a step of {', '.join(names)}"

    def step_s(self) -> float:
        """Seconds of a typical step."""
        return statistics.median(step.seconds for step in self._seen)

    def parameters(self) -> list[nn.Parameter]:
        """Those of the models; of the optimizers where no call of a model was seen."""
        groups = [group["params"] for optimizer in self.optimizers for group in optimizer.param_groups]
        return [p for model in self.models for p in model.parameters()] or [p for ps in groups for p in ps]

    # ------------------------------------------------------------ what a procedure must know

    @property
    def device(self) -> torch.device:
        """The first parameter's; the CPU if there is none."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def batches_per_step(self) -> float:
        return self.backwards / max(1, self.steps.count)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """The script gets the same batch again and again."""
        if self.loader is None:
            raise Unavailable("the script has no DataLoader, whose batches could be held")
        self.held_on = self.device
        try:
            yield
        finally:
            self.held_on = None
            self.held.clear()

    @contextlib.contextmanager
    def phases(self) -> Iterator[None]:
        """Forward and backward get names in the profile."""
        self._is_profiled = True
        try:
            yield
        finally:
            self._is_profiled = False

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Names a part of the step in a profile."""
        return torch.profiler.record_function(name) if self._is_profiled else contextlib.nullcontext()


# ---------------------------------------------------------------- what passes through it


def tensors(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """All tensors in nested containers and plain objects, in order, as they are outside of `torch.func`."""
    if isinstance(value, torch.Tensor):
        while _functorch.is_functorch_wrapped_tensor(value):
            value = _functorch.get_unwrapped(value)
        yield value
    elif depth:
        parts: Any = ()
        if isinstance(value, collections.abc.Mapping):
            parts = value.values()
        elif isinstance(value, list | tuple):
            parts = value
        elif not isinstance(value, str | bytes | int | float):
            parts = getattr(value, "__dict__", {}).values()
        for part in list(parts):
            yield from tensors(part, depth - 1)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor with at least one dimension."""
    return next((tensor for tensor in tensors(value) if tensor.dim()), None)


def size(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Samples and tokens of a tensor: its first dimension; all elements of a 2-D integer tensor."""
    if tensor is None:
        return 0, 0
    is_text = tensor.dim() == 2 and not tensor.is_floating_point() and not tensor.is_complex()
    return tensor.shape[0], tensor.numel() if is_text else 0
