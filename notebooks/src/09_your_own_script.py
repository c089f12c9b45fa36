# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09 · Your own script
#
# **Where does *your* step's time go?** *20 minutes. Needs: a script that trains; without one, an example from `data/scripts/`.*
#
# *After this you know how long your script waits and which lines cost most, and you have one tested change as a patch.*
#
# Name your script and its arguments. It runs in a separate process on a copy of its folder, so your files stay untouched ([what is not stopped](../docs/agents.md#your-files)), until enough steps have been measured.
#
# | example | slow because |
# |---|---|
# | `plain_loop.py` | it decodes JPEG files in the loop |
# | `trainer_style.py`, as for Hugging Face's Trainer | it tokenises in the loop and pads everything to one length |
# | `module_style.py`, as for Lightning | it filters its signals again in every epoch |

# %%
import torch

from perfkit import notebook as pk

panel = pk.script_panel("data/scripts/plain_loop.py", args=["--images", 640])
panel

# %% [markdown]
# ## Watch it
#
# Guess first: data, host or device?

# %%
panel.watch(budget_s=15)

# %% [markdown]
# The first sentence names the line to begin with; the bar shows where time goes; *What to try* has the changes. Compare their bounds. (*Step* is timed while nothing is sampled. The *mean of all observed steps* includes sampled ones, so its parts add up to more.) *Up to* is what *this change* gives at most: with one worker, a step takes as long as loading or computing, whichever is longer.
#
# ## Set a switch from outside
#
# The step waits for data, and a worker may gain more than a faster line: try one, on a CPU with sleeping threads ([02](02_data_loading.ipynb)).

# %%
sleeping = {} if torch.cuda.is_available() else {"wait_policy": "passive"}
panel.set(workers=1, **sleeping)
panel.run()

# %% [markdown]
# Was the bound reached? On a CPU the worker takes a core from the model. The first losses show whether it still trains the same. *Disturbed*? Close other programs and run the cell again.
#
# Now add a switch that only a measurement can judge:

# %%
panel.set(channels_last=True)
panel.run()

# %% [markdown]
# ## Take the edit
#
# (The ratio above is to the unchanged script: divide it by the worker's for the layout's own share.)
#
# *Patch* shows the diff that puts these switches into your script. Press *Save perfkit.diff*, then run `git apply perfkit.diff` in the folder named below the diff.

# %%
panel.patch()

# %% [markdown]
# In a terminal:
#
# ```bash
# perfkit watch train.py -- --epochs 5
# perfkit trace FILE
# perfkit referee train.py --set workers=2 --set amp=bf16 -- --epochs 5
# perfkit patch train.py --set workers=2 -- --epochs 5
# ```
#
# ## A trace that you already have
#
# A `*.pt.trace.json[.gz]` of PyTorch's profiler opens here and in [ui.perfetto.dev](https://ui.perfetto.dev). This one is the simulated V100 of chapter 03:

# %%
view = pk.TraceView("recorded:sim-v100-data_loading")
pk.lanes({"the simulated V100": view.analysis.files[0]})

# %%
step = view.analysis.steps[1]  # the first one still waits for kernels that are not in the recording
copying_us = step.breakdown_us["memcpy"]
print(f"copies: {copying_us / step.duration_us:.0%} of a steady step")
print(f"without them: at most {step.duration_us / (step.duration_us - copying_us):.2f} times as fast")

# %% [markdown]
# ## All switches
#
# Switches that need your data set's code (bytes, resizing on the device) cannot be set from outside. Write your training [as a class with four methods](../docs/workloads.md), and every panel takes it.

# %% [markdown]
# ### Puzzle ★★★: read a trace: how long is the device idle?
#
# *About 25 minutes.*

# %%
pk.puzzle("trace")


# %%
def idle_share(kernels, start, end):
    busy = sum(duration for _, duration in kernels)
    return 1 - busy / (end - start)


pk.puzzle("trace").check(idle_share)

# %% [markdown]
# ## Check yourself
#
# **`cudaStreamSynchronize` on the host takes 20 ms of each step. Is it slow?**
#
# <details><summary>Answer</summary>
#
# It is waiting. If kernels run all the time, the host is simply ahead. If the device is idle afterwards, the wait delays launches.
#
# </details>
#
# **Your first step takes ten times as long as the others. What do you do with it?**
#
# <details><summary>Answer</summary>
#
# Leave it out. It allocates, compiles and chooses algorithms.
#
# </details>
#
# **The loop waits 30% of the time. What can workers gain at most?**
#
# <details><summary>Answer</summary>
#
# 1 / (1 − 0.3), 1.43 times; less on a CPU (they take cores from the model) and on a GPU (queued kernels run meanwhile).
#
# </details>
#
# Next: [10 workbench](10_workbench.ipynb)
