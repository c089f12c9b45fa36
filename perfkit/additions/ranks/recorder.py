"""A rank's notes on its own training, taken in the thread that trains."""

import contextlib
import functools
import os
import socket
import sys
import threading
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch.nn.parallel import DistributedDataParallel

from perfkit.additions.ranks.brief import BriefSteps
from perfkit.additions.ranks.ddp import DdpExchange, Setting, StepExchange
from perfkit.additions.ranks.messages import BUFFERS, LIMIT, Exchange, LoaderOfRank, State, StepOfRank
from perfkit.additions.scripts import hooks, messages
from perfkit.additions.scripts.evidence import dense_rows
from perfkit.additions.scripts.run_account import Evaluations
from perfkit.additions.scripts.script import Callback, Script, ScriptStep, is_capturing
from perfkit.additions.scripts.weights import ZeroRates
from perfkit.additions.shared.clock import clock, process_clock
from perfkit.additions.shared.sampler import Sampler
from perfkit.additions.shared.tensors import checksum, first_tensor, tensors
from perfkit.worker.checks import facts


class RankRecorder(Callback):
    """Notes what the script does. Only the thread that trains changes the notes."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.evaluations = Evaluations(script)
        self.setting = Setting(script, script.settings.ranked)
        self.sampler = Sampler(self.evaluations.part_now, script.settings.place)
        self.exchange = DdpExchange(script, self.sampler)
        self.brief = BriefSteps(script, self.on_steps)
        self.zero_rates = ZeroRates()
        self.rank: int | None = None  # None until the process has joined; earlier steps are not reported
        self.world = 1
        self._cpu_before_s = 0.0  # CPU time of the process before the steps that are reported
        self._state = State(rank=0)  # notes as things happen; `snapshot` adds the rest
        self._steps = list[tuple[int, ScriptStep, StepExchange]]()  # with their numbers
        self._step_collectives = dict[tuple[str, str], Exchange]()  # in the step under way
        self._collectives = dict[tuple[str, str], Exchange]()  # in steps that have ended
        self._epochs = defaultdict[int, list[list[int]]](list)  # by data set

    def listen(self) -> None:
        """Hooks the exchanges of the script."""
        hooks.around(DistributedDataParallel, "__init__", self.exchange.make)
        hooks.around(torch.autograd, "backward", self.exchange.backward)
        hooks.wrap("torch.set_num_threads", self._set_threads)
        for module in (dist, dist.distributed_c10d):
            for name in hooks.TABLES["collectives"]["names"]:
                hooks.around(module, name, functools.partial(self._collective, name))
        hooks.around(DistributedDataParallel, "_sync_buffers", functools.partial(self._collective, BUFFERS))

    def _set_threads(self, plain: Any, *args: Any, **kwargs: Any) -> None:
        self.script.calls.note("threads")
        plain(*args, **kwargs)

    def _collective(self, name: str, plain: Any, *args: Any, **kwargs: Any) -> Any:
        is_trainer = threading.get_ident() == self.script.steps.trainer
        is_in_hook = self.script.parts.now == "backward" and kwargs.get("async_op")  # of gradients
        if self._state.inside or not is_trainer or is_in_hook or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        where = next(self.sampler.lines(sys._getframe(1)), "")
        start = clock()
        self._state.inside = name
        try:
            return self.script.parts.do("exchange", plain, *args, **kwargs)
        finally:
            self._state.inside = ""
            seconds = clock() - start
            payload = next(iter([*args, *kwargs.values()]), None)
            size = sum(tensor.nbytes for tensor in tensors(payload, depth=1))
            call = self._step_collectives.setdefault((name, where), Exchange(name, where))
            call.count += 1
            call.seconds += seconds
            call.bytes += size

    def on_epoch(self, loader: Any, indices: Any) -> None:
        epochs = self._epochs[id(loader.dataset)]
        if len(epochs) < LIMIT.rows and isinstance(indices, list):
            epochs.append([index for index in indices[: LIMIT.rows_of_a_batch] if isinstance(index, int)])

    def on_input(self, given: Any) -> None:
        count = self.script.steps.count
        if count >= LIMIT.rows or first_tensor(given) is None or is_capturing():
            return
        self.script.calls.note("input")
        rows = self._state.rows.setdefault(count, [])
        if len(rows) < LIMIT.most_rows and not self._are_sharded():
            rows += _row_sums([tensor for tensor in tensors(given) if tensor.dim()])

    def on_backward(self) -> None:
        """Notes the weights that a pass computes with: a script may average them after its optimizer."""
        steps = self.script.steps
        is_due = steps.count in LIMIT.weighed and steps.count not in self._state.weights
        if is_due and not is_capturing() and not self._are_sharded():
            start = clock()
            self._state.weights[steps.count] = checksum(self.script.parameters(), LIMIT.most_elements)
            steps.since += clock() - start  # it is not a part of the step

    def _are_sharded(self) -> bool:
        """Whether each rank holds a shard of the weights (`DTensor`); such ranks may share rows, too."""
        return any(hasattr(weight, "device_mesh") for weight in self.script.parameters())

    def on_steps(self, steps: list[ScriptStep]) -> None:
        exchange = self.exchange.end_step(len(steps))
        if not self.brief.is_on:
            self.zero_rates.look(self.script.updates.optimizers)
        for number, step in enumerate(steps, self.script.steps.count - len(steps) + 1):
            if number in LIMIT.weighed and not self._are_sharded():
                self._state.embeddings = dense_rows(self.script)
            if self.rank is not None and len(self._steps) < LIMIT.kept:
                self._steps.append((number, step, exchange))
        for key, call in self._step_collectives.items():
            total = self._collectives.setdefault(key, Exchange(*key))
            total.count += call.count
            total.seconds += call.seconds
            total.bytes += call.bytes
        self._step_collectives.clear()
        self._state.threads = torch.get_num_threads()  # the thread that reports may have a different number
        if self.script.steps.count == LIMIT.skipped:  # waits until here explain none of the later steps
            self.sampler.times.clear()
            self._cpu_before_s = process_clock()
            self._collectives = {key: Exchange(*key) for key in self._collectives}

    def _step(self, number: int, step: ScriptStep, exchange: StepExchange) -> StepOfRank:
        forward = step.forward_samples
        reads_for_all = step.samples == self.world * forward
        samples = forward if reads_for_all else step.samples
        backward = step.spent["backward"]
        exposed = exchange.exposed if exchange.is_read else min(exchange.exposed, backward)
        backward = max(0.0, backward - exposed)
        parts = [step.waited, step.spent["forward"], backward, step.spent["optimizer"]]
        exchange_s = step.spent["exchange"] + exposed
        own = max(0.0, step.seconds - sum(parts) - exchange_s)
        gradients = exchange.hidden, exchange.is_read, exchange.syncs
        parts += [own, exchange_s]
        return StepOfRank(number, step.seconds, parts, *gradients, samples, step.elements, sorted(step.marks))

    def snapshot(self) -> State:
        """The notes until now; any thread may ask for them."""
        script = self.script
        return structs.replace(
            self._state,
            rank=self.rank,
            steps=[self._step(*notes) for notes in list(self._steps)],
            exchanges=list(self._collectives.values()),
            loader=self._loader(),
            ddps=list(self.exchange.ddps()),
            zero_rate=self.zero_rates.found(script),
            optimizer=self._lines_of_optimizer(),
            set_threads=self._sites("threads"),
            is_of_agent="TORCHELASTIC_RUN_ID" in os.environ,
            device=script.device.type,
            gpu=f"{socket.gethostname()} {facts(script.device).uuid}" if script.device.type == "cuda" else "",
            forward=self._lines_of_forward(),
            backward=self._sites("backward"),
            inputs=self._sites("input"),
            part=self.part_now(),
            cpu_s=process_clock() - self._cpu_before_s,
            count=script.steps.count,
            last_step_s=clock() - script.steps.since,
            modes=_modes(),
            notes=[*script.notes, *script.files.notes],
            mechanisms=self.setting.proofs(),
        )

    def part_now(self) -> str:
        """The current part of the run; calls of a model inside another one (`model.module`) are not seen."""
        part = self.evaluations.part_now()
        evaluates = any(not model.module.training for model in list(self.exchange.models))  # more may be made
        return messages.EVALUATION if part == messages.OWN and evaluates else part

    def _loader(self) -> LoaderOfRank | None:
        loader: Any = self.script.loader
        if loader is None:
            return None
        sampler, batches = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
        samplers = (sampler, batches, getattr(batches, "sampler", None))
        is_random = isinstance(sampler, torch.utils.data.RandomSampler)
        rows = drawn = None
        with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
            drawn = len(loader.sampler)
            rows = len(loader.dataset)
        return LoaderOfRank(
            where=next(iter(self._sites("loader")), ""),
            workers=getattr(loader, "num_workers", 0),
            rows=rows,
            drawn=drawn,
            is_divided=any(hasattr(candidate, name) for candidate in samplers for name in LIMIT.of_divided),
            is_shuffled=is_random or bool(getattr(sampler, "shuffle", False)),
            epochs=self._epochs.get(id(getattr(loader, "dataset", None)), []),
        )

    def _lines_of_forward(self) -> list[str]:
        sites = self.script.calls.sites
        loop = [frame for site in sites["backward"] for frame in site.frames]
        return [frame.place for site in sites["forward"][:1] for frame in site.frames if frame not in loop]

    def _lines_of_optimizer(self) -> list[str]:
        sites = self.script.calls.sites["optimizer"]
        return [frame.place for frame in sites[0].frames[:2]] if len(sites) == 1 else []

    def _sites(self, role: str) -> list[str]:
        return [site.place for site in self.script.calls.sites[role] if site.frames]


def _modes() -> list[str]:
    """Modes of this process that make forward and backward passes slower."""
    modes = {
        "anomaly detection": torch.is_anomaly_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "a profiler": torch.autograd.profiler._is_profiler_enabled,  # of any thread
    }
    return [name for name, is_on in modes.items() if is_on]


def _row_sums(inputs: list[torch.Tensor]) -> list[int]:
    """A checksum of each of the first rows, over all inputs that have as many rows as the first one."""
    if any(x.layout != torch.strided or x.is_nested or hasattr(x, "device_mesh") for x in inputs):
        return []  # their rows cannot be taken one by one
    batches = [x[: LIMIT.rows_of_a_batch].detach().cpu() for x in inputs if len(x) == len(inputs[0])]
    return [checksum(row, LIMIT.elements_of_a_row) for row in zip(*batches, strict=True)]
