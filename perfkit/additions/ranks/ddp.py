"""Models in `DistributedDataParallel`: the switches set on them, and torch's timings of their exchange."""

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
from perfkit.additions.shared.sampler import Sampler
from perfkit.results.schema import Mechanism
from perfkit.worker import checks

NEVER = 1 << 30  # passes, of which torch times one
_HOOK = "_compress_hook"  # of `default_hooks`, after the type


class Setting(Callback):
    """Sets the requested switches on this rank, and proves that they are in effect."""

    def __init__(self, script: Script, switches: dict[str, Any]) -> None:
        self._script = script
        self._switches = switches
        self._ddps: list[Any] = []
        self._buckets = 0
        self._passes = 0  # forward passes in the step under way
        self._passes_per_step = 0  # of the step before
        self._unsent = 0  # passes in all steps that sent nothing
        self._is_sent = True  # whether the last pass sends gradients
        self._were_sent = True  # whether the last pass of each step did
        self._refusal = ""  # why torch does not take a hook
        if switches:
            hooks.around(DistributedDataParallel, "__init__", self._make)
        if switches.get(NO_SYNC):
            hooks.around(DistributedDataParallel, "forward", self._forward)

    def _make(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        arguments = inspect.signature(plain).bind(model, *args, **kwargs).arguments
        arguments |= {OF_DDP[name]: value for name, value in self._switches.items() if name in OF_DDP}
        del arguments["self"]
        plain(model, **arguments)
        self._ddps.append(model)
        if (value := self._switches.get(GRADIENTS, "default")) != "default":
            try:
                model.register_comm_hook(None, getattr(default_hooks, value + _HOOK))
            except (TypeError, RuntimeError) as problem:  # by torch's own rules, or there is a hook already
                self._refusal = str(problem).splitlines()[0]

    def _forward(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Sends gradients in the last pass of a step only; a step has as many passes as the step before."""
        if torch.is_grad_enabled() and model.training:
            self._passes += 1
            self._is_sent = self._passes >= self._passes_per_step
            if not self._is_sent:
                self._unsent += 1
            model.require_backward_grad_sync = self._is_sent
        return plain(model, *args, **kwargs)

    def on_steps(self, steps: list[ScriptStep]) -> None:
        self._were_sent &= self._is_sent
        self._passes_per_step = self._passes // len(steps)
        self._passes = 0
        if self._ddps and self._script.steps.count <= LIMIT.rebuilt:
            # In the main thread: any other would wait here for the backward pass under way.
            self._buckets = len(buckets_of(self._ddps[0]._get_ddp_logging_data()))

    def proofs(self) -> list[Mechanism]:
        """Whether each switch is in effect on this rank."""
        proofs = checks.verify(self._script.view(), self._script.toggles)
        for name, value, evidence in self._evidence():
            if name in self._switches:
                proofs.append(Mechanism(name, value == self._switches[name], evidence))
        return proofs

    def _evidence(self) -> Iterator[tuple[str, Any, str]]:
        """The current value of each switch, and the evidence for it."""
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
        yield NO_SYNC, *self._evidence_of_no_sync()
        yield GRADIENTS, *self._evidence_of_hook(model)

    def _evidence_of_no_sync(self) -> tuple[bool, str]:
        text = f"{self._unsent} of {self._script.updates.backwards} backward passes sent nothing"
        if not self._were_sent:
            text += ", and a step was taken before its gradients were sent"
        return bool(self._unsent) and self._were_sent, text

    def _evidence_of_hook(self, model: Any) -> tuple[str, str]:
        if self._refusal:
            return "default", f"torch refuses it: {self._refusal}"
        if not model._comm_hooks:
            return "default", "the model has no hook for its gradients"
        name = model._comm_hooks[0][0].__name__
        return name.removesuffix(_HOOK), f"the model's hook for its gradients is {name}"


def buckets_of(logging_data: dict[str, Any]) -> list[int]:
    """The bytes of each bucket of a model, from torch's logging data."""
    sizes = str(logging_data.get("rebuilt_bucket_sizes") or logging_data.get("bucket_sizes", ""))
    return [int(size) for size in sizes.split(",") if size.strip()]


@dataclass(slots=True)
class StepExchange:
    """The gradient exchange of one step: seconds, and how many; `is_read`: torch has timed all of it."""

    exposed: float = 0.0
    hidden: float = 0.0
    syncs: int = 0
    is_read: bool = True


@dataclass
class DdpRecord:
    """What is known of a model: the line that made it, and torch's logging data when it was last read."""

    where: str
    logging_data: Any
    end: int = 0  # of the exchange in these data, by torch's clock
    unused: int | None = None  # most bytes without a gradient; None until torch has timed a pass
    exchanged: frozenset[int] = frozenset()  # ids of the parameters that trained when it was made
    sent: int = 0  # passes whose exchange torch has timed


class DdpExchange:
    """The time that each model's exchange of gradients takes, measured by torch."""

    def __init__(self, script: Script, sampler: Sampler) -> None:
        self._script = script
        self._sampler = sampler
        self.models = dict[Any, DdpRecord]()  # only the training thread asks torch: others would wait there
        self._step = StepExchange()  # of the step under way
        self._last_read = StepExchange(is_read=False)
        self._usual_backward_s = 0.0
        self._interval = 1  # steps, of which one is read
        self.rate_setters = list[Callable[[int], None]]()  # of CPU models: torch times one of so many passes

    def make(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        plain(model, *args, **kwargs)
        where = next(self._sampler.lines(sys._getframe(1)), "")
        exchanged = frozenset(id(weight) for weight in model.module.parameters() if weight.requires_grad)
        self.models[model] = DdpRecord(where, model.logger._get_ddp_logging_data(), exchanged=exchanged)
        # On a GPU, torch waits for the device in each pass that it times: the first ten, then each tenth.
        model._set_ddp_runtime_logging_sample_rate(10)
        if model.device_type == "cpu":
            self.rate_setters.append(model.reducer._set_ddp_runtime_logging_sample_rate)

    def backward(self, plain: Any, *args: Any, **kwargs: Any) -> None:
        """Does a backward pass, then reads torch's timings of it."""
        for set_rate in self.rate_setters:
            set_rate(1)
        start = clock()
        plain(*args, **kwargs)
        seconds = clock() - start
        usual = self._usual_backward_s = 0.9 * (self._usual_backward_s or seconds) + 0.1 * seconds
        count = self._script.steps.count
        # Reads all first passes, then few, and those that take unusually long; none during a capture.
        if (seconds >= 2 * usual or count % self._interval == 0) and not is_capturing():
            for model, record in self.models.items():
                self._read(model, record, seconds)
            if count >= LIMIT.all_read:
                self._interval = min(LIMIT.rarest, math.ceil(LIMIT.reads_s / max(usual, 1e-9)))
        else:
            self._step.is_read = False
        for set_rate in self.rate_setters:  # else torch would work in the next forward pass, for 50 µs
            set_rate(NEVER)

    def _read(self, model: Any, record: DdpRecord, backward_s: float) -> None:
        model.logger.set_runtime_stats_and_log()  # as torch does in the next forward pass
        logging_data = model.logger._get_ddp_logging_data()
        times = logging_data.ints_map  # torch makes the texts on demand, which takes longer
        end = times.get("backward_comm_time_end", 0)
        is_on_cpu = model.device_type == "cpu"
        if end in (0, record.end):  # the model had no part in this pass, or exchanges nothing
            if not is_on_cpu and model.require_forward_param_sync:
                self._step.is_read = False  # torch has not timed this pass
            return
        record.logging_data = logging_data
        record.end = end
        record.sent += 1
        record.unused = max(record.unused or 0, times.get("unused_parameter_size", 0))
        hidden = max(0.0, times["backward_compute_comm_overlap_time"] / 1e9)
        exposed = max(0.0, times["backward_comm_time"] / 1e9 - hidden)
        # On a GPU, the pass has only been launched by now.
        self._step.exposed += min(backward_s, exposed) if is_on_cpu else exposed
        self._step.hidden += hidden
        self._step.syncs += 1

    def end_step(self, count: int) -> StepExchange:
        """The exchange of each of the `count` steps that just ended, or of the last step that was read."""
        total = self._step
        self._step = StepExchange()
        if not total.is_read:
            return self._last_read
        step = StepExchange(total.exposed / count, total.hidden / count, total.syncs // count)
        if step.syncs:
            self._last_read = StepExchange(step.exposed, step.hidden, step.syncs, is_read=False)
        return step

    def ddps(self) -> Iterator[Ddp]:
        """The models, described by torch's logging data when each was last read."""
        for model, record in list(self.models.items()):
            logging_data = record.logging_data.strs_map | record.logging_data.ints_map
            parameters = model.module.named_parameters()
            searches = logging_data.get("find_unused_parameters") and not model.static_graph
            yield Ddp(
                where=record.where,
                sent=record.sent,
                buckets=buckets_of(logging_data),
                bytes=logging_data.get("total_parameter_size_bytes", 0),
                needs_no_search=bool(searches and record.unused == 0),
                buffers={name: buffer.nbytes for name, buffer in model.module.named_buffers()},
                backend=str(logging_data.get("backend_name", "")),
                cap=logging_data.get("bucket_cap_bytes", 0),
                unknown=[name for name, p in parameters if p.requires_grad and id(p) not in record.exchanged],
                is_compiled=hasattr(model.module, "_orig_mod"),
                sync_norms=sum(isinstance(part, torch.nn.SyncBatchNorm) for part in model.modules()),
            )
