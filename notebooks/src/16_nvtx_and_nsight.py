# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 16 · Named ranges, Nsight Systems, and three bottlenecks
#
# **Three training loops: which is bound by data, which by the host, which by the device?**
#
# *About 3 to 4 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: nothing special; Nsight Systems only for its own section.*
#
# Names make a timeline readable. The switch `nvtx_ranges` marks each part of the step (data, copy, forward, backward, optimizer) as a named range, both for NVTX and for the PyTorch profiler. How much time does that cost?

# %%
from perfkit import notebook as pk

panel = pk.RecipePanel(
    {"plain": {}, "with ranges": {"nvtx_ranges": True}}, workload="perfkit.workloads.bottlenecks:HostBound"
)
panel

# %%
panel.run()

# %%
panel.table()

# %%
panel.verdict()

# %% [markdown]
# ## Nsight Systems
#
# `nsys` records what the PyTorch profiler does not: every thread, the driver, the operating system. Record a *window* of steps, not the start: the article opens it at step 20 and closes it at step 30. This is the command for a recipe:

# %%
pk.nsys("perfkit.workloads.bottlenecks:HostBound")

# %% [markdown]
# `perfkit nsys` runs it and converts the SQLite export into a trace for all tables and plots of chapter 09. There are three ways to find interesting kernels on a timeline: by their share of the time, by calls that are much slower than others of the same kernel, and by the named range that launched them.
#
# ## Three training loops, one bottleneck each
#
# The article distinguishes three bottlenecks by what they look like:
#
# | bound by | look on the timeline |
# |---|---|
# | **data** | gaps between iterations, and copies |
# | **host** | long blanks in the device's row; on a CPU, many tiny operators with gaps between them |
# | **device** | a full row, with slow operators or very many of them |
#
# Here are A, B and C, in random order. Look at them first, then say which is which in the exercise.

# %%
import random

bottlenecks = random.Random(16).sample(["data", "host", "device"], 3)
hidden = dict(zip("ABC", bottlenecks, strict=True))  # no peeking
readings = {
    letter: pk.profile(f"perfkit.workloads.bottlenecks:{kind.title()}Bound", settings={"nvtx_ranges": True})
    for letter, kind in hidden.items()
}
readings["A"].plot("timeline")

# %%
readings["B"].plot("timeline")

# %%
readings["C"].plot("timeline")

# %%
for letter, reading in readings.items():
    step = reading.analysis.steps[0]
    calls = sum(row.calls for row in reading.analysis.operators) / len(reading.analysis.steps)
    print(f"{letter}: a step of {step.duration_us / 1e3:.1f} ms, {calls:,.0f} operator calls")

# %% [markdown]
# ## When it does not help
#
# Named ranges make nothing faster. A profile of the first steps shows warm-up; a profile of a step that waits for data says little about kernels.
#
# ## Exercise
#
# Which bottleneck does each of the three have?

# %% tags=["exercise"]
answer = None  # {"A": "data", "B": ..., "C": ...} with "data", "host" and "device"

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    assert answer == hidden, (
        "Data: the step's time is before the first operator. Host: the most operator calls, each of them tiny"
    )
    print("Right:", ", ".join(f"{letter} is bound by the {kind}" for letter, kind in answer.items()))

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = hidden
# ```
#
# In the data-bound loop, loading a sample keeps a core busy for a while. The host-bound model has more than a hundred tiny layers; the device-bound one has a few wide convolutions.
#
# </details>

# %% [markdown]
# ## What the tools find
#
# Each finding comes with its evidence and with the largest possible gain.

# %%
for letter, reading in readings.items():
    print(letter, "·", reading.findings[0].message if reading.findings else "nothing stands out")

# %% [markdown]
# Next: [17 distributed](17_distributed.ipynb)
