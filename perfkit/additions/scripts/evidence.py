"""What speaks for a cause, asked in the script's own process, in a window in which no step is timed."""

import contextlib
import functools
import gc
import inspect
import itertools
import os
import re
import statistics
import sys
import timeit
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import numpy
import psutil
import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from perfkit.additions.scripts import hooks, messages, operators, run_account
from perfkit.additions.scripts.inputs import ZerosFound, paddings
from perfkit.additions.scripts.loaders import data_facts
from perfkit.additions.scripts.messages import AGAIN, EVALUATION, NOT_STEPS, OWN, Evidence, Rows, limits
from perfkit.additions.scripts.script import Callback, Script, ScriptStep, is_capturing
from perfkit.additions.scripts.threads import Threads
from perfkit.additions.scripts.weights import ZeroRates, odd_parts, sums, untrained
from perfkit.additions.shared.around import with_around
from perfkit.additions.shared.attribution import called, timed_lines
from perfkit.additions.shared.clock import clock, own_time
from perfkit.additions.shared.positions import places
from perfkit.additions.shared.sampler import Sampler, Times
from perfkit.additions.shared.tensors import first_tensor, graph, tensors, weights_of
from perfkit.machine import cores
from perfkit.process.failures import is_users
from perfkit.worker import checks
from perfkit.worker.procedure import Procedure

_LOOKS = "looks"  # what is done here, which the script does not do
LIMIT = limits("evidence")
_PARAMETRIZE = ParametrizationList.forward.__code__  # computes a weight
_BACKWARD = inspect.unwrap(torch.autograd.backward).__code__
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")  # of a module


