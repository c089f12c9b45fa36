"""The measuring process, `python -m perfkit.worker`: builds one training and carries out commands on it.

Commands come as lines on standard input. Events go out on a duplicate of standard output, taken before
anything else runs, after which prints go to standard error. When standard input ends, the parent is gone, and
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
from pathlib import Path
from typing import Any, TextIO

import msgspec

from perfkit import machine
from perfkit.worker import messages, reports
from perfkit.worker.failures import explain

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
        self._workload: Any = None
        self._harness: Any = None
        self._device: Any = None

    def send(self, event: messages.AnyEvent) -> None:
        """One event to the parent."""
        self._out.write(messages.encode(event))
        self._out.flush()

    def _progress(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._last_progress >= _PROGRESS_INTERVAL_S:
            self._last_progress = now
            self.send(messages.Progress(phase, done, total))

    def carry_out(self, command: messages.AnyCommand) -> msgspec.Struct:  # noqa: PLR0911
        """The answer to a command."""
        match command:
            case messages.Describe():
                return self._describe(command)
            case messages.Join():
                return self._join(command)
            case messages.Train():
                return self._train(command)
            case messages.MeasureBlock(samples, settle, queues):
                return self._block(samples, settle, queues)
            case messages.MeasureCeiling(samples):
                block: messages.Block = self._harness.ceiling(samples)
                return block
            case messages.ReadPeak():
                return self._peak()
            case messages.CheckParity():
                return self._parity(command)
        return self._look_inside(command)

    def _describe(self, command: messages.Describe) -> messages.Description:
        self._progress("importing torch", 0, 1)
        import torch

        from perfkit import workloads
        from perfkit.program import rules
        from perfkit.program import script as scripts

        if scripts.is_script(command.workload):
            self._workload = scripts.Script(Path(command.workload))
            self._workload.check_device(command.device)
            self._device = self._workload.device
            return messages.Description(scripts.REFERENCE, {}, [], _device_facts(self._device))
        options = workloads.options_for(workloads.find(command.workload), command.preset, command.options)
        self._workload = workloads.load(command.workload, options)
        self._device = torch.device(command.device)
        return messages.Description(
            workloads.reference(command.workload), options, sorted(rules.offers(self._workload)),
            _device_facts(self._device), workloads.convolves(self._workload),
        )  # fmt: skip

    def _join(self, command: messages.Join) -> messages.Ready:
        import torch

        names = ("rank", "local_rank", "world_size", "master_addr", "master_port")
        os.environ.update({name.upper(): str(getattr(command, name)) for name in names})
        if command.master_addr == "127.0.0.1":  # else gloo resolves the host's name, which may be unknown
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        torch.set_num_threads(max(1, torch.get_num_threads() // command.local_world_size))
        return messages.Ready()

    def _train(self, command: messages.Train) -> messages.Trained:
        from perfkit.program.recipe import Recipe
        from perfkit.program.script import Script
        from perfkit.program.train import Training
        from perfkit.worker import observe
        from perfkit.worker.harness import Harness

        self._progress("building", 0, 1)
        script = self._workload if isinstance(self._workload, Script) else None
        if script:
            training = script.training()
        else:
            training = Training(self._workload, Recipe.from_dict(command.recipe), self._device, command.seed)
        if command.batch_times:
            from perfkit.worker.loader import time_loader

            time_loader(training.loader, command.batch_times)
        self._harness = harness = Harness(training, progress=self._progress)
        startup_s = time.time() - command.started
        first, losses = harness.first_steps(command.loss_steps)
        # A script may have been changed at will: its samples are counted, and no switch can be checked.
        mechanisms, batch_bytes = (
            ([], harness.count_samples(command.loss_steps)) if script else harness.mechanisms()
        )
        warm = harness.warm_up(command.warmup_s)
        harness.device.reset_peak()
        return messages.Trained(
            recipe=training.recipe.to_dict(), facts=script.facts() if script else {}, startup_s=startup_s,
            first=first, warm=warm, losses=losses, mechanisms=mechanisms, batch_bytes_per_sample=batch_bytes,
            samples_per_step=harness.samples_per_step, compiled=observe.is_compiled(training.model),
            compile_counters=observe.compile_counters(), data_on_device=observe.is_resident(training.loader),
            batch_norm=any("BatchNorm" in type(part).__name__ for part in training.model.modules()),
            weights=getattr(self._workload, "weights", ""), malloc=os.environ.get("GLIBC_TUNABLES", ""),
        )  # fmt: skip

    def _block(self, samples: int, settle: bool, queues: int) -> messages.Block:
        from perfkit.worker.loader import wait_for_idle_loader

        block: messages.Block = self._harness.block(samples, settle, queues)
        wait_for_idle_loader()
        return block

    def _peak(self) -> messages.Peak:
        from perfkit.worker.observe import compile_counters

        allocated, reserved = self._harness.device.peak()
        recompiles = compile_counters().graphs - self._harness.first_graphs
        return messages.Peak(allocated, reserved, recompiles)

    def _parity(self, command: messages.CheckParity) -> reports.ParityReport:
        from perfkit.program.recipe import Recipe
        from perfkit.worker import parity

        self._progress("comparing losses and outputs", 0, 1)
        recipe = Recipe.from_dict(command.recipe)
        return parity.check(
            self._workload, recipe, self._device, command.exactness, command.seed, command.steps
        )

    def _look_inside(self, command: messages.AnyCommand) -> msgspec.Struct:
        """The answer to a command that looks inside the training's steps."""
        from perfkit.worker import collectives, kernels, memory, profiler, syncs

        match command:
            case messages.MeasureCommunication(samples):
                return collectives.measure(self._harness, samples)
            case messages.MeasureMemory():
                return memory.measure(self._harness)
            case messages.MeasureKernels():
                return kernels.measure(self._harness)
            case messages.RecordProfile():
                return profiler.profile(self._harness, command)
            case messages.FindSyncs(steps):
                return syncs.report(self._harness, steps)
        raise AssertionError(command)


def _device_facts(device: Any) -> messages.DeviceFacts:
    import torch

    if device.type != "cuda":
        return messages.DeviceFacts(torch.get_num_threads(), str(torch.__version__))
    properties = torch.cuda.get_device_properties(device)
    return messages.DeviceFacts(
        torch.get_num_threads(),
        str(torch.__version__),
        count=torch.cuda.device_count(),
        name=properties.name,
        uuid=f"GPU-{properties.uuid}",
        bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        cuda=torch.version.cuda,
        cudnn=str(torch.backends.cudnn.version()),
    )
