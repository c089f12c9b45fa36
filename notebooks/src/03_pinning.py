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
# **Can the copy to the device overlap with the computation?**
#
# *About 2 minutes at the preset `quick` on two cores. Needs: a CUDA GPU; without one this chapter says why there is nothing to measure.*
#
# A copy from pageable memory makes the host wait. From page-locked memory (`pin_memory`) the device's copy engine can fetch by itself, and with `non_blocking` the host goes on. `device_prefetch` goes further and copies the next batch on a stream of its own.

# %%
from perfkit.notebook import StagePanel

panel = StagePanel("pinning", workload="cifar_resnet18")
panel.question()

# %% [markdown]
# ## What changes in the script
#
# The two scripts below are real: `perfkit export` writes them, and the harness runs the same program.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# How many times as fast will the training be? Below 1 is slower, 1 is no change. Put *your* number in.

# %%
panel.predict(1.2)

# %% [markdown]
# ## Run

# %%
panel.run()

# %%
panel.table()

# %%
panel.plot("throughput")

# %%
panel.plot("step_time")

# %% [markdown]
# ## Did it help *here*, and why?

# %%
panel.verdict()

# %%
panel.score()

# %% [markdown]
# Without an accelerator nothing crosses from host to device. The stage is then shown as n/a with its reason, and is not counted as measured.
#
# The evidence that each switch really acts, taken from the objects that were built:

# %%
panel.proof()

# %% [markdown]
# ## When it does not help
#
# Where the step is bound by computing, the copy was hidden already. A workshop once had to drop its `non_blocking` lesson because no difference could be measured on its GPU. `non_blocking` from pageable memory is silently synchronous.

# %% [markdown]
# ## Exercise
#
# Read from the run whether the stage was measured; if not, print why.

# %%
last = panel.runs[-1]
assert last.status in ("ok", "not_applicable"), last.reason
print(last.evidence("pin_memory") or last.reason)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `status` is `ok` on a CUDA device, and the evidence says that the batch is page-locked. Elsewhere it is `not_applicable`, and `reason` says what is missing.
#
# </details>

# %% [markdown]
# Next: [04 batch size](04_batch_size.ipynb)
