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
# *About 1 to 3 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: nothing special.*
#
# With a larger batch (`batch_size`), each kernel has more work and the optimizer takes fewer steps. It also needs more memory, and it **changes the training**: fewer, larger steps for the same samples.
#
# A small transformer trains here (`tiny_gpt`). Every operator costs some microseconds of Python and dispatch before it computes anything, and a step has the same number of operators whatever the batch. With 2 samples this overhead is a large part of the step, on a CPU as on a GPU. So a batch several times as large takes much less than several times as long:

# %%
from perfkit import notebook as pk

name = "tiny_gpt"
panel = pk.StagePanel("batch_size", workload=name, settings={"batch_size": 2})

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
# Compare samples/s, not step time: a larger batch has longer steps. The losses are plotted against *samples* for the same reason. They differ, because this stage changes the training:

# %%
panel.plot("losses")

# %%
small, large = panel.runs[:2]
samples, longer = (
    large.recipe["batch_size"] / small.recipe["batch_size"],
    large.step_s.value / small.step_s.value,
)
print(f"{samples:.0f} times the samples in a step that takes {longer:.1f} times as long")

# %% [markdown]
# The more a sample has to compute, the less there is to gain: overhead is a smaller part of its step. Compare with batches that fill the processor already (`pk.StagePanel("batch_size", workload="tiny_gpt")`: from 32 to 64 samples), or with a real input pipeline (`workload="photos"`), whose step waits for data.

# %% [markdown]
# ## The same on a simulated V100
#
# A small batch leaves a GPU partly idle: some kernels are too small to fill it, and launching them takes as long as running them. This is the article's machine with its own batch sizes, as a recorded simulation (nothing is measured: see [00](00_start_here.ipynb)):

# %%
simulated = pk.StagePanel("batch_size", device="recorded:sim-v100")
simulated.run()

# %% [markdown]
# ## When it does not help
#
# - A device that is already fully used does not get faster with larger batches; they only cost memory.
# - If the step waits for data, the larger batch just waits longer.
# - With fewer updates per epoch, training may need a different learning rate, or more epochs. What counts in the end is the time to a good model; samples/s is only half of that.
#
# ## What to remember
#
# - When the batch size changes, compare samples/s and not the time of a step.
# - A larger batch pays where overhead is a large part of the step: many small operators, or a device that is partly idle.
# - It changes the training. What counts is the time to a good model, so tune the learning rate again before you conclude anything.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. The batch is 16 times as large, samples/s rose by a third. What of GPU utilisation as `nvidia-smi` shows it?**
#
# <details><summary>It falls, because there are fewer steps</summary>
#
# **No.** There are fewer steps, but each is longer.
#
# </details>
#
# <details><summary>It may stay the same</summary>
#
# **Right.** It is the share of time in which at least one kernel runs. In the article it hardly changed, while the rate rose by 32%: the kernels did more in the same time.
#
# </details>
#
# <details><summary>It rises by a third</summary>
#
# **No.** Utilisation does not measure how much of the GPU a kernel uses.
#
# </details>
#
# **2. Twice the batch size, and twice the samples/s. Is training done in half the time?**
#
# <details><summary>No, the number of steps is the same</summary>
#
# **No.** There are half as many steps in an epoch.
#
# </details>
#
# <details><summary>Only if it needs no more epochs for the same accuracy</summary>
#
# **Right.** Samples/s is not time to train. Fewer, larger steps may need another learning rate, and more epochs.
#
# </details>
#
# <details><summary>Yes, the epoch takes half as long</summary>
#
# **No.** The epoch does. How many of them you need can change.
#
# </details>

# %% [markdown]
# ## Exercise
#
# `accumulation` adds up the gradients of several small batches before one optimizer step. It has the effective batch size of the larger batch without its memory. (The training is the same only for models without batch normalisation, which computes its statistics for each small batch.) Is it as fast, too? Run the recipe from *before* this stage, accumulating as many batches as make up the larger batch.

# %% tags=["exercise"]
trial = None  # pk.LadderPanel(["baseline"], workload=name, settings=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    small, large, yours = panel.runs[0], panel.runs[1], trial.runs[-1]
    assert yours.status == "ok", f"It was not measured: {yours.reason}"
    effective = yours.recipe["batch_size"] * yours.recipe["accumulation"]
    assert effective == large.recipe["batch_size"] > yours.recipe["batch_size"], (
        "The small batches must add up to the large one"
    )
    changed = {name for name, value in yours.recipe.items() if value != small.recipe[name]}
    assert changed == {"accumulation"}, f"Change only accumulation, not {', '.join(sorted(changed))}"
    for name, run in (("small", small), ("large", large), ("accumulated", yours)):
        print(f"{name}: {run.samples_per_s.value:.0f} samples/s, peak {run.peak_memory_bytes / 1e6:,.0f} MB")
    print("Right. Is the peak that of the small batch? And the speed?")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# now = panel.runs[0].recipe
# times = panel.runs[1].recipe["batch_size"] // now["batch_size"]
# trial = pk.LadderPanel(["baseline"], workload=name, settings=now | {"accumulation": times})
# trial.run()
# ```
#
# The kernels are as small as before, and there are as many: accumulation saves optimizer steps and nothing else.
#
# </details>

# %% [markdown]
# Next: [05 uint8 copy](05_uint8_copy.ipynb)
