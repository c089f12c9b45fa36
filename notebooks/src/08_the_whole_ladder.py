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
# Ten stages, each on top of those before it that work here. A stage is measured in turn with the stage before it and with the baseline, so that the drift of a shared machine cancels.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk
from perfkit.ladder import stages as ladder

panel = pk.LadderPanel()
panel

# %% [markdown]
# The articles measured, on their machine:

# %%
Markdown("\n".join(f"- {o.title}: {o.published}" for o in ladder.OPTIMIZATIONS.values() if o.published))

# %% [markdown]
# ## Predict before you run
#
# Which stage will be the largest step up on *this* machine?

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
gains = {run.stage: run.speedup("previous") for run in panel.runs if run.speedup("previous")}
best = max(gains, key=lambda name: gains[name].ratio)
Markdown(
    f"You guessed **{my_guess}**; the largest step up was **{best}**: {gains[best].ratio:.2f} times as fast "
    f"({gains[best].low:.2f} to {gains[best].high:.2f}), {gains[best].verdict}."
)

# %% [markdown]
# ## When the ladder misleads
#
# - Its order is the article's, and arbitrary: a stage that comes after the bottleneck has moved looks better than it would have before. What an optimization is worth alone, and in company, is another question than this one.
# - Batch size changes the training; the others keep it, bit for bit or within a tolerance.
# - It says nothing about another model, another machine or another image size. Measure there.
#
# ## Exercise
#
# Which stages would you keep on this machine, going by their verdicts? List their names (`run.stage`) in the order of the ladder.

# %% tags=["exercise"]
answer = None  # a list of names

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    faster = [name for name, gain in gains.items() if gain.verdict == "faster"]
    assert answer == faster, f"Keep what is called faster: {len(faster)} of {len(gains)} measured stages"
    print("Right:", ", ".join(faster) or "none, where no interval excludes 1; measure longer")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = [name for name, gain in gains.items() if gain.verdict == "faster"]
# ```
#
# The rest cost nothing either, but a script is easier to read without them.
#
# </details>
#
# ## Further switches, by name
#
# Each is a stage of its own: put it into a ladder, or set its switch from the first stage on.
#
# | stage | switch | question |
# |---|---|---|
# | `batched_fetch` | `batched_fetch` | what does fetching one sample at a time through PIL cost? |
# | `device_dataset` | `device_dataset` | what if the whole data set lies on the device? |
# | `device_prefetch` | `device_prefetch` | does copying on a side stream hide the copy? |
# | `accumulation` | `accumulation` | what does one optimizer step for several batches save? |
# | `cpu_threads` | `cpu_threads` | do compute threads and loader workers fight for the cores? |
# | `fused_optimizer` | `optimizer_impl` | what do many small optimizer kernels cost? |
# | `tf32` | `tf32` | what does float32 with a shorter mantissa give? |
# | `cudnn_benchmark` | `cudnn_benchmark` | are cuDNN's default algorithms the best ones? |
# | `max_autotune` | `compile_mode` | does a longer search at compile time pay? |
# | `amp_fp16` | `amp` | does fp16 with gradient scaling serve better than bf16? |
#
# ```python
# more = pk.LadderPanel(["data_loading", "batched_fetch"], workload="cifar_resnet18", settings={"uint8_copy": True})
# more.run()
# more.table()
# ```
#
# The workload `photos` offers neither `device_resize` nor `device_dataset`; `cifar_resnet18` offers both. Your own is `workload="my_module:MyWorkload"`: see the README.

# %% [markdown]
# Back to [00 start here](00_start_here.ipynb)
