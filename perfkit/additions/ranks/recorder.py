"""What a rank notes of itself, in the thread that trains."""

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
from perfkit.additions.shared.clock import clock, process_clock
from perfkit.additions.shared.lines import Sampler
from perfkit.additions.shared.tensors import checksum, first_tensor, tensors
from perfkit.worker.checks import facts

_KNOW_RANKS = ("num_replicas", "num_processes", "world_size")  # attributes of samplers that divide their rows


class RankRecorder(Callback):
    """Notes what the script does. Only the thread that trains changes what is noted."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.evaluations = Evaluations(script)
        self.setting = Setting(script, script.settings.ranked)
        self.sampler = Sampler(self.evaluations.part_now, script.settings.place)
        self.exchange = DdpExchange(script, self.sampler)
        self.brief = BriefSteps(script, self.note_timed)
        self.rank: int | None = None  # until the process has joined; steps before are not told
        self.world = 1
        self._began_s = 0.0  # CPU time of the process before the steps that are told
        self._seen = State(rank=0)  # as far as it is noted when it happens
        self._steps = list[tuple[int, ScriptStep, StepExchange]]()  # with their numbers
        self._called = dict[tuple[str, str], Exchange]()  # collectives in the step under way
        self._collectives = dict[tuple[str, str], Exchange]()  # and in steps that have ended
        self._epochs = defaultdict[int, list[list[int]]](list)  # by the data set

    def listen(self) -> None:
        """Sees the exchanges of the script."""
        hooks.around(DistributedDataParallel, "__init__", self.exchange.make)
        hooks.around(torch.autograd, "backward", self.exchange.backward)
        for module in (dist, dist.distributed_c10d):
            for name in hooks.TABLES["collectives"]["names"]:
                hooks.around(module, name, functools.partial(self._collective, name))
        hooks.around(DistributedDataParallel, "_sync_buffers", functools.partial(self._collective, BUFFERS))

    def _collective(self, name: str, plain: Any, *args: Any, **kwargs: Any) -> Any:
        is_trainer = threading.get_ident() == self.script.steps.trainer
        is_of_hook = self.script.part == "backward" and kwargs.get("async_op")  # gradients are counted anyway
        if self._seen.inside or not is_trainer or is_of_hook or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        where = next(self.sampler.lines(sys._getframe(1)), "")
        start = clock()
        self._seen.inside = name
        try:
            return self.script.do("exchange", plain, *args, **kwargs)
        finally:
            self._seen.inside = ""
            took = clock() - start
            given = next(iter([*args, *kwargs.values()]), None)
            sent = sum(each.nbytes for each in tensors(given, depth=1))
            call = self._called.setdefault((name, where), Exchange(name, where))
            call.count += 1
            call.seconds += took
            call.bytes += sent

    def on_epoch(self, loader: Any, indices: Any) -> None:
        epochs = self._epochs[id(loader.dataset)]
        if len(epochs) < LIMIT.rows and isinstance(indices, list):
            epochs.append([index for index in indices[: LIMIT.rows_of_a_batch] if isinstance(index, int)])

    def on_input(self, given: Any) -> None:
        count = self.script.steps.count
        if count >= LIMIT.rows or first_tensor(given) is None or is_capturing():
            return
        self.script.calls.note("input")
        if count == 0 and not self._seen.weights:  # they are as they were made
            self._weigh(0)
        rows = self._seen.rows.setdefault(count, [])
        if len(rows) < LIMIT.most_rows and not self._are_divided():
            rows += _row_sums([each for each in tensors(given) if each.dim()])

    def _weigh(self, step: int) -> None:
        if not self._are_divided():
            self._seen.embeddings = dense_rows(self.script)
            self._seen.weights[step] = checksum(self.script.parameters(), LIMIT.most_elements)

    def _are_divided(self) -> bool:
        """Whether each rank has a part of the weights (a `DTensor`), on purpose; they may share rows, too."""
        return any(hasattr(each, "device_mesh") for each in self.script.parameters())

    def on_steps(self, steps: list[ScriptStep]) -> None:
        exchange = self.exchange.end_step(len(steps))
        for number, step in enumerate(steps, self.script.steps.count - len(steps) + 1):
            if number in LIMIT.weighed:
                self._weigh(number)
            if self.rank is not None and len(self._steps) < LIMIT.kept:
                self._steps.append((number, step, exchange))
        self._count_calls_of_step()
        if self.script.steps.count == LIMIT.skipped:  # what others waited for before explains no step
            self.sampler.times.clear()
            self._began_s = process_clock()
            self._collectives = {key: Exchange(*key) for key in self._collectives}

    def note_timed(self, step: ScriptStep) -> None:
        """A step has ended that was only timed."""
        exchange = self.exchange.end_step(1)
        if len(self._steps) < LIMIT.kept:
            self._steps.append((self.script.steps.count, step, exchange))
        self._count_calls_of_step()

    def _count_calls_of_step(self) -> None:
        for key, call in self._called.items():
            total = self._collectives.setdefault(key, Exchange(*key))
            total.count += call.count
            total.seconds += call.seconds
            total.bytes += call.bytes
        self._called.clear()

    def _step(self, number: int, step: ScriptStep, exchange: StepExchange) -> StepOfRank:
        fed = step.forward_samples
        samples = fed if step.samples == self.world * fed else step.samples  # it may read for all ranks
        backward = step.spent["backward"]
        exposed = exchange.exposed if exchange.is_read else min(exchange.exposed, backward)
        backward = max(0.0, backward - exposed)
        known = [step.waited, step.spent["forward"], backward, step.spent["optimizer"]]
        exchanged = step.spent["exchange"] + exposed
        own = max(0.0, step.seconds - sum(known) - exchanged)
        timed = exchange.hidden, exchange.is_read, exchange.syncs
        parts = [*known, own, exchanged]
        return StepOfRank(number, step.seconds, parts, *timed, samples, step.elements, sorted(step.marks))

    def snapshot(self) -> State:
        """What was noted until now, for any thread."""
        script = self.script
        return structs.replace(
            self._seen,
            rank=self.rank,
            steps=[self._step(*noted) for noted in list(self._steps)],
            exchanges=list(self._collectives.values()),
            loader=self._loader(),
            ddps=list(self.exchange.ddps()),
            threads=torch.get_num_threads(),
            is_of_agent="TORCHELASTIC_RUN_ID" in os.environ,
            device=script.device.type,
            gpu=f"{socket.gethostname()} {facts(script.device).uuid}" if script.device.type == "cuda" else "",
            backward=self._sites("backward"),
            inputs=self._sites("input"),
            part=self.part_now(),
            cpu_s=process_clock() - self._began_s,
            count=script.steps.count,
            last_step_s=clock() - script.steps.since,
            modes=_modes(),
            notes=[*script.notes, *script.files.notes],
            mechanisms=self.setting.proofs(),
        )

    def part_now(self) -> str:
        """What it does at this moment; calls of a model inside another one, `model.module`, are not seen."""
        part = self.evaluations.part_now()
        evaluates = any(not model.module.training for model in list(self.exchange.models))  # it may grow
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
            is_divided=any(hasattr(each, name) for each in samplers for name in _KNOW_RANKS),
            is_shuffled=is_random or bool(getattr(sampler, "shuffle", False)),
            epochs=self._epochs.get(id(getattr(loader, "dataset", None)), []),
        )

    def _sites(self, role: str) -> list[str]:
        return [site.place for site in self.script.calls.sites[role] if site.frames]


def _modes() -> list[str]:
    """What is on in this process that makes forward and backward passes slower."""
    asked = {
        "anomaly detection": torch.is_anomaly_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "a profiler": torch.autograd.profiler._is_profiler_enabled,  # of any thread
    }
    return [name for name, is_on in asked.items() if is_on]


def _row_sums(inputs: list[torch.Tensor]) -> list[int]:
    """A checksum of each of the first rows, over all inputs that have as many rows as the first one."""
    if any(each.layout != torch.strided or each.is_nested or hasattr(each, "device_mesh") for each in inputs):
        return []  # these have no rows to be taken one by one
    alike = [each[: LIMIT.rows_of_a_batch].detach().cpu() for each in inputs if len(each) == len(inputs[0])]
    return [checksum(row, LIMIT.elements_of_a_row) for row in zip(*alike, strict=True)]
