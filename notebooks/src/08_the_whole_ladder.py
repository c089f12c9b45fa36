# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · The whole ladder
#
# **What do all of them give together, and which of them matter here?**
#
# *About 5 minutes at the preset `quick` on two cores. Needs: nothing special.*
#
# Ten stages, each on top of those before it that work here. Neighbouring stages are measured in turn, so that the drift of a shared machine cancels.

# %%
from perfkit.notebook import LadderPanel

panel = LadderPanel()
panel

# %% [markdown]
# ## Predict before you run
#
# Which stage will give the most on this machine?

# %%
my_guess = "amp"

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

# %%
panel.plot("utilization")

# %% [markdown]
# ## Did it help *here*, and why?

# %%
panel.verdict()

# %%
from IPython.display import Markdown

gains = {r.stage: r.speedup("previous") for r in panel.runs if r.status == "ok" and r.speedup("previous")}
best = max(gains, key=lambda name: gains[name].ratio)
Markdown(
    f"You guessed **{my_guess}**; the largest step up was **{best}** ({gains[best].ratio:.2f}×, "
    f"{gains[best].low:.2f} to {gains[best].high:.2f}: {gains[best].verdict})."
)

# %% [markdown]
# ## When the ladder misleads
#
# Its order is the article's, and arbitrary: a stage that comes after the bottleneck has moved looks better than it did before. A stage marked *no measurable difference* is a result. What an optimization is worth alone, and in company, is another question than this one.
#
# ## Further switches, by name
#
# `LadderPanel(["data_loading", "batched_fetch"])` and so on: `batched_fetch`, `resident`, `device_prefetch`, `fused_optimizer` (switch `optimizer_impl`), `tf32`, `cudnn_benchmark`, `max_autotune` (switch `compile_mode`), `cpu_threads`, `accumulation`, `amp_fp16`. Any switch can be set from the first stage on: `LadderPanel(["amp"], settings={"channels_last": True})`.
#
# ## Exercise
#
# How many stages were measured, and how many could not be on this machine?

# %%
measured = [run.stage for run in panel.runs if run.status == "ok"]
missing = {run.title: run.reason for run in panel.runs if run.status != "ok"}
assert len(measured) + len(missing) == len(panel.runs), "Every stage is one or the other"
print(len(measured), "measured;", missing or "none missing")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Count by `status`: `ok` was measured, `not_applicable` says in `reason` what this machine or workload lacks.
#
# </details>

# %% [markdown]
# Back to [00 start here](00_start_here.ipynb)