class Inquiry(Callback):
    """Records facts during training that `evidence` returns."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.nodes: dict[int, int] = {}
        self._visited = set[Any]()  # operators that a backward pass of the step under way has been through
        self.visits = self.visits_again = 0  # of operators by backward passes; those not the first in a step
        self.is_on: dict[str, str] = {}  # modes in the last backward pass, where a `with` may have them on
        self.shapes = set[tuple[int, ...]]()
        self.rows: Rows | None = None
        self.trained = set[int]()  # weights that were not frozen when an optimizer came to them, by `id`
        self.zero_rates = ZeroRates()
        self.padding: list[tuple[float, float, int]] = []
        self.zeros = ZerosFound()
        self.operators: operators.OperatorTimes | None = None  # is told of backward passes in one step
        for place, role in hooks.TABLES["modes"].items():
            hooks.wrap(place, functools.partial(self._noted, role))
        hooks.wrap("torch.utils.checkpoint.checkpoint", self._checkpointed)
        hooks.wrap("torch.optim.Optimizer.zero_grad", self._cleared)
        hooks.wrap("torch.nn.Module.zero_grad", self._cleared)

    def _noted(self, role: str, plain: Any, *args: Any, **kwargs: Any) -> Any:
        sets_nothing = role == "compiler_reset" and not checks.compiled_graphs()
        if role == "float64" and plain.__name__ != "double":
            dtypes = [getattr(given, "dtype", given) for given in (*args, *kwargs.values())]
            sets_nothing = not any(dtype is torch.float64 for dtype in dtypes)
        if not (sets_nothing or self._script.parts.looked_at.value):  # a look may set the mode itself
            self._script.calls.note(role)
        return plain(*args, **kwargs)

    def _checkpointed(self, plain: Any, function: Any = None, *args: Any, **kwargs: Any) -> Any:
        if function is None:  # used as a decorator, which calls it again
            return plain(**kwargs)
        self._script.calls.note("checkpointing")
        if self._script.parts.looked_at.value:
            function = functools.partial(self._maybe_again, function)
        return plain(function, *args, **kwargs)

    def _maybe_again(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        if not (script.parts.looked_at.value and script.steps.in_backward) or is_capturing():
            return function(*args, **kwargs)
        checks.synchronize(script.device)  # with what comes before it in the backward pass
        return script.parts.do(AGAIN, function, *args, **kwargs)

    def _cleared(self, plain: Any, holder: Any, *args: Any, **kwargs: Any) -> Any:
        if self.operators:
            is_model = isinstance(holder, nn.Module)
            weights = [*holder.parameters()] if is_model else weights_of(holder.param_groups)
            self._look(self.operators.cleared, weights)
        return plain(holder, *args, **kwargs)

    def on_input(self, given: Any) -> None:
        if "torch._dynamo" in sys.modules and len(self.shapes) < LIMIT.most_shapes:
            tensor = first_tensor(given)
            if tensor is not None:
                self.shapes.add(tuple(tensor.shape))
        if self._script.parts.looked_at.value and not is_capturing():
            self._look(self._look_at_input, given)

    def _look(self, function: Callable[..., None], *about: Any) -> None:
        """Looks at something; the script goes on, whatever a look raises."""
        try:
            self._script.parts.do(_LOOKS, function, *about)
        except Exception as problem:
            self._script.note(f"a look at the script failed, so something may be missing: {problem!r:.200}")

    def _look_at_input(self, given: Any) -> None:
        matrices = itertools.chain(tensors(given), self._script.model.buffers())
        self.zeros.look(self._script.steps.count, matrices)
        self.padding.append(max(paddings(given), default=(0.0, 0.0, 0)))

    def on_gradients(self, optimizer: Any) -> None:
        if self.operators:
            self._look(self.operators.taken, weights_of(optimizer.param_groups))
        if not is_capturing():
            self._look(self._look_at_weights)

    def _look_at_weights(self) -> None:
        if self.rows is None:
            self.rows = dense_rows(self._script)
        self.trained |= {id(weight) for weight in self._script.parameters() if weight.requires_grad}

    def on_graph(self, roots: Any, is_kept: bool) -> None:
        if self.operators:
            self._look(self.operators.time, roots, is_kept)
        elif self._script.parts.looked_at.value:
            self._look(self._look_at_graph, roots, is_kept)

    def _look_at_graph(self, roots: Any, is_kept: bool) -> None:
        nodes = set(graph(roots, LIMIT.most_nodes))
        self.nodes[self._script.steps.count] = len(nodes)
        visited = {node for node in nodes if node.next_functions}  # weights have none
        self.visits += len(visited)
        self.visits_again += len(visited & self._visited)
        if is_kept:  # no other can be gone through again, and its operators may hold much memory
            self._visited |= visited
        self.is_on = dict(_modes(self._script))

    def on_steps(self, steps: list[ScriptStep]) -> None:
        self._visited.clear()
        if not self._script.is_timed:
            self.zero_rates.look(self._script.updates.optimizers)


def evidence(questions: Any, seconds: float, threads: int = 0) -> Procedure:
    """`Evidence` of some steps: at least three, and others for some seconds, with so many compute threads."""
    script: Script = questions.subject
    inquiry: Inquiry = questions.inquiry
    account = questions.run_account
    sampler = Sampler(account.part_now, script.settings.place)
    weights = {part for part in script.modules() if isinstance(part, ParametrizationList)}
    calls, parametrized = yield from _calls(sampler.users, weights)
    collecting = defaultdict[str, float](float)
    sizes = {id(held): len(held) for _, held, _ in _containers()}
    before = sums(script)
    inquiry.trained.clear()
    with _looked_at(script, threads):
        own = Threads(script)
        with account.counting(), _collections(script, account.part_now, collecting):
            took, times = yield from _take_looks(sampler, own, seconds)
        operator_times = yield from _operators(script, inquiry, sampler.users, untrained(script, before))
    passes = [site for role in ("backward", "step") for site in script.calls.sites[role] if site.frames]
    of_passes = {(frame.file, frame.line) for site in passes for frame in site.frames}
    found = timed_lines(times, [(site.frames[0].file, site.frames[0].line) for site in passes])
    loaders, loader = questions.loaders, script.loader
    data = None if loader is None else data_facts(loader, loaders.asked_worker[0], loaders.drawn[0])
    grown = list(_grown(script, sizes))
    without_optimizer, frozen = odd_parts(script, before, inquiry.trained)
    parts = defaultdict[str, float](float)
    for (part, _), spent in times.items():
        parts[part] += spent
    return Evidence(
        steps=len(took),
        step_s=statistics.median(took),
        parts=dict(parts),
        operators=operators.lines_of(operator_times, times),
        in_vain=operators.lines_in_vain(operator_times, times),
        unused=operators.lines_unused(operator_times, times),
        lines=[with_around(called(line, times, calls), times, of_passes, NOT_STEPS) for line in found],
        loading=loaders.watch.total(),
        data=data,
        collecting=dict(collecting),
        is_on=inquiry.is_on or dict(_modes(script)),
        nodes=inquiry.nodes,
        again=inquiry.visits_again / max(1, inquiry.visits),
        rows=inquiry.rows,
        zeros=inquiry.zeros.lasting(),
        padding=statistics.median_low(inquiry.padding or [(0.0, 0.0, 0)]),
        parametrized=parametrized,
        shapes=len(inquiry.shapes),
        graphs=checks.compile_counters().graphs,
        threads=torch.get_num_threads(),
        busy_threads=list(own.busy()),
        one_thread=threads == 1 < torch.get_num_threads(),
        kept={name: where for name, where, has_graphs in grown if has_graphs},
        grown={name: where for name, where, has_graphs in grown if not has_graphs},
        in_hooks=_in_hooks(script, sampler.users, times),
        peak=checks.peak_bytes(script.device)[0],
        memory=_memory_for(script.device),
        groups=len(script.groups()),
        group_kinds=len({_settings(group) for group in script.groups()}),
        without_optimizer=without_optimizer,
        frozen=frozen,
        zero_rate=inquiry.zero_rates.found(script, operators.still_s(operator_times, times)),
    )


def _settings(group: Mapping[str, Any]) -> str:
    """The settings of a group of weights, to compare them; equal ones have the same text."""
    return repr([(name, group[name]) for name in sorted(group) if name not in ("params", "param_names")])


@contextlib.contextmanager
def _looked_at(script: Script, threads: int) -> Iterator[None]:
    """Looks at all steps meanwhile, with so many compute threads, if not 0; they are not the script's own."""
    own_threads = torch.get_num_threads()
    script.parts.looked_at.value = True  # first, and last below: these threads are not the script's own
    torch.set_num_threads(threads or own_threads)
    try:
        yield
    finally:
        torch.set_num_threads(own_threads)
        script.parts.looked_at.value = False


