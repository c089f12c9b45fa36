# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Pinning
#
# *About 1 minute at the preset `quick` on two cores. Needs: a CUDA GPU; without one the stage is n/a, and you calculate what it could give.*
#
# A copy from pageable memory makes the host wait. Page-locked memory (`pin_memory`) can be fetched by the device's own copy engine, and with `non_blocking` the host goes on meanwhile. `device_prefetch` goes one step further and copies the next batch on a stream of its own.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

panel = pk.StagePanel("pinning", workload="cifar_resnet18")
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
panel.predict(1.2)

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

# %% [markdown]
# ## Did it help *here*, and why?

# %%
panel.verdict()

# %%
panel.score()

# %% [markdown]
# Without an accelerator nothing crosses from host to device, so there is nothing to pin: the stage is n/a with its reason, and is never counted as measured. What proves that the switches act, where they can:

# %%
panel.proof()

# %% [markdown]
# ## What could it give?
#
# Pinning can hide the copy, and no more than the copy. So weigh the batch, and compare its copy with the step. The bandwidth is an assumption; `01_baseline` told you whether the step has other troubles.

# %%
run = panel.runs[0]
bytes_per_second = 12e9  # an assumption: about what PCIe 3.0 with 16 lanes reaches; put yours in
batch_bytes = run.batch_bytes_per_sample * run.recipe["batch_size"]
copy_s = batch_bytes / bytes_per_second
Markdown(
    f"A batch of {run.recipe['batch_size']} samples weighs {batch_bytes / 1e6:.1f} MB. "
    f"At this bandwidth its copy would take {copy_s * 1e3:.2f} ms; a step here takes {run.step_s.median * 1e3:.1f} ms."
)

# %% [markdown]
# ## When it does not help
#
# - Where the step is bound by computing and the copy is short beside it, there is little to hide. The authors of a workshop had to drop their `non_blocking` lesson: on its GPU nothing could be measured.
# - `non_blocking` from pageable memory is silently synchronous.
# - Pinning is not free: locked pages are taken from everyone else. Pinning by hand in the loop can be slower than a plain copy.
#
# ## Exercise
#
# How many times as fast would the step above be at most, if its copy at this bandwidth came on top of it and were hidden completely?

# %% tags=["exercise"]
answer = None  # a number, computed from copy_s and run.step_s.median

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    step_s = run.step_s.median
    assert abs(answer * step_s - copy_s - step_s) < 0.01 * step_s, (
        "With the copy: step + copy. Hidden: the step alone"
    )
    print(f"Right: at most {answer:.3f} times as fast")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = (run.step_s.median + copy_s) / run.step_s.median
# ```
#
# A fast model on a GPU has short steps, so the same copy weighs more there. That is why pinning paid in the article.
#
# </details>

# %% [markdown]
# Next: [04 batch size](04_batch_size.ipynb)
