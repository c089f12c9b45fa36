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
# *About 2 to 7 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 10 (planned, not timed). Needs: nothing special; only a GPU has a copy to the device.*
#
# A decoded image consists of bytes. With `uint8_copy` it stays `uint8` until it is on the device, which converts it to float and normalises it. Collating, queueing and copying then handle a quarter of the bytes.
#
# A folder of photos trains a small model here (`photos`), so that the loader is the bottleneck on most machines. With the article's ResNet-18 (`workload="cifar_resnet18"`), a CPU computes for so long that it hardly notices what loading costs.

# %%
from perfkit import notebook as pk

name = "photos"
panel = pk.StagePanel("uint8_copy", workload=name)

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
# The bytes per sample show that the switch works, whether or not it makes the step faster:

# %%
before, after = panel.runs[0], panel.runs[1]
print(
    f"{before.batch_bytes_per_sample:,} bytes per sample before, {after.batch_bytes_per_sample or 0:,} after"
)

# %% [markdown]
# ## One step further: resize on the device
#
# The article's workload enlarges its small images before they are copied. With `device_resize` they are copied small and enlarged on the device (photos of different sizes form a batch only after they are resized, so `photos` cannot do that):

# %%
pk.StagePanel("device_resize", workload="cifar_resnet18").diff()

# %% [markdown]
# ## And not one image at a time
#
# The loader so far calls the data set once per image: a PIL object, its transforms, then a copy into the batch. A data set with `__getitems__` fetches a batch in one call (`batched_fetch`), and its transforms run once per batch. All three together leave the loader next to nothing to do:

# %%
fetching = pk.RecipePanel(
    {
        "one image at a time": {},
        "a batch in one call": {"batched_fetch": True},
        "in uint8, enlarged on the device": {
            "batched_fetch": True,
            "uint8_copy": True,
            "device_resize": True,
        },
    },
    workload="cifar_resnet18",
)
fetching.run()

# %% [markdown]
# Here too, the model's processor is the loader's. What enlarging costs the CPU is saved on a GPU, which does it in passing.

# %% [markdown]
# ## A tip that has expired
#
# The article's next step, `zero_grad(set_to_none=True)`, discards gradients instead of filling them with zeros. It has been PyTorch's default since version 2.0, the article's own version, so there was nothing to switch on ([chapter 19](19_checking_the_articles.ipynb)). The stage `zero_grad` goes the other way: it fills the gradients with zeros (`zero_grad_set_to_none=false`), to measure what the tip was worth.
#
# In most models that is next to nothing: zeros are written, and then the gradients are added to them. It matters where a step leaves many weights out, as in a mixture of experts: gradients that are `None` are skipped by the optimizer; gradients of zeros are filled, read and added to the weights in every step. With momentum or Adam the training differs, too: a gradient of zeros still moves a weight that has momentum, and a missing one does not.

# %% [markdown]
# ## The same on a simulated V100
#
# The batch has a quarter of the bytes, and so has its copy to a GPU. Whether that shows depends on how much of the step the copy took. This is the article's machine, as a recorded simulation (nothing is measured: see [00](00_start_here.ipynb)):

# %%
simulated = pk.StagePanel("uint8_copy", device="recorded:sim-v100")
simulated.run()

# %% [markdown]
# ## When it does not help
#
# - If neither the loader nor the copy takes a visible part of the step, there is nothing to save.
# - Casting and resizing become the device's work. When the CPU trains the model, that is the same processor as before.
# - If an augmentation needs float input, run it on the device too, or you ship floats again.
#
# ## What to remember
#
# - Bytes are the cheapest thing to save: pass on what the file holds, and let the device make floats of it.
# - One call per batch instead of one per image can save more than any change of the data type.
# - A tip has a date: look up the default of your version before you follow it.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. A batch of float32 images becomes uint8. How many of its bytes are left?**
#
# <details><summary>Half</summary>
#
# **No.** That would be 16-bit floats.
#
# </details>
#
# <details><summary>The same, images are always 8 bits</summary>
#
# **No.** They are in the file. `ToTensor` turns each byte into a 4-byte float, and that is what was passed on.
#
# </details>
#
# <details><summary>A quarter</summary>
#
# **Right.** One byte in place of four. The cast and the normalisation then run on the device.
#
# </details>
#
# **2. Where does a smaller batch save time, besides the copy to the GPU?**
#
# <details><summary>Nowhere</summary>
#
# **No.** Each byte is written and read several times on its way to the GPU.
#
# </details>
#
# <details><summary>In the model: it now computes with uint8</summary>
#
# **No.** The model sees the same floats as before; only the place of the cast has changed.
#
# </details>
#
# <details><summary>Between the worker and the loop, and in the worker itself</summary>
#
# **Right.** Batches are written to shared memory and read again; and the cast to float is one thing less for the worker to do.
#
# </details>

# %% [markdown]
# ## Exercise
#
# Measure both on top of a uint8 copy: a ladder of `zero_grad` and `device_resize`, on the article's workload `cifar_resnet18`.

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
# trial = pk.LadderPanel(["zero_grad", "device_resize"], workload="cifar_resnet18", settings={"uint8_copy": True})
# trial.run()
# ```
#
# The image's bytes shrink with its area; the label stays as it is. You will see it in samples/s only if moving data was a large part of the step.
#
# </details>

# %% [markdown]
# Next: [06 AMP](06_amp.ipynb)