def _operators(
    script: Script, inquiry: Inquiry, users: Callable[[str], str], without_optimizer: Collection[int]
) -> Generator[None, ScriptStep, operators.OperatorTimes]:
    """Times of operators in the backward passes of one step; none where their stacks would take long."""
    times = operators.OperatorTimes(script, users, without_optimizer, inquiry.zero_rates.still or ())
    if max(inquiry.nodes.values(), default=0) < LIMIT.most_traced:
        inquiry.operators = times
        try:
            yield from operators.of_one_step(times)
        finally:
            inquiry.operators = None
    return times


def _take_looks(sampler: Sampler, own: Threads, seconds: float) -> Procedure:
    """Takes steps, and returns what each took, and what looks saw in all of them."""
    took = list[float]()
    times: Times = defaultdict(float)
    until = clock() + seconds
    with sampler.running():
        while len(took) < LIMIT.fewest or clock() < until:
            step = yield
            took.append(step.seconds)
            own.look()
            is_long = step.marks and messages.BETWEEN in run_account.split(step, min(took))
            evaluates = not step.marks.isdisjoint({EVALUATION, "eval()"})
            _add(times, sampler.taken(), evaluates, messages.BETWEEN if is_long else OWN)
    return took, times


def _add(times: Times, of_step: Times, evaluates: bool, own: str = OWN) -> None:
    """Adds what looks saw in a step; without an evaluation, its code is the script's own, as of a policy."""
    for (part, stack), spent in of_step.items():
        is_own = part == OWN or (part == EVALUATION and not evaluates)
        if part != _LOOKS:
            times[own if is_own else part, stack] += spent


