import logging

import torch

from bench import require
from judged import profile, proof

logging.disable(logging.WARNING)
taken = []


def step():
    taken.append(len(taken))
    with torch.profiler.record_function(f"taken {taken[-1]}"):
        return torch.ones(10) + 1


profiler = profile(step, 8)
require(
    len(taken) == 8,
    f"{len(taken)} steps were taken and should be 8: training goes on after the recorded ones",
)
require(isinstance(profiler, torch.profiler.profile), "Return the profiler")
try:
    names = [event.name for event in profiler.events() or []]
except AssertionError:  # nothing was recorded
    names = []
require(
    any(name.startswith("ProfilerStep") for name in names),
    "No step is marked in the profile: give it a schedule, and call `profiler.step()` at the end of each step",
)
recorded = sorted(int(name.split()[1]) + 1 for name in names if name.startswith("taken"))
require(
    recorded == [3, 4, 5],
    f"Recorded were the steps {recorded or 'none'} (the first is 1), and should be 3, 4 and 5",
)
proof("8 steps were taken, and 3, 4 and 5 are in the profile")
