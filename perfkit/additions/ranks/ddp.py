"""Models in `DistributedDataParallel`: what is set on them, and what torch times of their exchange."""

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from perfkit.additions.ranks.messages import LIMIT, Ddp
from perfkit.additions.ranks.switches import FLAGS, GRADIENTS, NO_SYNC, OF_DDP, THREADS
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.script import Callback, Script, ScriptStep, is_capturing
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.lines import Sampler
from perfkit.results.schema import Mechanism
from perfkit.worker import checks

NEVER = 1 << 30  # of so many passes, torch times one
_HOOK = "_compress_hook"  # of `default_hooks`, after the type


class Setting(Callback):
    """Sets the switches that are wanted on this rank, and proves them."""

    def __init__(self, script: Script, wanted: dict[str, Any]) -> None:
        self._script = script
        self._wanted = wanted
        self._ddps: list[Any] = []
        self._buckets = 0
        self._usual = self._passes = 0  # of a step, and of the one under way
        self._unsent = 0  # passes of all steps that sent nothing
        self._is_sent = self._were_sent = True
        self._refused = ""  # why torch does not take a hook
        if wanted:
            hooks.around(DistributedDataParallel, "__init__", self._make)
        if wanted.get(NO_SYNC):
            hooks.around(DistributedDataParallel, "forward", self._forward)

    def _make(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(plain).bind(model, *args, **kwargs).arguments
        given |= {OF_DDP[name]: value for name, value in self._wanted.items() if name in OF_DDP}
        del given["self"]
        plain(model, **given)
        self._ddps.append(model)
        if (value := self._wanted.get(GRADIENTS, "default")) != "default":
            try:
                model.register_comm_hook(None, getattr(default_hooks, value + _HOOK))
            except (TypeError, RuntimeError) as problem:  # by torch's own rules, or there is one already
                self._refused = str(problem).splitlines()[0]

    def _forward(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients are sent in the last pass of a step, which has as many as the step before."""
        if torch.is_grad_enabled() and model.training:
            self._passes += 1
            self._is_sent = self._passes >= self._usual
            if not self._is_sent:
                self._unsent += 1
            model.require_backward_grad_sync = self._is_sent
        return plain(model, *args, **kwargs)

    def on_steps(self, steps: list[ScriptStep]) -> None:
        self._were_sent &= self._is_sent
        self._usual = self._passes // len(steps)
        self._passes = 0
        if self._ddps and self._script.steps.count <= LIMIT.rebuilt:
            # In the main thread: another one would wait there for the backward pass under way.
            self._buckets = len(buckets_of(self._ddps[0]._get_ddp_logging_data()))

    def proofs(self) -> list[Mechanism]:
        """Whether each switch is in effect on this rank."""
        read = [each for each in self._read() if each[0] in self._wanted]
        own = [Mechanism(name, value == self._wanted[name], how) for name, value, how in read]
        return checks.verify(self._script.view(), self._script.toggles) + own

    def _read(self) -> Iterator[tuple[str, Any, str]]:
        threads = torch.get_num_threads()
        yield THREADS, threads, f"torch computes with {threads} threads"
        if not self._ddps:
            for name in (*OF_DDP, NO_SYNC, GRADIENTS):
                yield name, None, "no DistributedDataParallel was made"
            return
        model = self._ddps[0]
        for name in FLAGS:
            value = bool(getattr(model, name))
            yield name, value, f"the model's {name} is {value}"
        size = int(model.bucket_bytes_cap) >> 20
        yield "bucket_mb", size, f"buckets of at most {size} MB: there are {self._buckets}"
        yield NO_SYNC, *self._read_sends()
        yield GRADIENTS, *self._read_gradients(model)

    def _read_sends(self) -> tuple[bool, str]:
        text = f"{self._unsent} of {self._script.backwards} backward passes sent nothing"
        if not self._were_sent:
            text += ", and a step was taken before its gradients were sent"
        return bool(self._unsent) and self._were_sent, text

    def _read_gradients(self, model: Any) -> tuple[str, str]:
        if self._refused:
            return "default", f"torch refuses it: {self._refused}"
        if not model._comm_hooks:
            return "default", "the model has no hook for its gradients"
        name = model._comm_hooks[0][0].__name__
        return name.removesuffix(_HOOK), f"the model's hook for its gradients is {name}"


def buckets_of(told: dict[str, Any]) -> list[int]:
    """Bytes of each bucket, by what torch tells of a model."""
    sizes = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes", ""))
    return [int(size) for size in sizes.split(",") if size.strip()]


@dataclass(slots=True)
class StepExchange:
    """The gradient exchange of one step: seconds, and how often; `is_read`: whether torch timed all of it."""

    exposed: float = 0.0
    hidden: float = 0.0
    syncs: int = 0
    is_read: bool = True


@dataclass
class SeenDdp:
    """A model: the line that made it, what torch told of it last, and when that exchange ended."""

    where: str
    told: Any
    ended: int = 0
    unused: int | None = None  # most bytes of parameters without a gradient; None until torch has told
    known: frozenset[int] = frozenset()  # ids of parameters that trained when it was made: it keeps them
    sent: int = 0  # passes whose exchange torch has timed


class DdpExchange:
    """What the exchange of each model's gradients takes, as torch has timed it."""

    def __init__(self, script: Script, sampler: Sampler) -> None:
        self._script = script
        self._sampler = sampler
        self.models = dict[Any, SeenDdp]()  # only the thread that trains asks torch: others would wait there
        self._step = StepExchange()  # of the step under way
        self._usual = StepExchange(is_read=False)  # as in the last step that was read
        self._usual_backward_s = 0.0
        self._every = 1  # a pass in so many steps is read
        self.rates = list[Callable[[int], None]]()  # have torch time one pass in so many, of models on CPUs

    def make(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        plain(model, *args, **kwargs)
        where = next(self._sampler.lines(sys._getframe(1)), "")
        known = frozenset(id(each) for each in model.module.parameters() if each.requires_grad)
        self.models[model] = SeenDdp(where, model.logger._get_ddp_logging_data(), known=known)
        # On a GPU, torch waits for the device in each pass that it times: the first ten, then each tenth.
        model._set_ddp_runtime_logging_sample_rate(10)
        if model.device_type == "cpu":
            self.rates.append(model.reducer._set_ddp_runtime_logging_sample_rate)

    def backward(self, plain: Any, *args: Any, **kwargs: Any) -> None:
        """Does a backward pass; what torch has timed in it is read afterwards."""
        for set_rate in self.rates:
            set_rate(1)
        start = clock()
        plain(*args, **kwargs)
        took = clock() - start
        usual = self._usual_backward_s = 0.9 * (self._usual_backward_s or took) + 0.1 * took
        count = self._script.steps.count
        # All first ones are read, then few, and those that take unusually long; none during a capture.
        if (took >= 2 * usual or count % self._every == 0) and not is_capturing():
            for model, seen in self.models.items():
                self._read(model, seen, took)
            if count >= LIMIT.all_read:
                self._every = min(LIMIT.rarest, math.ceil(LIMIT.reads_s / max(usual, 1e-9)))
        else:
            self._step.is_read = False
        for set_rate in self.rates:  # else torch would work in the next forward pass, for 50 µs
            set_rate(NEVER)

    def _read(self, model: Any, seen: SeenDdp, took: float) -> None:
        model.logger.set_runtime_stats_and_log()  # torch itself does so in the next forward pass
        told = model.logger._get_ddp_logging_data()
        times = told.ints_map  # its texts are made only when they are asked for, which takes longer
        end = times.get("backward_comm_time_end", 0)
        is_on_cpu = model.device_type == "cpu"
        if end in (0, seen.ended):  # it had no part in this pass, or exchanges nothing
            if not is_on_cpu and model.require_forward_param_sync:
                self._step.is_read = False  # torch has not timed this pass
            return
        seen.told = told
        seen.ended = end
        seen.sent += 1
        seen.unused = max(seen.unused or 0, times.get("unused_parameter_size", 0))
        hidden = max(0.0, times["backward_compute_comm_overlap_time"] / 1e9)
        exposed = max(0.0, times["backward_comm_time"] / 1e9 - hidden)
        # On a GPU, the pass has only been launched by now.
        self._step.exposed += min(took, exposed) if is_on_cpu else exposed
        self._step.hidden += hidden
        self._step.syncs += 1

    def end_step(self, count: int) -> StepExchange:
        """That of each of so many steps that have ended; one that was not read is as the last that was."""
        now = self._step
        self._step = StepExchange()
        if not now.is_read:
            return self._usual
        ended = StepExchange(now.exposed / count, now.hidden / count, now.syncs // count)
        if ended.syncs:
            self._usual = StepExchange(ended.exposed, ended.hidden, ended.syncs, is_read=False)
        return ended

    def ddps(self) -> Iterator[Ddp]:
        """The models, by what torch told of each when it was read."""
        for model, seen in list(self.models.items()):
            told = seen.told.strs_map | seen.told.ints_map
            named = model.module.named_parameters()
            searches = told.get("find_unused_parameters") and not model.static_graph
            yield Ddp(
                where=seen.where,
                sent=seen.sent,
                buckets=buckets_of(told),
                bytes=told.get("total_parameter_size_bytes", 0),
                needs_no_search=bool(searches and seen.unused == 0),
                buffers={name: each.nbytes for name, each in model.module.named_buffers()},
                backend=str(told.get("backend_name", "")),
                cap=told.get("bucket_cap_bytes", 0),
                unknown=[name for name, each in named if each.requires_grad and id(each) not in seen.known],
                is_compiled=hasattr(model.module, "_orig_mod"),
                sync_norms=sum(isinstance(part, torch.nn.SyncBatchNorm) for part in model.modules()),
            )
