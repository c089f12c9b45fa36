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
# **Where does a step's time go, and what should you try next?**
#
# *About 1 minute at the preset `quick` on two cores; at `paper` on a GPU at most 2 (planned, not timed). Needs: nothing special.*
#
# Timing shows *that* a change helped; a profile shows *why*. PyTorch's profiler writes a trace: every operator on the host, every kernel and copy on the device. The profiler slows the steps down, so throughput is never taken from a profile.
#
# ## First, two recorded traces
#
# The workbook comes with two traces of the workload `photos` at the preset `quick`, recorded on two CPU cores with one compute thread: one of the plain loop, one with a loader worker, which has the other core to itself. Other programs left both cores alone meanwhile (`data/recordings/provenance.json`). Any `*.pt.trace.json.gz` of your own opens in the same way, including CUDA traces.

# %%
from pathlib import Path

from perfkit import notebook as pk

folder = Path(pk.__file__).parents[2] / "data" / "recordings" / "traces"
before = pk.TraceView(folder / "photos-baseline.pt.trace.json.gz")
before.table("Health")

# %%
before.plot("breakdown")

# %% [markdown]
# The parts of a step add up to the whole step: waiting for the loader, operators, the rest. With an accelerator there are also kernels, copies and runtime calls. Time that overlaps with a kernel is counted once, for the kernel.

# %%
before.table("Mean step")

# %%
before.plot("timeline")

# %% [markdown]
# The same timeline, with zoom and pan (wheel, drag, arrow keys):

# %%
before.timeline()

# %% [markdown]
# ## Predict before you look
#
# What is the bottleneck of this loop: data, the host, or the device?

# %%
before.table("Diagnosis")

# %% [markdown]
# Amdahl's law bounds the gain: removing *all* exposed time gives this speed-up, so no fix for it can give more.
#
# ## Two traces
#
# The parts of the mean step, before and after. Before you credit the loader worker with a difference, check that it is one that a worker can cause. A worker loads batches in another process; it does not make operators faster. If operators differ too, something else differed between the two recordings: the number of threads, for example, or other work on the machine. In these two recordings, the operators take about the same time. What went away is the wait for the loader.

# %%
after = pk.TraceView(folder / "photos-data_loading.pt.trace.json.gz")
for view in (before, after):
    display(view.table("Mean step"))

# %% [markdown]
# ## The timeline of a GPU
#
# A trace of a GPU has more rows. This one is *simulated*: the article's loop with eight workers and without pinned memory, on its V100. The kernels are predicted one by one, no profiler ran, and the file has the form of PyTorch's traces.

# %%
gpu = pk.TraceView(folder / "sim-v100-data_loading.pt.trace.json.gz")
gpu.plot("timeline")

# %%
gpu.timeline()

# %% [markdown]
# Read it from the bottom:
#
# - **Streams of the GPU**: kernels and copies, in the order in which they ran. Where are the gaps? At the start of a step, the device waits for data; between short kernels, it waits for the host. Here the kernels wait for the copy: both are in one stream.
# - **Threads of the host**: the main thread launches forward, a thread of autograd launches backward. Both are done long before the kernels: the host is ahead.
# - **Waits** on the host: the long bar is the call that starts the copy. From pageable memory it blocks until the kernels before it and the copy itself are done. [Chapter 03](03_pinning.ipynb) removes that.
#
# Then the numbers, and what follows from them:

# %%
gpu.table("Diagnosis")

# %% [markdown]
# To simulate your own recipe, write `pk.profile("cifar_resnet18", "compile", device="sim:v100", host="article")`; it takes some seconds. Its file opens in [ui.perfetto.dev](https://ui.perfetto.dev), too.
#
# ## Your own run
#
# The profiler runs in a fresh process. Here the loader's workers also record when they fetch and collate each batch.

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
# - The profiler slows training down, and unevenly: many small operators look more expensive than they are. Measure the effect of a change without it.
# - A loader hidden behind kernels costs nothing now, but it may become the bottleneck as soon as the GPU gets faster. Compare supply with demand.
# - High utilisation does not mean good kernels: check the rows below it, down to Tensor Core time.
#
# ## What to remember
#
# - Timeline first, tables second: a summary hides what it has no category for.
# - A profile says *where*; measure *how much* without it.
# - Every gap has an owner: find out who was late, the loader or the host.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. The GPU is busy 97% of the time. What can still be gained?**
#
# <details><summary>At most 3%</summary>
#
# **No.** That is what filling the gaps would give. Faster kernels can give more.
#
# </details>
#
# <details><summary>Nothing, the GPU is at its limit</summary>
#
# **No.** Its limit is in FLOP/s and bytes/s (chapter 15), not in time.
#
# </details>
#
# <details><summary>A lot, perhaps: the kernels themselves may be slow</summary>
#
# **Right.** Busy means that some kernel runs. In the article, AMP and compiling doubled the rate after 97% had been reached.
#
# </details>
#
# **2. In a trace, `cudaStreamSynchronize` on the host takes 20 ms of each step. Is it slow?**
#
# <details><summary>Yes: replace it by a faster call</summary>
#
# **No.** The call does nothing but wait for the device.
#
# </details>
#
# <details><summary>No, waiting never costs anything</summary>
#
# **No.** While it waits, the host launches nothing, and the device may run out of work.
#
# </details>
#
# <details><summary>It is waiting: look at what the device does meanwhile</summary>
#
# **Right.** If kernels run all the time, the host is simply ahead. If the device is idle afterwards, the wait delays the next launches.
#
# </details>

# %% [markdown]
# ## Exercise
#
# Which part of the mean step is the largest in your own run? Give its key in `mine.analysis.mean_us`.

# %% tags=["exercise"]
answer = None  # a name

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    parts = {part: us for part, us in mine.analysis.mean_us.items() if us is not None}
    assert answer in parts, f"One of {', '.join(parts)}"
    assert parts[answer] == max(parts.values()), "There is a larger one"
    print(f"Right: {answer}, {parts[answer] / mine.analysis.mean_step_us:.0%} of the step")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# parts = {part: us for part, us in mine.analysis.mean_us.items() if us is not None}
# answer = max(parts, key=parts.get)
# ```
#
# </details>

# %% [markdown]
# Next: [10 the workbench](10_workbench.ipynb)
