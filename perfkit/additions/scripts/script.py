"""The script of this process: its steps, what is known of it, and the callbacks that learn what it does."""

import contextlib
import copy
import ctypes
import enum
import functools
import mmap
import os
import statistics
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.scripts.messages import Frame, Site, failed
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.positions import line_of
from perfkit.additions.shared.settings import Settings
from perfkit.additions.shared.tensors import weights_of
from perfkit.process.failures import is_users
from perfkit.worker.checks import FP32_PARTS, View, compiled_graphs, synchronize

MOST_LOOKS = 16  # first steps, calls of a role, batches of a process that are looked at: all would take long
WAITING = ("waiting", "sampler", "data set", "collate")  # for a batch; made out where loading is looked at


@dataclass(eq=False)
class ScriptStep:
    """One step, from the end of the step before it to its own end, by the host's clock."""

    seconds: float = 0.0
    samples: int = 0  # that were loaded
    forward_samples: int = 0  # in the model, without a loader
    elements: int = 0  # of the inputs of models
    cpu_s: float = 0.0  # used by the thread that trains, where it is asked
    spent: dict[str, float] = field(default_factory=functools.partial(defaultdict, float))  # seconds by part
    marks: set[str] = field(default_factory=set)  # `new epoch`, `evaluation`, `checkpoint`, `compilation`

    @property
    def waited(self) -> float:
        """Seconds in the training loader's `next`."""
        return sum(self.spent.get(part, 0.0) for part in WAITING)

    def without(self, first: "ScriptStep") -> "ScriptStep":
        """The second step, if this object has two and `first` is the first of them."""
        second = copy.copy(self)
        second.spent = defaultdict(float, {part: s - first.spent[part] for part, s in self.spent.items()})
        for name in ("seconds", "samples", "forward_samples", "elements", "marks"):
            setattr(second, name, getattr(self, name) - getattr(first, name))
        return second


class InputSamples:
    """Counts the samples that models are given: those of a step if no batch is loaded in it."""

    def __init__(self, usual: int) -> None:
        self.given = 0  # samples of the largest input of a model, for the next backward pass
        self.are_loaded = True  # whether each step has had a batch: else one that is loaded serves several
        self._usual = usual  # samples of a step if nothing shows them
        self.shares = dict[object, int]()  # samples of the step under way, by their optimizer

    def take(self, step: ScriptStep) -> None:
        """A backward pass begins, for the inputs that models were given."""
        step.forward_samples += self.given
        self.given = 0

    def share(self, step: ScriptStep, optimizer: object) -> None:
        """Gives an optimizer the samples that no other one has taken."""
        of_others = sum(self.shares.values()) - self.shares.get(optimizer, 0)
        self.shares[optimizer] = step.forward_samples - of_others

    def complete(self, steps: list[ScriptStep]) -> None:
        """Gives the steps that end now their samples, if none were loaded."""
        samples = max(self.shares.values()) // len(steps)  # optimizers share a batch
        for step in steps:
            self.are_loaded = self.are_loaded and step.samples > 0
            if not self.are_loaded:
                step.samples = samples or step.samples or self._usual
        self.shares.clear()


class Phase(enum.Enum):
    """Where the script is in a cycle of its optimizers."""

    LEARNING = enum.auto()  # in the first one: whether an optimizer is the last one shows when it steps again
    INSIDE = enum.auto()  # the last optimizer is known, and has not stepped yet
    OVER = enum.auto()  # the last optimizer has stepped


