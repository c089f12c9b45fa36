"""The child's entry: `python -m perfkit.worker`. Builds one training, measures blocks when told to.

Commands come as JSON lines on standard input, events go out as JSON lines on a channel of their own: a
duplicate of standard output, taken before anything else runs, after which prints go to standard error. When
standard input ends, the parent is gone, and so is this process with all that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from perfkit.errors import PerfkitError

_PROGRESS_INTERVAL_S = 0.1


def main() -> None:
    """Serves one parent until it has no more commands."""
    out = _own_channel()
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    session = _Session(out)
    try:
        while True:
            command = commands.get()
            session.send(command["do"], **getattr(session, command["do"])(**command.get("with", {})))
    except BaseException as problem:  # whatever it is, the parent must hear of it
        _log_traceback(problem)
        session.send("error", **explain(problem))
    finally:
        end_group()


def _own_channel() -> TextIO:
    channel = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return channel


def _listen(commands: queue.Queue[dict[str, Any]]) -> None:
    buffer = b""
    # os.read, not sys.stdin: a thread that blocks in a buffered reader keeps the interpreter from ending.
    while chunk := os.read(0, 65536):
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            commands.put(json.loads(line))
    end_group()


def let_workers_rest(limit_s: float = 2.0, period_s: float = 0.04) -> None:
    """Waits until this process's children compute nothing, for at most `limit_s`.

    Loader workers go on after a block until their queue is full. On a CPU they would take cores from what is
    measured next: the ceiling, or the block of another process.
    """
    import psutil

    children = psutil.Process().children(recursive=True)

    def spent() -> float:
        total = 0.0
        for child in children:
            with contextlib.suppress(psutil.Error):
                times = child.cpu_times()
                total += times.user + times.system
        return total

    until, before = time.monotonic() + limit_s, spent()
    while children and time.monotonic() < until:
        time.sleep(period_s)
        before, last = spent(), before
        if before <= last:
            break


def end_group() -> None:
    """Ends this process and every process that it started, at once."""
    if os.name == "posix" and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    import psutil

    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit(1)


def _log_traceback(problem: BaseException) -> None:
    traceback.print_exception(problem, file=sys.stderr)
    sys.stderr.flush()


class _Session:
    """One training, and what can be asked of it. Each public method is a command; it returns the answer."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last_progress = 0.0
        self._workload: Any = None
        self._harness: Any = None
        self._device: Any = None

    def send(self, event: str, **data: Any) -> None:
        """One event to the parent."""
        self._out.write(json.dumps({"event": event, **data}) + "\n")
        self._out.flush()

    def _progress(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._last_progress >= _PROGRESS_INTERVAL_S:
            self._last_progress = now
            self.send("progress", phase=phase, done=done, total=total)

    def describe(self, workload: str, preset: str, options: dict[str, Any], device: str) -> dict[str, Any]:
        """Loads the workload; says what it offers and what the device is."""
        self.send("progress", phase="importing torch", done=0, total=1)
        import torch

        from perfkit import workloads
        from perfkit.program import rules
        from perfkit.program import script as scripts

        if scripts.is_script(workload):
            self._workload = scripts.Script(Path(workload))
            self._workload.check_device(device)
            self._device = self._workload.device
            facts = _device_facts(self._device)
            return {"reference": scripts.REFERENCE, "options": {}, "offers": [], "facts": facts}
        found = workloads.find(workload)
        chosen = workloads.options_for(found, preset, options)
        self._workload = workloads.load(workload, chosen)
        self._device = torch.device(device)
        return {
            "reference": workloads.reference(workload),
            "options": chosen,
            "offers": sorted(rules.offers(self._workload)),
            "convolves": workloads.convolves(self._workload),
            "facts": _device_facts(self._device),
        }

    def join(self, rank: int, local: int, here: int, ranks: int, host: str, port: int) -> dict[str, Any]:
        """Tells this process which rank it is, in torchrun's words; they meet when the training is built."""
        import torch

        known: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": ranks}
        known |= {"MASTER_ADDR": host, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in known.items()})
        if host == "127.0.0.1":  # else gloo asks for the host's name, which not every machine can resolve
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        torch.set_num_threads(max(1, torch.get_num_threads() // here))
        return {}

    def train(
        self, recipe: dict[str, Any], seed: int, loss_steps: int, warmup_s: float, started: float,
        timed: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Builds the training, takes its first steps, proves its mechanisms and warms up.

        `timed` names a folder in which the loader notes the times of its batches.
        """
        from perfkit.program.recipe import Recipe
        from perfkit.program.script import Script
        from perfkit.program.train import Training
        from perfkit.worker.checks import graphs
        from perfkit.worker.harness import Harness

        self.send("progress", phase="building", done=0, total=1)
        script = self._workload if isinstance(self._workload, Script) else None
        if script:
            training = script.training()
        else:
            training = Training(self._workload, Recipe.from_dict(recipe), self._device, seed)
        if timed:
            from perfkit.worker.profiler import time_loader

            time_loader(training.loader, timed)
        self._harness = harness = Harness(training, progress=self._progress)
        startup_s = time.time() - started
        first, losses = harness.first_steps(loss_steps)
        # A script may hold anything by now: its samples are counted, and no switch of it can be proven.
        mechanisms, batch_bytes = ([], harness.count_samples(loss_steps)) if script else harness.mechanisms()
        warm = harness.warm_up(warmup_s)
        harness.device.reset_peak()
        return {
            "recipe": training.recipe.to_dict(),
            "facts": script.facts() if script else {},
            "startup_s": startup_s,
            "first": asdict(first),
            "losses": losses,
            "warm": asdict(warm),
            "mechanisms": [{"switch": m.switch, "ok": m.ok, "evidence": m.evidence} for m in mechanisms],
            "batch_bytes_per_sample": batch_bytes,
            "samples_per_step": harness.samples_per_step,
            "batch_norm": any("BatchNorm" in type(part).__name__ for part in training.model.modules()),
            "weights": getattr(self._workload, "weights", ""),
            "malloc": os.environ.get("GLIBC_TUNABLES", ""),
            "graphs": graphs(),
        }

    def block(self, samples: int, settle: bool, queues: int = 1) -> dict[str, Any]:
        """One measured block."""
        block = self._harness.block(samples, settle, queues)
        let_workers_rest()
        return {**asdict(block), "samples_per_s": block.samples_per_s}

    def ceiling(self, samples: int) -> dict[str, Any]:
        """One block without a loader."""
        return {"samples_per_s": self._harness.ceiling(samples).samples_per_s}

    def peak(self) -> dict[str, Any]:
        """Peak memory since the warm-up, and whether the model was compiled anew since the first step."""
        from perfkit.worker.checks import graphs

        allocated, reserved = self._harness.device.peak()
        recompiles = graphs()["graphs"] - self._harness.first_graphs
        return {"allocated": allocated, "reserved": reserved, "recompiles": recompiles}

    def communication(self, samples: int) -> dict[str, Any]:
        """What the ranks' averaging of gradients costs a step."""
        from perfkit.worker import collectives

        return collectives.measure(self._harness, samples)

    def memory(self) -> dict[str, Any]:
        """What holds memory in a step."""
        from perfkit.worker import memory

        return memory.measure(self._harness)

    def kernels(self) -> dict[str, Any]:
        """The device's roofs, shapes, and the work of a step."""
        from perfkit.worker import kernels as shapes

        block = self._harness.block(8 * self._harness.samples_per_step)
        return {"step_s": block.seconds / len(block.step_s), **shapes.measure(self._harness)}

    def profile(self, **how: Any) -> dict[str, Any]:
        """Some steps under the profiler, whose trace goes to a file."""
        from perfkit.worker import profiler as profiling

        return profiling.profile(self._harness, **how)

    def syncs(self, steps: int) -> dict[str, Any]:
        """Copies and waits between host and device, and the lines that ask for them."""
        from perfkit.worker.syncs import detect_syncs

        with detect_syncs(steps) as found:
            for _ in range(steps):
                self._harness.training.step(self._harness.batches)
        return {"places": [asdict(place) for place in found.sorted()], "table": found.table()}

    def parity(self, recipe: dict[str, Any], exact: str, seed: int, steps: int) -> dict[str, Any]:
        """Whether a recipe still trains the same."""
        from perfkit.program.recipe import Recipe
        from perfkit.worker import parity as exactness

        self.send("progress", phase="comparing losses and outputs", done=0, total=1)
        return exactness.check(self._workload, Recipe.from_dict(recipe), self._device, exact, seed, steps)

    def stop(self) -> dict[str, Any]:
        """Ends this process."""
        end_group()
        return {}


def _device_facts(device: Any) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "count": torch.cuda.device_count(),
            "name": properties.name,
            "uuid": f"GPU-{properties.uuid}",
            "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
            "cuda": torch.version.cuda,
            "cudnn": str(torch.backends.cudnn.version()),
        }
    return facts


def explain(problem: BaseException) -> dict[str, str]:
    """An exception in words: its kind, what happened, what to do."""
    if isinstance(problem, PerfkitError):
        return {"kind": type(problem).__name__, "what": problem.what, "remedy": problem.remedy}
    text = str(problem).strip()
    for kind, told, remedy in _KNOWN:
        if told(problem, text):
            return {
                "kind": kind,
                "what": f"{kind}: {_gist(problem, text)}{_place(problem)}",
                "remedy": remedy,
            }
    what = f"the training raised {type(problem).__name__}: {_gist(problem, text)}{_place(problem)}"
    return {"kind": "exception", "what": what, "remedy": "Mend it there; the other stages are not affected"}


def _gist(problem: BaseException, text: str) -> str:
    """The line of a message that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(problem).__name__
    return lines[-1] if lines[0].startswith("Caught ") else lines[0][:300]


def _place(problem: BaseException) -> str:
    """` (file:line)` of the innermost frame that is neither torch's nor ours, in a worker too."""
    files = [f for f in traceback.extract_tb(problem.__traceback__) if _is_theirs(f.filename)]
    if files:
        return f" ({os.path.basename(files[-1].filename)}:{files[-1].lineno})"
    told = [line.strip() for line in str(problem).splitlines() if line.strip().startswith('File "')]
    theirs = [line for line in told if _is_theirs(line.split('"')[1])]
    if not theirs:
        return ""
    _, file, rest = theirs[-1].split('"', 2)
    return f" ({os.path.basename(file)}:{rest.split(',')[1].removeprefix(' line ').strip()})"


def _is_theirs(filename: str) -> bool:
    return not any(
        part in filename for part in ("site-packages", "/perfkit/", "\\perfkit\\", "<", "/lib/python")
    )


def _is_memory(problem: BaseException, text: str) -> bool:
    return (
        isinstance(problem, MemoryError)
        or type(problem).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in text
        or "not enough memory" in text
    )


def _is_compile(problem: BaseException, text: str) -> bool:
    module = type(problem).__module__
    return module.startswith(("torch._dynamo", "torch._inductor")) or "BackendCompilerFailed" in text


_KNOWN = (
    ("out of memory", _is_memory, "Lower batch_size, or raise accumulation instead; amp saves memory too"),
    (
        "shared memory is full",
        lambda problem, text: "Bus error" in text or ("shared memory" in text and "DataLoader" in text),
        "Enlarge /dev/shm (docker run --shm-size=8g), or lower workers or prefetch_factor",
    ),
    (
        "a loader worker died",
        lambda problem, text: (
            ("DataLoader worker" in text and "exited unexpectedly" in text) or "is killed by signal" in text
        ),
        "It was killed from outside, most often for want of memory: lower workers or prefetch_factor",
    ),
    (
        "the data set raised in a loader worker",
        lambda problem, text: text.startswith("Caught ") and "DataLoader worker" in text,
        "Mend the data set at that line; workers=0 shows the full traceback",
    ),
    (
        "torch.compile failed",
        _is_compile,
        "Leave compile off for this model; `perfkit doctor` says whether a compiler is there",
    ),
)


if __name__ == "__main__":
    main()
