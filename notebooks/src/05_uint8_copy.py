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
# *About 4 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: nothing special; only a GPU has a copy to the device.*
#
# A decoded image consists of bytes. With `uint8_copy` it stays `uint8` until it is on the device, which converts it to float and normalises it. Collating, queueing and copying then handle a quarter of the bytes.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("uint8_copy", workload="cifar_resnet18")
panel

# %%
panel.question()

# %% [markdown]
# ## What changes in the script
#
# A diff of two scripts, both exported from the program that is measured: as on this machine and, where that differs, as on a GPU.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# What speed-up do you expect? 1 means no change, below 1 means slower. Enter *your* number.

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

# %%
panel.plot("memory")

# %% [markdown]
# ## Did it help *here*, and why?

# %%
panel.verdict()

# %%
panel.score()

# %% [markdown]
# The *bytes/sample* in the table show that the switch works, whether or not it makes the step faster. The evidence:

# %%
panel.proof()

# %% [markdown]
# ## One step further: resize on the device
#
# This workload enlarges its small images before they are copied. With `device_resize` they are copied small and enlarged on the device:

# %%
pk.StagePanel("device_resize", workload="cifar_resnet18").diff()

# %% [markdown]
# ## A tip that has expired
#
# The article's next step, `zero_grad(set_to_none=True)`, discards gradients instead of filling them with zeros. It has been PyTorch's default since version 2.0, the article's own version, so there was nothing to switch on ([chapter 19](19_checking_the_articles.ipynb)). The stage `zero_grad` goes the other way: it fills the gradients with zeros (`zero_grad_set_to_none=false`), to measure what the tip was worth. *No measurable difference* is a result, too:

# %%
pk.StagePanel("zero_grad", workload="cifar_resnet18").question()

# %% [markdown]
# ## The same on a simulated V100
#
# The batch has a quarter of the bytes, and so has its copy to a GPU. Whether that shows depends on how much of the step the copy took. This is the article's machine, as a recorded simulation (nothing is measured: see [00](00_start_here.ipynb)):

# %%
simulated = pk.StagePanel("uint8_copy", device="recorded:sim-v100")
simulated.run()
simulated.table()

# %%
simulated.verdict()

# %% [markdown]
# ## When it does not help
#
# - If neither the loader nor the copy takes a visible part of the step, there is nothing to save.
# - Casting and resizing become the device's work. When the CPU trains the model, that is the same processor as before.
# - If an augmentation needs float input, run it on the device too, or you ship floats again.
#
# ## Exercise
#
# Measure both on top of the recipe that you just ran: a ladder of `zero_grad` and `device_resize`, on the same workload.

# %% tags=["exercise"]
trial = None  # pk.LadderPanel([...], workload="cifar_resnet18", settings=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    runs = {run.stage: run for run in trial.runs}
    assert {"zero_grad", "device_resize"} <= set(runs), "Put both stages into the ladder"
    fewer = runs["zero_grad"].batch_bytes_per_sample / runs["device_resize"].batch_bytes_per_sample
    assert fewer > 1, "The small image should have fewer bytes: is uint8_copy on, too?"
    for name in ("zero_grad", "device_resize"):
        print(f"{runs[name].title}: {runs[name].speedup('previous').verdict}")
    print(f"Right. Resizing on the device divides the bytes per sample by {fewer:.1f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# trial = pk.LadderPanel(
#     ["zero_grad", "device_resize"], workload="cifar_resnet18", settings=panel.runs[1].recipe
# )
# trial.run()
# ```
#
# The image's bytes shrink with its area; the label stays as it is. You will see it in samples/s only if moving data was a large part of the step.
#
# </details>

# %% [markdown]
# Next: [06 AMP](06_amp.ipynb)