class StepDetector:
    """Tells a listener which steps have ended: a step is one cycle of the script's optimizers.

    The newest optimizer is the last one of a cycle. In the first cycle this shows only when it steps again,
    so the first two steps end together. An optimizer that is new in a later cycle ends steps from then on.
    If the last optimizer steps within a backward pass, the step ends when something begins after that pass.
    """

    def __init__(self, listener: Callable[[list[ScriptStep]], None], usual: int) -> None:
        self.count = 0  # steps that have ended
        self.began_at = 0.0  # `time.time()` at which the first step began
        self.now = ScriptStep()  # the step under way, or the first two
        self.since = clock()  # when it began
        self.inputs = InputSamples(usual)
        self.in_backward = False
        self.trainer = threading.main_thread().ident or 0  # which trains: with Ray, it is another thread
        self.last: object = None  # the optimizer that ends a step, named by what it trains
        self._cycle = set[object]()  # the optimizers of a step
        self._phase = Phase.LEARNING
        self._first: ScriptStep | None = None  # the first step, until the second has ended
        self._listener = listener

    @property
    def are_first(self) -> bool:
        """Whether fewer than three steps have ended."""
        return self.count < 3

    def begin(self) -> None:
        """Something begins that is part of a step; the step before it may still have to end."""
        if self._phase is Phase.OVER and not self.in_backward and not is_capturing():
            self.end(self._listener)
        if not self.began_at:
            self.began_at = time.time()
            self.since = clock()
            self.now.spent.clear()
            self.trainer = threading.get_ident()

    def updated(self, optimizer: object) -> None:
        """An optimizer, or the script's own code in place of one, has changed the weights."""
        if is_capturing():
            raise failed("captured")
        if optimizer == self.last:
            self._phase = Phase.OVER
        elif optimizer not in self._cycle:
            self._cycle.add(optimizer)
            self.last = optimizer
            if self._phase is Phase.LEARNING:
                self._first = copy.deepcopy(self.now)
                self._first.seconds = clock() - self.since
        self.inputs.share(self.now, optimizer)
        if self._phase is Phase.OVER and not self.in_backward:
            self.end(self._listener)

    def end(self, listener: Callable[[list[ScriptStep]], None]) -> None:
        """Ends the step under way, or the first two, and tells a listener."""
        self.now.seconds = clock() - self.since
        steps = [self.now]
        if self._first:
            steps = [self._first, self.now.without(self._first)]
        if self.inputs.shares:  # a rank counts none where each step has had a batch
            self.inputs.complete(steps)
        self.count += len(steps)
        self._phase = Phase.INSIDE
        listener(steps)
        self.now = ScriptStep()
        self._first = None
        self.since = clock()
        self.trainer = threading.get_ident()


class Callback:
    """Methods that are called as the script goes on, in its main thread; a callback has those it needs."""

    def on_epoch(self, loader: Any, indices: Any) -> None: ...  # the first batch of an epoch has been loaded
    def on_evaluation(self) -> None: ...  # a model that does not train is called, or a batch has no gradients
    def on_mode(self, trains: bool) -> None: ...  # `train` or `eval` sets the mode of a model that trains
    def on_training(self) -> None: ...  # a pass of the training begins, after something else
    def on_input(self, given: Any) -> None: ...  # a model is called, the first time since a backward pass
    def on_gradients(self, optimizer: Any) -> None: ...  # an optimizer is about to step; only in looks
    def on_graph(self, roots: Any, is_kept: bool) -> None: ...  # any backward pass begins, also an inner one
    def on_backward(self) -> None: ...  # a backward pass begins that is not within another one
    def on_steps(self, steps: list[ScriptStep]) -> None: ...  # steps have ended: two at first, then each one
    def on_end(self) -> None: ...  # the script has ended


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: nothing may wait, and no operator has a result."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def pins(loader: Any) -> bool:
    """Whether a loader is asked for batches in page-locked memory, and torch finds a GPU to lock it for."""
    return torch.cuda.is_available() and bool(getattr(loader, "pin_memory", False))


