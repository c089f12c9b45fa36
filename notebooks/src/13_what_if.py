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
# *About 5 to 7 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 8 (planned, not timed). Needs: nothing special.*
#
# The profiler article wished for a tool that finds the right number of workers by itself. This chapter has one: it predicts, measures the best guesses, and picks only what it has measured.
#
# A step has few parts: the time one core needs to load a sample, the time to copy a batch, and the time to compute on it. Once measured, they predict the speed of recipes that were never run. Workers compete for cores and spend time passing batches. perfkit measures that cost on this machine; predictions for other core counts ignore it. A prediction can be wrong, so each is scored against measurements. Beside a GPU it is the model of [the picture of two queues](00_start_here.ipynb).
#
# ## Measure the parts

# %%
from perfkit import notebook as pk

panel = pk.LadderPanel(["batch_size", "data_loading"], workload="photos")
panel.run()

# %% [markdown]
# ## Predict before you turn the knobs
#
# How many workers are enough with eight cores, and what is the bottleneck then?

# %%
knobs = pk.WhatIf(panel.runs)
knobs

# %% [markdown]
# You can also set the values from a cell:

# %%
knobs.cores.value = 8
for workers in (0, 1, 2, 4, 8):
    prediction = knobs.predict(workers=workers)
    rate = prediction.samples_per_s(knobs.batch.value)
    print(f"{workers} workers: {rate:,.0f} samples/s, bottleneck: {prediction.bottleneck}")

# %% [markdown]
# ## Let it search
#
# The tuner predicts every recipe of a search space, measures the most promising, and re-measures the finalists for longer, each interleaved with the baseline. The space below is small. Without a space, `pk.tune(minutes=10)` searches the usual one; `memory_gb=8` limits the memory of the recipes that it may pick.

# %%
search = pk.tune({"workers": (0, 1), "amp": ("off", "bf16")}, workload="photos", minutes=3)
search.words()

# %%
search.plot()

# %%
search.table()

# %% [markdown]
# ## When a prediction misleads
#
# - Each part is measured in a process that has the machine to itself. Caches, memory bandwidth and clock speeds that loader and model share are not modelled.
# - A switch that was never measured cannot be predicted; the effects of two switches that were never measured together are multiplied.
# - That is why the tuner (also `perfkit tune`) uses predictions only to choose what to measure, and never picks a recipe that it has not measured.
#
# A simulated GPU is a prediction as well, from published figures instead of your own measurements. `device="sim:v100"` works for panels, and under *Parts measured in* you can turn the knobs on the parts of a recorded simulation. How far off it is: [chapter 19](19_checking_the_articles.ipynb).
#
# ## What to remember
#
# - A few measured parts predict a step well enough to choose what to measure next, and not well enough to skip measuring.
# - Twice the cores, or twice the device, helps only while that part is the bottleneck.
#
# ## Exercise
#
# With eight cores and four workers, how much faster would training be on a device that is twice as fast? Give the ratio.

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
    assert abs(answer - before / after) < 0.005, "Divide the step time at speed 1 by that at speed 2"
    print(
        f"Right: {answer:.2f}. Only the computation gets faster; the bottleneck decides how much that helps"
    )

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
