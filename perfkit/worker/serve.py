"""The measuring process, `python -m perfkit.worker`: builds one training and carries out commands on it.

Commands come as lines on standard input. Events go out on a duplicate of standard output, taken before a
workload is loaded, after which prints go to standard error. When standard input ends, the parent is gone, and
this process ends with all that it started.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec
import torch

from perfkit import machine, rules, workloads
from perfkit.old_train import Training
from perfkit.recipe import Recipe
from perfkit.simulate.gpus import gpu_of
from perfkit.worker import (
    collectives,
    device,
    kernels,
    loader,
    memory,
    messages,
    observe,
    parity,
    profiler,
    simulated,
    syncs,
)  # fmt: skip
from perfkit.worker.failures import explain
from perfkit.worker.harness import Harness

_PROGRESS_INTERVAL_S = 0.1


def main() -> None:
    """Serves one parent until it has no more commands."""
    out = _own_channel()
    commands: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    session = Session(out)
    try:
        while True:
            command = messages.decode_command(commands.get())
            session.send(messages.Answer(session.carry_out(command)))
    except BaseException as problem:  # whatever it is, the parent must hear of it
        traceback.print_exception(problem, file=sys.stderr)
        sys.stderr.flush()
        session.send(explain(problem))
    finally:
        end_group()


def _own_channel() -> TextIO:
    channel = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return channel


def _listen(commands: queue.Queue[bytes]) -> None:
    buffer = b""
    # os.read, not sys.stdin: a thread that blocks in a buffered reader keeps the interpreter from ending.
    while chunk := os.read(0, 65536):
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            commands.put(line)
    end_group()


def end_group() -> None:
    """Ends this process and every process that it started, at once."""
    if os.name == "posix" and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    for process in machine.process_tree()[1:]:
        process.kill()
    os._exit(1)


class Session:
    """One training, and what can be done with it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last_progress = 0.0
        self._reported = 0
        """Steps of the block under way that the parent knows."""
        self._workload: Any = None
        self._device: torch.device
        self._harness: Harness

    def send(self, event: messages.AnyEvent) -> None:
        """One event to the parent."""
        self._out.write(messages.encode(event))
        self._out.flush()

    def _progress(
        self, phase: str, done: int, total: int, step_s: Sequence[float] = (), samples_per_step: int = 0
    ) -> None:
        now = time.monotonic()
        if done == total or now - self._last_progress >= _PROGRESS_INTERVAL_S:
            self._last_progress = now
            recent = step_s[self._reported if len(step_s) > self._reported else 0 :]
            mean = sum(recent) / len(recent) if recent else None
            self._reported = 0 if done == total else len(step_s)
            self.send(messages.Progress(phase, done, total, mean, samples_per_step))

    def carry_out(self, command: messages.AnyCommand) -> msgspec.Struct:  # noqa: C901, PLR0911, PLR0912
        """The answer to a command."""
        match command:
            case messages.Describe():
                return self._describe(command)
            case messages.Join():
                return _join(command)
            case messages.Train():
                return self._train(command)
            case messages.MeasureBlock(samples, seconds, settle, queues):
                block = self._harness.block(samples, seconds, settle, queues)
                loader.wait_for_idle_loader()
                return block
            case messages.MeasureCeiling(samples):
                return self._harness.ceiling(samples)
            case messages.ReadPeak():
                recompiles = observe.compile_counters().graphs - self._harness.first_graphs
                return messages.Peak(*self._harness.device.peak(), recompiles)
            case messages.MeasureCommunication(samples):
                return collectives.measure(self._harness, samples)
            case messages.MeasureMemory():
                return memory.measure(self._harness)
            case messages.MeasureKernels():
                return kernels.measure(self._harness)
            case messages.RecordProfile():
                if isinstance(self._harness, simulated.SimulatedHarness):
                    return simulated.profile(self._harness, command)
                return profiler.profile(self._harness, command)
            case messages.FindSyncs(steps):
                return syncs.report(self._harness, steps)
            case messages.JudgeAnswer(checks, source):
                from perfkit.puzzles import judge

                return judge.judge(checks, source)
            case messages.CheckParity(exactness=exactness, seed=seed, steps=steps):
                self._progress("comparing losses and outputs", 0, 1)
                recipe = Recipe.from_dict(command.recipe)
                return parity.check(self._workload, recipe, self._device, exactness, seed, steps)

    def _describe(self, command: messages.Describe) -> messages.Description:
        options = workloads.options_for(workloads.find(command.workload), command.preset, command.options)
        self._workload = workloads.load(command.workload, options)
        if sheet := gpu_of(command.device):
            facts = simulated.facts(sheet)
        else:
            self._device = torch.device(command.device)
            facts = _facts(self._device)
        return messages.Description(
            workloads.reference(command.workload), options, sorted(rules.offers(self._workload)), facts,
            workloads.convolves(self._workload),
        )  # fmt: skip

    def _train(self, command: messages.Train) -> messages.Trained:
        self._progress("building", 0, 1)
        harness: Harness
        if command.planned:
            harness = simulated.SimulatedHarness(self._workload, command, self._progress)
        else:
            recipe = Recipe.from_dict(command.recipe)
            made = Training(self._workload, recipe, self._device, command.seed)
            if command.batch_times:
                loader.time_loader(made.loader, command.batch_times)
            harness = Harness(made, progress=self._progress)
        self._harness, training = harness, harness.training
        startup_s = time.time() - command.started
        first, losses = harness.first_steps(command.loss_steps)
        mechanisms, batch_bytes = harness.mechanisms()
        warm = harness.warm_up(command.warmup_s)
        harness.device.reset_peak()
        return messages.Trained(
            recipe=training.recipe.to_dict(),
            startup_s=startup_s, first=first, warm=warm, losses=losses, mechanisms=mechanisms,
            batch_bytes_per_sample=batch_bytes, samples_per_step=harness.samples_per_step,
            compiled=observe.is_compiled(training.model),
            compile_counters=observe.compile_counters(), data_on_device=observe.is_resident(training.loader),
            batch_norm=any("BatchNorm" in type(part).__name__ for part in training.model.modules()),
            weights="" if command.planned else getattr(self._workload, "weights", ""),
            malloc=os.environ.get("GLIBC_TUNABLES", ""),
            wait_policy=os.environ.get("OMP_WAIT_POLICY", ""),
        )  # fmt: skip


def _join(command: messages.Join) -> messages.Ready:
    names = ("rank", "local_rank", "world_size", "master_addr", "master_port")
    os.environ.update({name.upper(): str(getattr(command, name)) for name in names})
    if command.master_addr == "127.0.0.1":  # else gloo resolves the host's name, which may be unknown
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    torch.set_num_threads(max(1, torch.get_num_threads() // command.local_world_size))
    return messages.Ready()


def _facts(where: torch.device) -> messages.DeviceFacts:
    return messages.DeviceFacts(**device.facts(where))
