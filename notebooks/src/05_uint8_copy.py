# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 · uint8 copy
#
# **How many bytes must cross?**
#
# *About 3 minutes at the preset `quick` on two cores. Needs: nothing special; the effect on the copy needs a GPU.*
#
# Images are bytes when they are decoded. With `uint8_copy` they stay bytes until they are on the device, which casts and normalises them: a quarter of the bytes to collate, queue and copy. With `device_resize` even the enlarging happens there.

# %%
from perfkit.notebook import StagePanel

panel = StagePanel("uint8_copy", workload="cifar_resnet18")
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
panel.predict(1.1)

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
# Look at the bytes of a sample in the table: that is the mechanism, whatever the clock says.
#
# The evidence that each switch really acts, taken from the objects that were built:

# %%
panel.proof()

# %% [markdown]
# ## One step further: resize on the device
#
# A 32 × 32 image that is enlarged on the device needs far fewer bytes than its enlarged copy. The diff:

# %%
StagePanel("device_resize", workload="cifar_resnet18").diff()

# %% [markdown]
# ## When it does not help
#
# Where neither loader nor copy shows in the step, there is nothing to save. And a stage may do nothing at all: `set_to_none` (the stage `zero_grad`) is on the ladder for that lesson.

# %% [markdown]
# ## Exercise
#
# How many times fewer bytes has a sample now?

# %%
before, after = panel.runs[0], panel.runs[-1]
fewer = before.batch_bytes_per_sample / after.batch_bytes_per_sample
assert 3.5 < fewer < 4.5, "float32 has four bytes, uint8 has one (and each sample has a label)"
print(f"{fewer:.1f} times fewer bytes a sample")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Nearly four times: float32 has four bytes a value, uint8 one; the label's eight bytes stay.
#
# </details>

# %% [markdown]
# Next: [06 AMP](06_amp.ipynb)
