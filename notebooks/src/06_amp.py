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
# **What do 16-bit matrix units give?**
#
# *About 2 minutes at the preset `quick` on two cores. Needs: a GPU with Tensor Cores, or a CPU with AMX or AVX512-BF16.*
#
# With `amp` autocast runs matrix products and convolutions in 16 bits, where matrix units are several times faster. `bf16` has float32's range and needs no scaler; `fp16` needs gradient scaling. `channels_last` lays the data out as those units read it, and `tf32` is what float32 can borrow from them.

# %%
from perfkit.notebook import StagePanel

panel = StagePanel("amp")
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
# The logits are 16 bits wide now; sums and the loss are not. Losses agree within a tolerance, not bit for bit.
#
# The evidence that each switch really acts, taken from the objects that were built:

# %%
panel.proof()

# %% [markdown]
# ## When it does not help
#
# A step that waits for data waits as long as before. Without 16-bit units the casts only cost time. On a CPU `fp16` is n/a: its scaler is made for accelerators.

# %% [markdown]
# ## Exercise
#
# Do the losses agree? Compare the first ones within two percent.

# %%
before, after = panel.runs[0], panel.runs[-1]
same_data = before.recipe["batch_size"] == after.recipe["batch_size"]
close = abs(before.losses[0] - after.losses[0]) <= 0.02 * abs(before.losses[0])
assert after.status != "ok" or not same_data or close, (
    "bf16 has 8 bits of mantissa: the first losses agree to about 1%"
)
print([f"{a:.3f} / {b:.3f}" for a, b in zip(before.losses, after.losses, strict=False)])

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first losses agree closely: the weights are the same, only the products are rounded more coarsely. Later ones drift apart slowly.
#
# </details>

# %% [markdown]
# Next: [07 compile](07_compile.ipynb)
