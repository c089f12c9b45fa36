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
# **Which settings are fastest on this machine, without trying them all?**
#
# *About 5 to 7 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 8 (planned, not timed). Needs: nothing special.*
#
# The profiler article wished for a tool that finds the right number of workers by itself. This chapter has one: it predicts, measures the best guesses, and picks only what it has measured.
#
# A step has few parts: the time one core needs to load a sample, the time to copy a batch, and the time to compute on it. Once measured, they predict the speed of recipes that were never run. Workers compete for cores and spend time passing batches: perfkit measures that cost on this machine. A prediction can be wrong, so each is scored against measurements.

# %%
from perfkit import notebook as pk

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
# A simulated GPU is a prediction as well, from published figures instead of your own measurements. `device="sim:v100"` works for panels. How far off it is: [chapter 19](19_checking_the_articles.ipynb).
#
# ## What to remember
#
# - A few measured parts predict a step well enough to choose what to measure next, and not well enough to skip measuring.
# - Twice the cores, or twice the device, helps only while that part is the bottleneck.
#
# ## Exercise
#
# More speed often costs memory. Of the runs that no other run beats in both (`search.found.pareto()`, the leanest first), how many times the memory of the leanest does the fastest use?

# %% tags=["exercise"]
answer = None  # a number

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    front = search.found.pareto()
    factor = front[-1].peak_memory_bytes / front[0].peak_memory_bytes
    assert abs(answer - factor) < 0.005, "Divide the field peak_memory_bytes of the last by that of the first"
    print(f"Right: {answer:.2f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# front = search.found.pareto()
# answer = front[-1].peak_memory_bytes / front[0].peak_memory_bytes
# ```
#
# </details>

# %% [markdown]
# Next: [14 hidden transfers](14_hidden_transfers.ipynb)
