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
# *About 2 minutes at the preset `quick` on two cores. Needs: nothing special.*
#
# A larger batch (`batch_size`) gives each kernel more work and the optimizer fewer steps. It also takes more memory, and it **changes the training**: fewer, larger steps for the same samples.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("batch_size")
panel

# %%
panel.question()

# %% [markdown]
# ## What changes in the script
#
# This is the difference of two real scripts: what is measured is the same program.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# How many times as fast will the training be? 1 is no change, below 1 is slower. Put *your* number in.

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
panel.plot("step_time")

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
# Compare samples/s, never the time of a step: a larger batch has longer steps. The losses are drawn over *samples* for the same reason; they differ, because this stage does not keep the training as it was. What proves it:

# %%
panel.proof()

# %% [markdown]
# ## When it does not help
#
# - A device that is full already is not used better by more samples at once; the larger batch then only costs memory.
# - Where the step waits for data, the larger batch waits longer.
# - Fewer updates a pass may need another learning rate, or more passes. Time to a good model is what counts in the end; samples/s is only half of it.
#
# ## Exercise
#
# `accumulation` adds up the gradients of several small batches before one optimizer step: the training of the larger batch without its memory. Does it bring the speed as well? Run the recipe of *before* with as many batches accumulated as make up the larger batch.

# %% tags=["exercise"]
trial = None  # pk.LadderPanel(["baseline"], settings=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    small, large, yours = panel.runs[0], panel.runs[-1], trial.runs[-1]
    assert yours.status == "ok", f"It was not measured: {yours.reason}"
    effective = yours.recipe["batch_size"] * yours.recipe["accumulation"]
    assert effective == large.recipe["batch_size"] > yours.recipe["batch_size"], (
        "Small batches, adding up to the large"
    )
    for name, run in (("small", small), ("large", large), ("accumulated", yours)):
        print(f"{name}: {run.samples_per_s.median:.0f} samples/s, peak {run.peak_memory_bytes / 1e6:,.0f} MB")
    print("Right. Is the peak that of the small batch, and the speed?")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# now = panel.runs[0].recipe
# times = panel.runs[-1].recipe["batch_size"] // now["batch_size"]
# trial = pk.LadderPanel(["baseline"], settings=now | {"accumulation": times})
# trial.run()
# ```
#
# The kernels are as small as before, so accumulation saves optimizer steps and nothing else.
#
# </details>

# %% [markdown]
# Next: [05 uint8 copy](05_uint8_copy.ipynb)
