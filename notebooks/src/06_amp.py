# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 · Automatic mixed precision
#
# *About 2 minutes at the preset `quick` on two cores. Needs: a GPU with Tensor Cores, or a CPU with AMX or AVX512-BF16, to be faster.*
#
# Autocast (`amp`) runs matrix products and convolutions in 16 bits, where matrix units are several times faster. `bf16` has float32's range. `fp16` has not, so small gradients are scaled up first (`GradScaler`). `channels_last` lays the data out as these units read it; `tf32` is what float32 itself can borrow from them.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("amp")
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
panel.predict(2)

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
# Losses agree within a tolerance, not bit for bit: products are rounded more coarsely, sums and the loss stay in float32. (The preset `paper` also raises the batch in this stage, as the article did.) What proves that 16 bits are used:

# %%
panel.proof()

# %% [markdown]
# ## fp16 and its scaler
#
# What fp16 would change on top of the ladder, or why it cannot act here:

# %%
pk.StagePanel("amp_fp16").diff()

# %% [markdown]
# ## When it does not help
#
# - A step that waits for data waits as long as before.
# - Without 16-bit units the casts only cost time.
# - Small or oddly shaped layers do not fill matrix units: sizes that are multiples of 8 do better.
#
# ## Exercise
#
# The ladder switched `channels_last` on one stage before AMP. How much of the gain hangs on it? Run the recipe with AMP, but without `channels_last`.

# %% tags=["exercise"]
trial = None  # pk.LadderPanel(["baseline"], settings=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    ours, yours = panel.runs[-1], trial.runs[-1]
    assert yours.status == "ok", f"It was not measured: {yours.reason}"
    assert not yours.recipe["channels_last"], "Switch channels_last off"
    assert yours.recipe["amp"] == ours.recipe["amp"], "Leave AMP as it was"
    for name, run in (("with channels_last", ours), ("without", yours)):
        rate = run.samples_per_s
        print(
            f"{name}: {rate.median:.0f} samples/s ({rate.low:.0f} to {rate.high:.0f}), first loss {run.losses[0]:.3f}"
        )
    print("Right. These two were not measured in turn: where the intervals overlap, call it no difference.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# trial = pk.LadderPanel(["baseline"], settings=panel.runs[-1].recipe | {"channels_last": False})
# trial.run()
# ```
#
# The first losses are nearly the same: the weights are the same, and so is the data. Optimizations lean on each other, so a stage's gain depends on what came before it.
#
# </details>

# %% [markdown]
# Next: [07 compile](07_compile.ipynb)
