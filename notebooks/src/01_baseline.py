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
# **How fast is the plain loop, and where does its time go?**
#
# *About 2 minutes at the preset `quick` on two cores. Needs: nothing special.*
#
# Before anything is changed, measure. The plain loop fetches data itself, computes in float32, and zeroes its gradients: nothing is optimised, and nothing is hidden.

# %%
from perfkit.notebook import LadderPanel

panel = LadderPanel(["baseline"])
panel

# %% [markdown]
# ## Predict before you run
#
# What share of a step does the loop spend waiting for data? Write your number down (0 to 1).

# %%
my_guess = 0.3

# %% [markdown]
# ## Run

# %%
panel.run()

# %%
panel.table()

# %%
panel.plot("step_time")

# %%
panel.plot("losses")

# %% [markdown]
# ## What we see
#
# The step has two parts: waiting in `next(loader)`, and everything else. The *ceiling* is the same step on one batch that is already on the device: what the model could do if data were free.

# %%
from IPython.display import Markdown

run = panel.runs[-1]
bound = "data" if run.data_wait_share > 0.2 else "the computation"
Markdown(
    f"You guessed {my_guess:.0%}; measured: **{run.data_wait_share:.0%}** of the step waits for data. "
    f"Here the loop is bound by **{bound}**. "
    f"It reaches {run.samples_per_s.median:.0f} samples/s; with free data it could reach "
    f"{run.ceiling_samples_per_s:.0f}."
)

# %% [markdown]
# Every switch is off, and that too is proven from the built objects:

# %%
panel.proof()

# %% [markdown]
# ## When a baseline misleads
#
# The profiler of the article did not blame the loader: its time hid under "CPU Exec" and "Other". A number without an interval says little on a shared machine. And a step that is measured with a profiler attached is a slower step: throughput here is always measured without one.

# %% [markdown]
# ## Exercise
#
# What would the training gain at most if data cost nothing? Compute it from the run.

# %%
gain_at_most = run.ceiling_samples_per_s / run.samples_per_s.median
assert gain_at_most > 0, "It is the ceiling divided by the throughput"
print(f"at most {gain_at_most:.2f} times as fast")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The ceiling divided by the throughput. If it is close to 1, no loader in the world will make this training faster: look at the computation instead.
#
# </details>

# %% [markdown]
# Next: [02 data loading](02_data_loading.ipynb)
