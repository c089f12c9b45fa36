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
# *About 3 minutes at the preset `quick` on two cores. Needs: nothing special; a copy that can be seen needs a GPU.*
#
# A decoded image is bytes. With `uint8_copy` it stays bytes until it is on the device, which casts and normalises it: a quarter of the bytes to collate, to queue and to copy.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("uint8_copy", workload="cifar_resnet18")
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
# The bytes of a sample in the table are the mechanism, whatever the clock says. What proves them:

# %%
panel.proof()

# %% [markdown]
# ## One step further: resize on the device
#
# This workload enlarges its small images before they travel. With `device_resize` they travel small:

# %%
pk.StagePanel("device_resize", workload="cifar_resnet18").diff()

# %% [markdown]
# ## A stage that may do nothing
#
# `zero_grad_set_to_none` (the stage `zero_grad`) drops gradients instead of filling them with zeros. It is on the ladder because so many lists of tips have it, and because *no measurable difference* is a result:

# %%
pk.StagePanel("zero_grad", workload="cifar_resnet18").question()

# %% [markdown]
# ## When it does not help
#
# - Where neither the loader nor the copy shows in the step, there is nothing to save.
# - Casting and resizing become the device's work. On a CPU that is the same processor as before.
# - Augmentation that needs floats on the host brings the floats back.
#
# ## Exercise
#
# Measure both on top of the recipe that was just run: a ladder of `zero_grad` and `device_resize`, on the same workload.

# %% tags=["exercise"]
trial = None  # pk.LadderPanel([...], workload="cifar_resnet18", settings=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    runs = {run.stage: run for run in trial.runs}
    assert {"zero_grad", "device_resize"} <= set(runs), "Both stages belong into the ladder"
    fewer = runs["zero_grad"].batch_bytes_per_sample / runs["device_resize"].batch_bytes_per_sample
    assert fewer > 1, "The small image has fewer bytes: is uint8_copy on, too?"
    for name in ("zero_grad", "device_resize"):
        print(f"{runs[name].title}: {runs[name].speedup('previous').verdict}")
    print(f"Right. Resizing on the device: {fewer:.1f} times fewer bytes a sample")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# trial = pk.LadderPanel(
#     ["zero_grad", "device_resize"], workload="cifar_resnet18", settings=panel.runs[-1].recipe
# )
# trial.run()
# ```
#
# The bytes fall by the ratio of the two areas (less the label, which stays). Whether that shows in samples/s depends on how much of the step the data's way was.
#
# </details>

# %% [markdown]
# Next: [06 AMP](06_amp.ipynb)
