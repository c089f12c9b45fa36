"""The question for a trace of the profiler, to a training of perfkit or a script (`looking.PROFILE`)."""

import os
from pathlib import Path
from typing import Any

from torch import profiler

from perfkit.worker.procedure import Procedure, Procedures, workers_stopped


def profile(procedures: Procedures, path: str, stacks: bool, **schedule: int) -> Procedure:
    """Takes steps with the profiler, writes a trace of the active ones, and returns its path.

    `schedule` is that of `torch.profiler.schedule`: wait, warmup, active.
    """
    file = Path(path)
    unfinished = str(file.with_name(f"part-{file.name}"))  # so that a file with the final name is complete
    device = procedures.subject.device.type
    kinds: Any = profiler.ProfilerActivity
    recorder = profiler.profile(
        activities={kinds.CPU, getattr(kinds, device.upper(), kinds.CPU)},
        schedule=profiler.schedule(**schedule, repeat=1),
        record_shapes=True,
        with_stack=stacks,
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(unfinished),
    )
    procedures.report("profiling")
    with procedures.subject.phases(), recorder:
        for left in reversed(range(sum(schedule.values()))):
            yield
            if not left:  # torch accepts metadata only while it records
                recorder.add_metadata_json("trainedOn", f'"{device}"')
            # While the profiler starts, workers would load ahead, which would hide the usual waiting.
            with workers_stopped(procedures.subject.iterator):
                recorder.step()
    os.replace(unfinished, file)
    return str(file)
