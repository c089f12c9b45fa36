# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 · Hidden transfers
#
# **Which lines make the host wait for the device?**
#
# *About 2 minutes at the preset `quick` on two cores. Needs: nothing special; on a GPU the waits cost time too.*
#
# A GPU works through a queue that the host fills. A line that *reads* a value, or needs to know a size that only the device knows, makes the host wait until the queue is empty, and the device waits for the host in turn. Nothing in such a line says so: `.item()`, `if loss > 1`, `x[mask]`, `print(loss)`, a `.cpu()` in a metric.
#
# The article's case was a size that travelled: computed on the device, read by the host to crop an image. In the article's report these were 20 synchronous copies in 10 iterations, 70% of all copy time; keeping the tiny size on the host took the article's total from 26.6 to 14.5 ms.
#
# ## A training with such lines
#
# `perfkit.workloads.bottlenecks:Chatty` rebuilds that case in PyTorch, and adds three more. Here is its code:

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

name = "perfkit.workloads.bottlenecks:Chatty"
source = pk.source(name)
Markdown(f"```python\n{source}```")

# %% [markdown]
# ## Predict before you look
#
# How many times a step does the host wait?

# %%
my_guess = 1

# %%
found = pk.find_syncs(name)
found.table()

# %%
print(f"You guessed {my_guess}; found: {found.a_step:g} a step, at {len(found.places)} places.")

# %% [markdown]
# The calls are watched, not the device, so the places are found on a machine without a GPU too. On a GPU each copy also says whether the host's memory was pinned, and the driver's own warnings are added.
#
# ## The same training without them

# %%
clean = pk.find_syncs(name, options={"clean": True})
clean.table()

# %% [markdown]
# Does it show in the time? On a GPU, in the step; on a CPU there is nobody to wait for, so hardly.

# %%
panel = pk.LadderPanel(["baseline"], workload=name)
panel.run()
trial_clean = pk.LadderPanel(["baseline"], workload=name, options={"clean": True})
trial_clean.run()
for title, run in (("with waits", panel.runs[-1]), ("without", trial_clean.runs[-1])):
    rate = run.samples_per_s
    print(f"{title}: {rate.median:,.0f} samples/s ({rate.low:,.0f} to {rate.high:,.0f})")

# %%
panel.plot("step_time")

# %% [markdown]
# In your own code: `with perfkit.detect_syncs() as found:` around some steps, then `print(found.table())`; and `perfkit.assert_no_sync()` in a test, so that none comes back.
#
# ## When it does not matter
#
# - A wait every hundred steps costs nothing: read the loss then, not in each step.
# - Where the step waits for data anyway, the device is idle with or without it.
# - Waits before the loop starts are free.
#
# ## Exercise
#
# How many waits a step does the crop alone cause? They are those of the lines that call `__int__`.

# %% tags=["exercise"]
answer = None  # a number

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    crop = sum(place["count"] for place in found.places if place["call"] in ("__int__", "item")) / found.steps
    crop -= 1  # the loss that is kept in the history
    assert answer == crop, "Height and width are read one by one"
    print(f"Right: {answer:g} a step, as in the article: 20 in 10 iterations")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = 2
# ```
#
# </details>

# %% [markdown]
# Next: [15 kernels and shapes](15_kernels_and_shapes.ipynb)
