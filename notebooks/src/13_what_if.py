# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13 · What if?
#
# **How fast would it be with more workers, more cores, a faster device?**
#
# *About 4 minutes at the preset `quick` on two cores. Needs: nothing special.*
#
# A step has few parts: what fetching a sample costs one core, what computing a batch takes once it is there, and what the copy between them takes. Measured once, they predict recipes that were never run. What workers lose by contending for the cores and by handing batches over is measured too, by number of workers and batch size, and counted for as many cores as this machine has; with another number of cores the prediction leaves it out. Each prediction can be wrong, so it is scored against what was measured.
#
# ## Measure the parts

# %%
from perfkit import notebook as pk

panel = pk.LadderPanel(["batch_size", "data_loading"], workload="photos")
panel.run()
panel.table()

# %%
panel.plot("step_time")

# %% [markdown]
# ## Predict before you turn the knobs
#
# From how many workers on would more of them not help, if there were eight cores? And which part binds then?

# %%
knobs = pk.WhatIf(panel.runs)
knobs

# %% [markdown]
# The same from a cell:

# %%
knobs.cores.value = 8
for workers in (0, 1, 2, 4, 8):
    told = knobs.predict(workers=workers)
    print(f"{workers} workers: {told.samples_per_s(knobs.batch.value):,.0f} samples/s, {told.binds} binds")

# %% [markdown]
# ## Let it search
#
# The tuner ranks every recipe of a space by such predictions, measures the best of them, then the better ones of these again, and the last few for longer, all in turn with the baseline. This is a small space; `pk.tune(minutes=10)` searches the usual one, `memory_gb=8` keeps it under a cap.

# %%
search = pk.tune({"workers": (0, 1), "amp": ("off", "bf16")}, workload="photos")
search.words()

# %%
search.plot()

# %%
search.table()

# %% [markdown]
# ## When a prediction misleads
#
# - The parts are of one process that has the machine to itself: caches, memory bandwidth and clocks that both sides share are not in them.
# - A switch that was never measured has no part; two switches that were never measured together are taken to multiply.
# - That is why the tuner (also `perfkit tune`) uses the model only to choose what to measure, and never picks what it has not measured.
#
# ## Exercise
#
# With eight cores and four workers, how many times as fast would a device of twice the speed be?

# %% tags=["exercise"]
answer = None  # a number

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    knobs.cores.value, knobs.workers.value = 8, 4
    knobs.speed.value = 1
    before = knobs.predict().step_s
    knobs.speed.value = 2
    after = knobs.predict().step_s
    knobs.speed.value = 1
    assert abs(answer - before / after) < 0.02, "Read the step's time at speed 1 and at speed 2, and divide"
    print(f"Right: {answer:.2f}; what binds decides how much of the speed arrives")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# knobs.cores.value, knobs.workers.value = 8, 4
# knobs.speed.value = 1
# slow = knobs.predict().step_s
# knobs.speed.value = 2
# answer = slow / knobs.predict().step_s
# ```
#
# </details>

# %% [markdown]
# Next: [14 hidden transfers](14_hidden_transfers.ipynb)