class Calls:
    """The first calls of each role, such as `backward`, and the user's code that made them."""

    def __init__(self, place: Callable[[str], str]) -> None:
        self.sites = defaultdict[str, list[Site]](list)  # of distinct calls by role: a GAN has several
        self._looks = Counter[str]()
        self._place = place  # where a file is for the user

    def note(self, role: str) -> None:
        """Keeps the call under way, if it is among the first of its role and at another place."""
        if self._looks[role] < MOST_LOOKS:
            self._looks[role] += 1
            site = self.under_way(role)
            if all(site.frames[:1] != other.frames[:1] for other in self.sites[role]):
                self.sites[role].append(site)

    def under_way(self, role: str) -> Site:
        """The user's frames, and the library that made the call, if it is not torch."""
        frames = []
        library = ""
        for frame, _ in traceback.walk_stack(sys._getframe(1)):
            file = frame.f_code.co_filename
            if is_users(file):
                line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
                path = self._place(os.path.realpath(file))
                line = line or line_of(frame)
                frames.append(Frame(path, line, end_line or line, column or 0, end_column or 0))
            elif not frames and "-packages" in file:
                package = frame.f_globals.get("__name__", "").partition(".")[0]
                library = library if package in ("torch", "perfkit") else package
        return Site(role, frames, library)


@dataclass(frozen=True)
class ScriptView(View):
    """What was seen of a script in its steps."""

    are_pinned: bool | None = None  # whether a batch is in page-locked memory; None: not known

    def pin_memory(self) -> tuple[bool, str]:
        """As for other trainings, but of the batches: a class without a method `pin_memory` is not pinned."""
        if self.are_pinned is False and pins(self.loader):
            return False, "it pins, but its batches lie in pageable memory: their class has no pin_memory()"
        if not torch.cuda.is_available():  # then torch pins nothing, whatever the loader says
            return False, "batches lie in pageable memory: torch finds no GPU"
        return super().pin_memory()


@dataclass(eq=False)
class SeenModels:
    """What was seen of the models, by the names of a `View`; `Models` writes it."""

    model: Any = field(default_factory=nn.ModuleList)  # those that the script calls itself
    outputs: Any = None  # the largest of the last forward pass, without its memory
    autocast: torch.dtype | None = None


@dataclass(eq=False)
class SeenBatches:
    """What was seen of the training's batches, by the names of a `View`; `Loaders` writes it."""

    loader: Any = None  # the last one that the training has asked
    iterator: Any = None
    copies: list[dict[str, Any]] = field(default_factory=list)  # arguments of calls that copied batches
    are_pinned: bool | None = None  # whether a batch is in page-locked memory; None: not known


@dataclass(eq=False)
class SeenUpdates:
    """What was seen of backward passes and optimizers; `Updates` writes it."""

    optimizers: list[Any] = field(default_factory=list)  # have made a step
    newest: Any = None  # the optimizer that has made its first step last
    held: set[int] = field(default_factory=set)  # weights by `id` that an optimizer was made for
    backwards: int = 0
    gradients: int = 0  # calls of `grad`, which make no backward pass
    losses: list[torch.Tensor] = field(default_factory=list)  # roots of the first backward passes
    new_optimizers: int = 0  # how many were made for weights that another one had trained
    unused_graphs: int = 0  # steps whose gradients had a graph that nothing went through


