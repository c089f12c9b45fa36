# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Pinning
#
# *About 1 minute at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: a CUDA GPU; without one the stage is n/a, and you calculate what it could gain.*
#
# In [the picture of two queues](00_start_here.ipynb), this chapter is about the copy, and about the host that waits for it.
#
# To copy from ordinary (pageable) memory, the driver first copies the data into a page-locked buffer of its own, and the host waits for that. From page-locked memory (`pin_memory`) the device reads directly: the copy is faster, and with `non_blocking` the host does not wait for it. In the article, 10 of the 37 ms of a step were such copies.
#
# On one CUDA stream the copy still queues with the kernels: it runs after those launched before it, and those launched after it wait for it. To overlap the copy with computation, it needs a *second stream*, and pinned memory. That is the switch `device_prefetch`. (The article's own figures show no overlap either: [chapter 19](19_checking_the_articles.ipynb).)

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

panel = pk.StagePanel("pinning", workload="cifar_resnet18")

# %% [markdown]
# The card of this optimization, in parts that open on a click:

# %%
panel.card()

# %% [markdown]
# ## What changes in the script
#
# A diff of two scripts, both exported from the program that is measured: as on this machine and, where that differs, as on a GPU.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# What speed-up do you expect? 1 means no change, below 1 means slower. Enter *your* number under *Guess*; the panel sets it beside the result and the article's figure. (In code: `panel.predict(1.5)`.)

# %%
panel

# %% [markdown]
# ## Run
#
# Press *Run* in the panel, or run the next cell: the result appears below the one that you used.

# %%
panel.run()

# %% [markdown]
# ## Did it help *here*, and why?
#
# Without an accelerator nothing is copied from host to device, so there is nothing to pin: the stage is n/a with its reason, and never counts as measured. On a GPU, the panel shows the evidence that the switches are in effect.

# %% [markdown]
# ## What could it gain?
#
# Pinning can save at most the copy time. Estimate it: bytes per batch ÷ bandwidth, compared with the step. The bandwidth below is an assumption.

# %%
run = panel.runs[0]
bytes_per_second = 12e9  # an assumption: roughly PCIe 3.0 with 16 lanes; enter your own
batch_bytes = run.batch_bytes_per_sample * run.recipe["batch_size"]
copy_s = batch_bytes / bytes_per_second
Markdown(
    f"A batch of {run.recipe['batch_size']} samples has {batch_bytes / 1e6:.1f} MB. "
    f"At this bandwidth its copy would take {copy_s * 1e3:.2f} ms; a step here takes {run.step_s.value * 1e3:.1f} ms."
)

# %% [markdown]
# ## The same on a simulated V100
#
# On a GPU there is a copy to shorten. [Chapter 09](09_reading_a_profile.ipynb) shows the timeline of the step before: the copy, and the host that waits for it. This is the article's machine, as a recorded simulation (nothing is measured: see [00](00_start_here.ipynb)). What the article reports for this stage is quoted in the panel.

# %%
pk.recording("sim-v100", "pinning")

# %% [markdown]
# ## When it does not help
#
# - If the step is bound by computation and the copy is short, there is little to gain. Open Hackathons' profiling bootcamp dropped its `non_blocking` exercise: with ResNet-18 at batch size 256 on an L4, it had no measurable effect.
# - `non_blocking` does little for pageable memory: the host still waits while the driver copies the data into its own buffer.
# - Pinning is not free: page-locked memory cannot be swapped or used by other processes. Calling `pin_memory()` on each batch in the training loop can be slower than a plain copy.
#
# ## What to remember
#
# - Pinned memory makes the copy faster; `non_blocking` frees the host; a second stream hides the copy. Three switches, three effects.
# - The copy bounds the gain: bytes ÷ bandwidth, compared with the step.
# - In the article the copies were still visible after pinning. The next thing to try is fewer bytes: [05](05_uint8_copy.ipynb).
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. `pin_memory=True` and `non_blocking=True`, everything on the default stream. Does the copy of the next batch overlap with the kernels of this one?**
#
# <details><summary>Yes, that is what <code>non_blocking</code> means</summary>
#
# **No.** The *host* is not blocked. On the device the copy is one more entry in the same queue.
#
# </details>
#
# <details><summary>No: it queues behind them</summary>
#
# **Right.** One stream runs its work in order. The copy is faster, and the host is free; overlap takes a second stream.
#
# </details>
#
# <details><summary>Yes, because copies have an engine of their own</summary>
#
# **No.** The GPU has one, but within a stream order comes first.
#
# </details>
#
# **2. `x.to("cuda", non_blocking=True)` where `x` is in ordinary memory. What happens?**
#
# <details><summary>An error</summary>
#
# **No.** It is allowed, and silently does what it can.
#
# </details>
#
# <details><summary>The host waits while the driver copies <code>x</code> into its own pinned buffer</summary>
#
# **Right.** Without pinned memory there is little to gain from `non_blocking`.
#
# </details>
#
# <details><summary>The same as with pinned memory</summary>
#
# **No.** The driver cannot let the device read pages that may be moved or swapped out.
#
# </details>
#
# **3. Copies take 3% of your step. What can pinning give you?**
#
# <details><summary>About what it gave the article</summary>
#
# **No.** The article's copies took 10 of 37 ms. Yours are another share of another step.
#
# </details>
#
# <details><summary>At most about 3%</summary>
#
# **Right.** It can save no more than the copies take. First look at how long they are.
#
# </details>
#
# <details><summary>Nothing, unless there are workers</summary>
#
# **No.** Pinning works without workers, too: the loader's thread pins the batches.
#
# </details>

# %% [markdown]
# ## Exercise
#
# Suppose the copy, at this bandwidth, came on top of the step above. What is the largest speed-up if the copy then cost nothing at all?

# %% tags=["exercise"]
answer = None  # a number, computed from copy_s and run.step_s.value

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    gain = copy_s / run.step_s.value
    assert abs(answer - 1 - gain) < 0.01 * gain, (
        "With the copy: step + copy. Without it: the step alone. Do not round the result"
    )
    print(f"Right: at most {answer:.4f} times as fast")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = (run.step_s.value + copy_s) / run.step_s.value
# ```
#
# A GPU's steps are short, so the same copy is a larger part of them. That is why pinning helped in the article.
#
# </details>

# %% [markdown]
# Next: [04 batch size](04_batch_size.ipynb)
