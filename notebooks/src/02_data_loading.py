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
# *About 2 minutes at the preset `quick` on two cores. Needs: two cores or more.*
#
# Worker processes (`workers`) load the next batches while the model trains. `persistent_workers` keeps them alive from one epoch to the next; `prefetch_factor` is the number of batches that each worker loads in advance. Workers remove the waiting as long as there are CPU cores for them. The article's machine had 8 vCPUs, and so it used 8 workers.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("data_loading")
panel

# %%
panel.question()

# %% [markdown]
# ## What changes in the script
#
# This diff shows the stage's own switches, applied to the script of the baseline. If the baseline waits a lot for data on a CPU, the measured run also divides the cores between workers and compute threads (`cpu_threads`); the list after the run shows every switch that differed.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# What speed-up do you expect? 1 means no change, below 1 means slower. Enter *your* number.

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
# Every switch in which the two measured recipes differ, before → after. The verdict above is about all of them together:

# %%
before, after = panel.runs[0].recipe, panel.runs[-1].recipe
for switch, value in after.items():
    if value != before[switch]:
        print(f"{switch}: {before[switch]} → {value}")

# %% [markdown]
# Workers change *when* a batch is loaded, not *what* is in it. Compare the two loss curves above. If `cpu_threads` is in the list, the losses may differ in their last digits, because another number of threads adds floating-point numbers in another order. The evidence that each switch is in effect:

# %%
panel.proof()

# %% [markdown]
# ## When it does not help
#
# - If the model does not wait for data, there is no waiting to remove.
# - When the CPU also trains the model, workers and compute threads share the cores. Use fewer compute threads (`cpu_threads`) then; more workers than spare cores make training slower.
# - If a sample is cheap to make, passing it between processes can cost more than making it. Then load a whole batch at once without PIL (`batched_fetch`), or keep the dataset on the device (`device_dataset`): see chapter 08.
#
# ## Exercise
#
# Would one more worker be better still? Run the recipe that you just measured with a different number of `workers`. A recipe is plain data, so change one entry of it; a ladder with only the stage `baseline` is a single run.

# %% tags=["exercise"]
trial = None  # pk.LadderPanel(["baseline"], settings=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    ours, yours = panel.runs[-1], trial.runs[-1]
    assert yours.status == "ok", f"It was not measured: {yours.reason}"
    assert yours.recipe["workers"] != ours.recipe["workers"], "Change the number of workers"
    for run in (ours, yours):
        rate = run.samples_per_s
        print(
            f"{run.recipe['workers']} workers: {rate.median:.0f} samples/s ({rate.low:.0f} to {rate.high:.0f})"
        )
    print("Right. These two runs were not interleaved: if their intervals overlap, call it no difference.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# now = panel.runs[-1].recipe
# trial = pk.LadderPanel(["baseline"], settings=now | {"workers": now["workers"] + 1})
# trial.run()
# ```
#
# As soon as the step no longer waits, another worker gains nothing, and when the CPU trains the model it also costs a core.
#
# </details>

# %% [markdown]
# Next: [03 pinning](03_pinning.ipynb)