class Parts:
    """What the thread that trains does at this moment, and the time that each part of a step takes."""

    def __init__(self, script: "Script") -> None:
        self.now = ""  # the part under way; empty in code of the script's own
        self.is_between = False  # whether something else than the training has gone on since its last pass
        self.fetching_since: float | None = None  # when a loader was asked, the first time since that pass
        self.looked_at = ctypes.c_bool.from_buffer(mmap.mmap(-1, 1))  # whether steps are; workers know it
        self._script = script
        self._steps = script.steps
        self._process = os.getpid()
        self._inner_s = 0.0  # of parts within the part under way

    def do(self, part: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function as a part of a step: counts its time, without that of parts within it."""
        outer = self.now
        outer_inner_s = self._inner_s
        self.now = part
        self._inner_s = 0.0
        start = clock()
        try:
            return function(*args, **kwargs)
        finally:
            try:
                if self.looked_at.value and os.getpid() == self._process and not is_capturing():
                    synchronize(self._script.device)  # a line that waits next has only its own time
            finally:
                took = clock() - start
                self._steps.now.spent[part] += took - self._inner_s
                self.now = outer
                self._inner_s = outer_inner_s + took

    def begin_fetch(self) -> None:
        """A loader is asked for a batch."""
        self.fetching_since = self.fetching_since or clock()

    def begin_other(self) -> None:
        """Something else than the training begins."""
        self.is_between = True

    def begin_pass(self) -> None:
        """A forward or backward pass of the training begins."""
        self.fetching_since = None
        if self.is_between:
            self.is_between = False
            self._script.tell(Callback.on_training)
        self._steps.begin()


class Script(Callback):
    """What is known of the script: a `procedure.Subject`, and those whom events are told to."""

    phases = staticmethod(contextlib.nullcontext[None])  # the parts of a step have no names in a profile
    model = property(attrgetter("models.model"))
    loader = property(attrgetter("batches.loader"))
    iterator = property(attrgetter("batches.iterator"))

    def __init__(self, settings: Settings, files: Outputs) -> None:
        self.settings = settings.checked()
        self.toggles: dict[str, Any] = self.settings.toggles  # switches that are set from outside
        self.files = files
        self.notes: list[str] = []
        self.calls = Calls(self.settings.place)
        self.steps = StepDetector(functools.partial(self.tell, Callback.on_steps), self.settings.samples)
        self.models = SeenModels()
        self.batches = SeenBatches()
        self.updates = SeenUpdates()
        self.parts = Parts(self)
        self.samples_per_step = 0  # of a typical one
        self.saved_bytes = 0  # of the largest checkpoint
        self.is_timed = False  # whether the steps under way are timed: then nothing is walked or listed
        self.callbacks: tuple[Callback, ...] = (self,)
        self._methods = dict[Callable[..., None], list[Callable[..., None]]]()  # of callbacks, by the event
        self._first_steps: list[ScriptStep] = []
        self._compiled = 0  # graphs of torch.compile

    def set_callbacks(self, *callbacks: Callback) -> None:
        """Sets the callbacks, which are called in this order."""
        self.callbacks = callbacks
        self._methods.clear()

    def tell(self, event: Callable[..., None], *about: Any) -> None:
        """Calls a method of `Callback` on each callback that overrides it."""
        if event not in self._methods:
            name = event.__name__
            called = [callback for callback in self.callbacks if getattr(type(callback), name) is not event]
            self._methods[event] = [getattr(callback, name) for callback in called]
        for method in self._methods[event]:
            method(*about)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def set_process(self) -> None:
        """Sets the switches of the process; again before the first step, as the script may have set them."""
        if threads := self.toggles.get("cpu_threads"):
            torch.set_num_threads(threads)
        precision = self.toggles.get("fp32_precision", "default")
        if precision != "default":
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            # The older flag first: read after the parts alone are set to `ieee`, it raises.
            torch.backends.cudnn.allow_tf32 = precision == "tf32"
            for part in FP32_PARTS:
                part.fp32_precision = precision
        if "cudnn_benchmark" in self.toggles:
            torch.backends.cudnn.benchmark = self.toggles["cudnn_benchmark"]

    def on_steps(self, steps: list[ScriptStep]) -> None:
        graphs = compiled_graphs()
        if graphs != self._compiled:
            self._compiled = graphs
            for step in steps:
                step.marks.add("compilation")
        if len(self._first_steps) < MOST_LOOKS:
            self._first_steps += steps
            self.samples_per_step = statistics.median_low(step.samples for step in self._first_steps)
            gpus = sorted({str(p.device) for p in self.parameters() if p.is_cuda})
            if len(gpus) > 1:
                self.note(f"the model is on {', '.join(gpus)}: times and memory are those of {self.device}")

    def view(self) -> ScriptView:
        """What was seen of the script so far, which shows its switches."""
        known = vars(self.models) | vars(self.batches)
        return ScriptView(**known, device=self.device, optimizer=self.updates.newest)

    def step_in_words(self) -> str:
        names = dict.fromkeys(type(optimizer).__name__ for optimizer in self.updates.optimizers)
        return f"a step of {', '.join(names)}" if names else "a backward pass"

    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.updates.optimizers for group in optimizer.param_groups]

    def modules(self) -> list[nn.Module]:
        return [part for model in self.model for part in model.modules()]

    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters()) or weights_of(self.groups())

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))