class _Counts:
    """Counts calls of functions, and how often each of these weights is computed before a backward pass."""

    def __init__(self, weights: Collection[Any]) -> None:
        self.calls = Counter[CodeType]()
        self.most = 0  # times that one of these weights was computed
        self.seconds = 0.0  # that this took
        self._weights = weights
        self._times = Counter[Any]()  # since the last backward pass
        self._began = 0.0

    def note(self, frame: FrameType, event: str, _about: Any) -> None:
        """Is called as functions begin and end: see `sys.setprofile`."""
        if event == "call":
            self._begin(frame)
        elif event == "return":
            self._end(frame.f_code)

    def _begin(self, frame: FrameType) -> None:
        self.calls[frame.f_code] += 1
        if frame.f_code is _BACKWARD:
            self.most = max([self.most, *self._times.values()])
            self._times.clear()
        elif frame.f_code is _PARAMETRIZE and frame.f_locals["self"] in self._weights:
            self._times[frame.f_locals["self"]] += 1
            self._began = clock()

    def _end(self, code: CodeType) -> None:
        if code is _BACKWARD:
            self._times.clear()  # of weights that it computed again
        elif code is _PARAMETRIZE and self._began:
            self.seconds += clock() - self._began
            self._began = 0.0


def _calls(
    users: Callable[[str], str], weights: Collection[Any] = ()
) -> Generator[None, ScriptStep, tuple[Counter[tuple[str, str]], tuple[int, float]]]:
    """Calls in a plain step, by file and function; how often a pass computes weights, and their share.

    Nothing is known if it is not a plain step, or the script profiles.
    """
    calls = Counter[tuple[str, str]]()
    if _is_profiled():
        return calls, (0, 0.0)
    counts = _Counts(weights)
    sys.setprofile(counts.note)  # of this thread alone; cProfile would be of all, from Python 3.12 on
    try:
        step = yield
    finally:
        if sys.getprofile() == counts.note:  # else the script has begun its own meanwhile
            sys.setprofile(None)
    if step.marks:
        return calls, (0, 0.0)
    for code, count in counts.calls.items():
        if not code.co_flags & inspect.CO_GENERATOR:
            calls[users(code.co_filename), code.co_qualname] += count
    return calls, (counts.most, counts.seconds / max(step.seconds, 1e-9))


@contextlib.contextmanager
def _collections(script: Script, part_now: Callable[[], str], seconds: dict[str, float]) -> Iterator[None]:
    """Adds up the time of garbage collections in plain steps, of long ones by the line under way."""
    began = own_time()

    def note(phase: str, about: dict[str, Any]) -> None:
        nonlocal began
        tell = own_time if about["generation"] == 2 else clock  # the others are short and many
        now = tell() - script.steps.now.spent["start"]  # a loader that is collected ends its workers
        if phase == "start":
            began = now
        elif part_now() not in (*NOT_STEPS, _LOOKS):
            took = now - began
            place = script.calls.under_way("collection").place if took > LIMIT.long_s else ""
            seconds[place] += took

    gc.callbacks.append(note)
    try:
        yield
    finally:
        gc.callbacks.remove(note)


def _is_profiled() -> bool:
    """Whether the script profiles its Python: from 3.12 on, cProfile is a tool of `sys.monitoring`."""
    monitoring: Any = getattr(sys, "monitoring", None)
    tool = monitoring.get_tool(monitoring.PROFILER_ID) if monitoring else None
    return tool is not None or sys.getprofile() is not None


