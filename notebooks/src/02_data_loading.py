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
# Worker processes (`workers`) make the next batches while the model trains. `persistent_workers` keeps them from one epoch to the next; `prefetch_factor` says how many batches each keeps ready. They take the waiting away, as long as there are cores for them.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("data_loading")
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
# Workers change *when* a batch is made, not *what* is in it: look at the loss curves, they are the same bit for bit. What proves that each switch acts:

# %%
panel.proof()

# %% [markdown]
# ## When it does not help
#
# - Where the model does not wait, there is no waiting to take away.
# - On a CPU that trains, workers and model share the cores: `cpu_threads` may have to give way, and more workers than spare cores are slower than fewer.
# - Where a sample costs little, passing it between processes can cost more than making it. Then `batched_fetch` (a whole batch at once, without PIL) or `device_dataset` data (no loader at all) is the answer: chapter 08.
#
# ## Exercise
#
# Is one worker more still better? Run the recipe that was just measured with another number of `workers`. A recipe is plain data, so change one entry of it; a ladder of the stage `baseline` alone is a single run.

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
    print("Right. These two were not measured in turn: where the intervals overlap, call it no difference.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# now = panel.runs[-1].recipe
# trial = pk.LadderPanel(["baseline"], settings=now | {"workers": now["workers"] + 1})
# trial.run()
# ```
#
# As soon as the step no longer waits, a further worker has nothing to give, and on a CPU it takes a core away.
#
# </details>

# %% [markdown]
# Next: [03 pinning](03_pinning.ipynb)
