# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · Baseline
#
# *About 1 minute at the preset `quick` on two cores. Needs: nothing special.*
#
# Before anything is changed, measure. The plain loop fetches its data itself, computes in float32 and zeroes its gradients: nothing is optimised, nothing is hidden.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk
from perfkit.studies import engine

panel = pk.StagePanel("baseline")
panel

# %%
panel.question()

# %% [markdown]
# ## Predict before you run
#
# What share of a step does this loop spend waiting for data? Put *your* number in: 0 is never, 1 is always.

# %%
my_guess = 0.3

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
# ## Where does the time go *here*?
#
# A step has two parts: waiting in `next(loader)`, and everything else. The *ceiling* is the same step on one batch that is already on the device: what the loop would do if data were free.

# %%
panel.verdict()

# %%
run = panel.runs[-1]
waiting = run.data_wait_share or 0
Markdown(
    f"You guessed {my_guess:.0%}; measured: **{waiting:.0%}**. Most of the step is "
    f"**{'waiting for data' if waiting > 0.5 else 'computing'}**."
)

# %% [markdown]
# That every switch is off is not taken on trust, but read from the objects that were built:

# %%
panel.proof()

# %% [markdown]
# This is the loop that was measured, as a script of its own. It needs no perfkit; the later chapters show what they change in it.

# %%
Markdown(f"```python\n{next(iter(engine.scripts(panel.runs).values()))}```")

# %% [markdown]
# ## When a baseline misleads
#
# - The article's profiler did not blame the loader: its time hid under "CPU Exec" and "Other".
# - A number without an interval says little on a shared machine.
# - A step with a profiler attached is a slower step. Throughput is measured without one here.
#
# ## Exercise
#
# How many times as fast could this training be *at most*, if data cost nothing? Compute it from `run`.

# %% tags=["exercise"]
answer = None  # a number, computed from run.ceiling_samples_per_s and ...

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    reached = run.samples_per_s.median * answer
    assert abs(reached / run.ceiling_samples_per_s - 1) < 0.05, (
        "That many times the throughput is not the ceiling"
    )
    print(f"Right: at most {answer:.2f} times as fast")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = run.ceiling_samples_per_s / run.samples_per_s.median
# ```
#
# If it is close to 1, no loader in the world will make this training faster: look at the computation instead.
#
# </details>

# %% [markdown]
# Next: [02 data loading](02_data_loading.ipynb)