def _modes(script: Script) -> Iterator[tuple[str, str]]:
    asked = {
        "anomaly_mode": torch.is_anomaly_enabled(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "tracing": sys.gettrace() is not None,
        "a_profiler": torch._C._autograd._profiler_enabled(),
        "python_profiler": _is_profiled(),
        "new_optimizers": 2 * script.updates.new_optimizers > script.steps.count,
        "graph_of_gradients": 2 * script.updates.unused_graphs > script.steps.count,
        "float64": any(p.dtype == torch.float64 for p in script.parameters()),
    }
    for name in [name for name, is_on in asked.items() if is_on]:
        yield name, next((site.place for site in script.calls.sites[name]), "")


def _containers() -> Iterator[tuple[str, Any, str]]:
    """Lists and the like by the user's names, also those in dicts and the user's objects; with the file."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        if is_users(frame.f_code.co_filename):
            named = {**frame.f_globals, **frame.f_locals}
            for name, value in [*named.items()]:
                module = sys.modules.get(type(value).__module__)
                if isinstance(value, dict) and len(value) <= LIMIT.most_keys:
                    items = [item for item in list(value.items()) if isinstance(item[0], str | int)]
                    named |= {f"{name}[{key!r}]": part for key, part in items}
                elif is_users(getattr(module, "__file__", None) or "<built in>"):
                    named |= {f"{name}.{key}": part for key, part in getattr(value, "__dict__", {}).items()}
            for name, value in named.items():
                if isinstance(value, list | dict | deque):
                    yield name, value, os.path.realpath(frame.f_code.co_filename)


def _grown(script: Script, sizes: Mapping[int, int]) -> Iterator[tuple[str, str, bool]]:
    """Containers that have grown by tensors: the name, the line that adds, and whether they have graphs."""
    for name, held, file in _containers():
        if len(held) - sizes.get(id(held), len(held)) < LIMIT.fewest:
            continue
        newest = held[next(reversed(held))] if isinstance(held, dict) else held[-1]
        graphs = [tensor.grad_fn is not None for tensor in tensors(newest)]
        if graphs:
            variable = name.partition("[")[0].rpartition(".")[2]
            adds = LIMIT.adds.format(variable=re.escape(variable))
            yield name, next(places(adds, script.settings.place(file)), os.path.basename(file)), any(graphs)


def denormals(questions: Any) -> float:
    """The share of denormal numbers in the optimizers' state now; 0 where this CPU is not slow with them."""
    if _product_s(1e-41) < LIMIT.slow * _product_s(0.5):
        return 0.0
    found = total = 0
    for value in tensors([optimizer.state for optimizer in questions.subject.updates.optimizers]):
        if value.dtype == torch.float32 and value.device.type == "cpu":
            sizes = numpy.abs(value.detach().numpy())  # torch itself may flush them
            found += int(((sizes > 0) & (sizes < numpy.finfo(numpy.float32).tiny)).sum())
            total += sizes.size
        if total > LIMIT.most_values:
            break
    return found / total if total else 0.0


def _product_s(value: float) -> float:
    """Seconds of a product of numbers, at the least."""
    numbers = torch.full((LIMIT.multiplied,), value)
    return min(timeit.repeat(lambda: torch.mul(numbers, 0.5), number=1, repeat=LIMIT.times))


def _in_hooks(script: Script, users: Callable[[str], str], times: Times) -> dict[str, float]:
    """Seconds of the passes that functions of the user's took as hooks of a module, by the line."""
    held = [getattr(module, kind) for module in script.modules() for kind in _HOOKS]
    codes = [getattr(hook, "__code__", None) for hooks_of_part in held for hook in hooks_of_part.values()]
    functions = {(users(code.co_filename), code.co_qualname) for code in codes if code}
    seconds = defaultdict[str, float](float)
    for (name, stack), spent in times.items():
        of_hooks = [spot for spot in stack if (spot.file, spot.function) in functions]
        if of_hooks and name in ("forward", "backward", AGAIN):
            seconds[f"{of_hooks[0].file}:{of_hooks[0].line}"] += spent
    return dict(seconds)


def _memory_for(device: torch.device) -> int:
    """Bytes that this training could have: what it has now, and what is free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return cores.free_memory_bytes() + psutil.Process().memory_info().rss


def dense_rows(script: Script) -> Rows | None:
    """How many rows of dense embeddings have a gradient now; None without such embeddings."""
    kinds = nn.Embedding | nn.EmbeddingBag
    dense = {id(each.weight) for each in script.modules() if isinstance(each, kinds) and not each.sparse}
    named = [(name, weight) for model in script.model for name, weight in model.named_parameters()]
    tables = [(name, each.grad) for name, each in named if id(each) in dense and _has_rows(each.grad)]
    if not tables:
        return None
    parts = [part for _, gradient in tables for part in gradient.split(LIMIT.rows_at_once)]
    touched = sum(int(torch.count_nonzero(part.ne(0).any(1))) for part in parts)
    of_weights = sum(gradient.numel() for _, gradient in tables) / sum(weight.numel() for _, weight in named)
    return Rows(sum(len(each) for _, each in tables), touched, of_weights, [name for name, _ in tables])


def _has_rows(gradient: Any) -> bool:
    """Not one that is sparse, or that is a flat part of several weights."""
    return gradient is not None and gradient.layout == torch.strided and gradient.dim() == 2
