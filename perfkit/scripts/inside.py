"""What a look inside a script finds: facts, memory, syncs, a profile; and how it ended, in words."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from typing import TYPE_CHECKING, Any

import torch

from perfkit.scripts import toggles
from perfkit.scripts.blocks import Ended, Job, synchronize
from perfkit.scripts.models import compile_counters
from perfkit.scripts.outputs import WriteRefused
from perfkit.scripts.sites import is_users
from perfkit.worker.device import facts as device_facts
from perfkit.worker.device import peak_bytes

if TYPE_CHECKING:
    from perfkit.scripts.channel import Channel
    from perfkit.scripts.script import Script

__all__ = ["Ended", "facts", "peak", "profile", "report_crash", "syncs", "why_no_step"]


def facts(script: Script) -> dict[str, Any]:
    """Plain data of `watch.messages.ScriptFacts`."""
    device, loaders, models = script.models.device(), script.loaders, script.models
    script.sites.keep(loaders.site())
    kinds = (torch.nn.modules.conv._ConvNd,)
    return {
        "device": device.type, "facts": device_facts(device),
        "rank": int(os.environ.get("RANK", "0")), "world": int(os.environ.get("WORLD_SIZE", "1")),
        "models": [type(getattr(m, "_orig_mod", m)).__name__ for m in models.found],
        "parameters": sum(p.numel() for m in models.found for p in m.parameters()),
        "optimizers": [type(optimizer).__name__ for optimizer in script.optimizers.found],
        "loader": type(loaders.training.dataset).__name__ if loaders.training is not None else "",
        "step_is": script.step_in_words(),
        "backwards_per_step": script.gradients.count / max(1, script.steps.count),
        "samples_per_step": script.usual_samples, "tokens_per_step": script.usual_tokens,
        "convolves": any(isinstance(m, kinds) for model in models.found for m in model.modules()),
        "random_data": loaders.random_data, "settings": toggles.settings(script),
        "mechanisms": toggles.mechanisms(script), "refused": toggles.why_not(script),
        "sites": script.sites.all(), "notes": script.notes, "written": script.outputs.written,
    }  # fmt: skip


def peak(script: Script) -> dict[str, Any]:
    """Plain data of `worker.messages.Peak`."""
    allocated, reserved = peak_bytes(script.models.device())
    recompiles = max(0, compile_counters()["graphs"] - script.first_graphs)
    return {"allocated": allocated, "reserved": reserved, "recompiles": recompiles}


def syncs(script: Script, steps: int) -> Job:
    """Plain data of `worker.reports.SyncReport`, of some steps."""
    import msgspec

    from perfkit.worker.syncs import detect_syncs

    with detect_syncs(steps) as found:
        for _ in range(steps):
            yield
    report = {"places": found.sorted(), "steps": steps, "device": str(script.models.device())}
    plain: dict[str, Any] = msgspec.to_builtins(report)
    return plain


def profile(
    script: Script, path: str, wait: int, warmup: int, active: int, shapes: bool, memory: bool, stacks: bool
) -> Job:
    """Plain data of `worker.reports.ProfileReport`; writes the trace file."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import schedule as plan

    if rank := int(os.environ.get("RANK", "0")):
        path = path.replace(".json", f".rank{rank}.json")
    skipped = wait + warmup
    plain = []
    for _ in range(max(4, active)):
        plain.append((yield).seconds)
    on_gpu = script.models.device().type == "cuda"
    marks: list[float] = []
    recorder = torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
        schedule=plan(wait=wait, warmup=warmup, active=active, repeat=1),
        record_shapes=shapes, profile_memory=memory, with_stack=stacks,
        on_trace_ready=lambda done: _write(done, path),
    )  # fmt: skip
    script.profiling = True
    try:
        with recorder:
            for number in range(skipped + active):
                marks.append(time.perf_counter())
                yield
                if number == skipped + active - 1:
                    synchronize()
                    marks.append(time.perf_counter())  # the recorder now writes the trace
                recorder.step()
    finally:
        script.profiling = False
    return {"plain_step_s": sorted(plain)[len(plain) // 2], "taken": [], "marks": marks[skipped:], "pins": []}


def _write(recorded: Any, path: str) -> None:
    part = f"{path.removesuffix('.json.gz').removesuffix('.json')}.part.json{'.gz' * path.endswith('.gz')}"
    recorded.export_chrome_trace(part)
    os.replace(part, path)


def report_crash(script: Script, channel: Channel, problem: BaseException) -> None:
    """Tells the parent how the script failed; its own traceback is on standard error."""
    text = str(problem).strip().splitlines()
    own = [f for f in traceback.extract_tb(problem.__traceback__) if is_users(f.filename)]
    place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    when = f"after {script.steps.count} steps" if script.steps.count else "before its second step"
    if isinstance(problem, EOFError) and "reading a line" in str(problem):
        channel.fail(
            "input", f"the script asks for input{place}, which nobody can give while it is watched",
            "Give the answers as arguments, or remove the question",
        )  # fmt: skip
        return
    if isinstance(problem, WriteRefused):
        what = f"the script writes to {problem.filename}{place}; one that is measured may write "
        channel.fail(
            "writes", f"{what}only below its working directory",
            "Give it another path, or let it write there with --in-place",
        )  # fmt: skip
        return
    what = f"the script raised {type(problem).__name__} {when}: {text[0][:300] if text else ''}{place}"
    channel.fail("exception", what, "Its own traceback is in its output; run it without perfkit to compare")


def why_no_step(script: Script) -> tuple[str, str]:
    """What a script did that has ended without two training steps, and what to do about it."""
    seen = script.gradients.count
    if script.optimizers.found or seen:
        steps = "one training step" if script.optimizers.found else f"{seen} backward pass(es) and no step"
        return f"the script ended after {steps}", "Let it train longer: at least some dozen steps are needed"
    if multiprocessing.active_children() or script.started_processes:
        return (
            "the script trained in processes that it started itself, which are not watched",
            "Start it with torchrun, one process for each rank, or let it train in its own process",
        )
    if script.loaders.batch_ids:
        return "the script ended without a backward pass", "Is it a script that trains? Its arguments may say"
    return "the script ended without training", "Is it the right script, with the right arguments?"
