# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · Batch size
#
# **Does a larger batch use the device better?**
#
# *About 2 minutes at the preset `quick` on two cores. Needs: nothing special.*
#
# A larger batch (`batch_size`) gives each kernel more work and steps the optimizer less often. It also **changes the training**: fewer, larger steps for the same samples. `accumulation` has the same effect on the training without the memory, and without the speed.

# %%
from perfkit.notebook import StagePanel

panel = StagePanel("batch_size")
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
panel.predict(1.3)

# %% [markdown]
# ## Run

# %%
panel.run()

# %%
panel.table()

# %%
panel.plot("throughput")

# %%
panel.plot("memory")

# %%
panel.plot("losses")

# %% [markdown]
# ## Did it help *here*, and why?

# %%
panel.verdict()

# %%
panel.score()

# %% [markdown]
# Compare samples/s, not the time of a step: a larger batch has longer steps. The loss curves are drawn over *samples* for the same reason.
#
# The evidence that each switch really acts, taken from the objects that were built:

# %%
panel.proof()

# %% [markdown]
# ## When it does not help
#
# Beyond the size that fills the device, a larger batch only costs memory, and can be slower. Convergence may suffer; the learning rate usually has to be set anew.

# %% [markdown]
# ## Exercise
#
# How much memory does a sample cost? Compute it from the two runs.

# %%
before, after = panel.runs[0], panel.runs[-1]
more = after.recipe["batch_size"] - before.recipe["batch_size"]
assert more > 0, "The second run has the larger batch"
print(
    f"about {(after.peak_memory_bytes - before.peak_memory_bytes) / more / 1e6:.2f} MB for each sample more"
)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The difference of the peaks divided by the difference of the batch sizes: mostly activations that wait for the backward pass.
#
# </details>

# %% [markdown]
# Next: [05 uint8 copy](05_uint8_copy.ipynb)
