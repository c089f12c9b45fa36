# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09 · Reading a profile
#
# **Where does a step's time go, and what does that tell you to try?**
#
# *About 3 minutes at the preset `quick` on two cores. Needs: nothing special.*
#
# Timing says *that* a change helped; a profile says *why*. PyTorch's profiler writes a trace: every operator on the host, every kernel and copy on the device. The profiler slows the steps down, so a profile is never used for throughput.
#
# ## A recorded one first
#
# Two profiles of the workload `photos` are shipped with the workbook, made on two CPU cores: the plain loop, and the one with a loader worker. Any `*.pt.trace.json.gz` of your own opens in the same way, CUDA traces too.

# %%
from pathlib import Path

from perfkit import notebook as pk

folder = Path(pk.__file__).parents[2] / "data" / "recordings" / "traces"
before = pk.Reading(folder / "photos-smoke-baseline.pt.trace.json.gz")
before.table("Health")

# %%
before.plot("breakdown")

# %% [markdown]
# The parts of a step add up to the step: waiting for the loader, operators, the rest. With an accelerator there are kernels, copies and runtime calls too, and what is hidden behind a kernel is counted once, for the kernel.

# %%
before.table("Mean step")

# %%
before.plot("timeline")

# %% [markdown]
# The same to zoom and pan in (wheel, drag, arrow keys):

# %%
before.timeline()

# %% [markdown]
# ## Predict before you look
#
# What binds this loop: data, the host, or the device?

# %%
my_guess = "device-bound"

# %%
before.table("Diagnosis")

# %%
print("You guessed", my_guess, "- found:", ", ".join(f.bottleneck for f in before.findings) or "nothing")

# %% [markdown]
# The bound of the gain is Amdahl's: if all of the exposed time vanished, the step would be that many times as fast, and no change on that account can give more.
#
# ## What the worker changed
#
# The operators stay what they were. What went away is the time in which the loop itself fetched.

# %%
after = pk.Reading(folder / "photos-smoke-data_loading.pt.trace.json.gz")
before.compare(after)

# %% [markdown]
# ## Your own run
#
# The profiler runs in a fresh process; here also the loader's workers note when they fetch and collate each batch.

# %%
mine = pk.profile("photos", "data_loading")
print(mine.profile.describe())

# %%
mine.table("Loader")

# %%
mine.timeline()

# %%
mine.plot("operators")

# %%
mine.plot("memory")

# %%
mine.table("Diagnosis")

# %% [markdown]
# ## When a profile misleads
#
# - It is slower than the training, and not evenly so: many small operators look dearer than they are. Measure a change without it.
# - A loader hidden behind kernels has no exposed time at all, and still may be one core away from being the bottleneck: look at supply and demand.
# - A utilisation of the device near its limit does not say that the kernels are good: read down the ladder, to Tensor Core time.
#
# ## Exercise
#
# Which part of the mean step is the largest in your own run? Its name is a key of `mine.analysis.mean_us`.

# %% tags=["exercise"]
answer = None  # a name

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    known = {part: us for part, us in mine.analysis.mean_us.items() if us is not None}
    assert answer in known, f"One of {', '.join(known)}"
    assert known[answer] == max(known.values()), "There is a larger one"
    print(f"Right: {answer}, {known[answer] / mine.analysis.mean_step_us:.0%} of the step")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# known = {part: us for part, us in mine.analysis.mean_us.items() if us is not None}
# answer = max(known, key=known.get)
# ```
#
# </details>

# %% [markdown]
# Next: [10 the workbench](10_workbench.ipynb)
