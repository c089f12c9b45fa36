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
# **Which of three trainings waits for data, which for the host, which for the device?**
#
# *About 2 minutes at the preset `quick` on two cores. Needs: nothing special; Nsight Systems only for its own part.*
#
# A timeline is read by its names. The switch `nvtx_ranges` puts each part of the step (data, copy, forward, backward, optimizer) between a push and a pop, for NVTX and for the PyTorch profiler at once. What does that cost?

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
# `nsys` sees what the PyTorch profiler does not: every thread, the driver, the operating system. Record a *window*, not the start: the article opens it at step 20 and closes it at step 30. This is the command for a recipe:

# %%
pk.nsys("perfkit.workloads.bottlenecks:HostBound")

# %% [markdown]
# `perfkit nsys` runs it and turns the SQLite export into a trace that all tables and pictures of chapter 09 read. On a timeline, look for kernels in three ways: by their share, by outliers among the same kernel, by the range that launched them.
#
# ## Three trainings, one bottleneck each
#
# The article tells three bottlenecks apart by their look:
#
# | bound by | look on the timeline |
# |---|---|
# | **data** | gaps between iterations, and copies |
# | **host** | long blanks in the device's row; on a CPU, time between many tiny operators |
# | **device** | a full row: few slow operators, or a great many |
#
# Here are A, B and C. Look first, then name them.

# %%
readings = {
    letter: pk.profile(f"perfkit.workloads.bottlenecks:{name}", settings={"nvtx_ranges": True})
    for letter, name in zip("ABC", ("HostBound", "DataBound", "DeviceBound"), strict=True)
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
# ## What the tools say
#
# Each finding comes with its evidence and with what could be gained.

# %%
for letter, reading in readings.items():
    print(letter, "·", reading.findings[0].message if reading.findings else "nothing stands out")

# %% [markdown]
# ## When it does not help
#
# Names make nothing faster. A profile of the first steps shows warm-up; a profile of a step that waits for data shows nothing about kernels.
#
# ## Exercise
#
# Which of the three waits for its data?

# %% tags=["exercise"]
answer = None  # "A", "B" or "C"

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    assert answer == "B", "Look for the step whose time lies before the first operator"
    print("Right: its samples cost a core 2 ms each to fetch")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = "B"
# ```
#
# </details>

# %% [markdown]
# Next: [17 distributed](17_distributed.ipynb)
