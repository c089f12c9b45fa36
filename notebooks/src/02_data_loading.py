# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · Data loading
#
# **Does the model wait for data, and do loader workers end that?**
#
# *About 2 minutes at the preset `quick` on two cores. Needs: two cores or more.*
#
# Loader workers (`workers`) fetch the next batches while the model trains; `persistent_workers` keeps them alive between epochs, and `prefetch_factor` says how many batches each keeps ready. They take the waiting away, as long as there are cores for them.

# %%
from perfkit.notebook import StagePanel

panel = StagePanel("data_loading")
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
panel.predict(1.5)

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

# %%
panel.plot("losses")

# %% [markdown]
# ## Did it help *here*, and why?

# %%
panel.verdict()

# %%
panel.score()

# %% [markdown]
# Workers change *when* data is made, not *what* is made: the losses before and after are the same, bit for bit.
#
# The evidence that each switch really acts, taken from the objects that were built:

# %%
panel.proof()

# %% [markdown]
# ## When it does not help
#
# Where the model does not wait, there is nothing to take away. On a CPU that trains, workers and model share the cores. `batched_fetch` (a whole batch at once, without PIL) helps where the cost of a sample is Python; `resident` data needs no loader at all. Both can be tried in chapter 08.

# %% [markdown]
# ## Exercise
#
# Are the losses of both runs the same? Check it.

# %%
before, after = panel.runs[0], panel.runs[-1]
assert after.status != "ok" or before.losses == after.losses, (
    "The order depends on the seed alone: they must be equal"
)
print("same losses" if after.status == "ok" else after.reason)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They are equal: the order of the samples comes from a seeded generator in the main process, whoever fetches them. That is what *bitwise* means on the card.
#
# </details>

# %% [markdown]
# Next: [03 pinning](03_pinning.ipynb)
