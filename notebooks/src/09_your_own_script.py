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
# Name your script and its arguments. It runs as you run it, in a process of its own and a mirror of its folder: no line, checkpoint or log of yours is touched ([what is not stopped](../docs/agents.md#your-files): an upload, for example). Its steps are observed from outside, and it ends when enough of them were measured.
#
# | example | built as | slow because |
# |---|---|---|
# | `plain_loop.py` | one loop, one loader | it decodes JPEG files in the loop |
# | `trainer_style.py` | scripts for Hugging Face's Trainer | it tokenises in the loop and pads everything to one length |
# | `module_style.py` | scripts for Lightning | it filters its signals again in every epoch |

# %%
from perfkit import notebook as pk

panel = pk.script_panel("data/scripts/plain_loop.py", args=["--images", 160])
panel

# %% [markdown]
# ## Watch it
#
# Guess first: data, host or device?

# %%
panel.watch()

# %% [markdown]
# Read three numbers: the rate, the wait for data, and the rate on a held batch, which is the same batch again and again (no loading). `≤` means *at most this much*: as if the switch cost nothing and removed all of its part. n/a means that only measuring tells.
#
# ## Set a switch from outside
#
# Switches that cannot be set in this script are grey, with the reason. The losses of the first steps show whether it still trains the same.

# %%
panel.set(channels_last=True)
panel.run()

# %% [markdown]
# ## Take the edit
#
# *Patch* shows the diff that puts these switches into your script. Nothing is written; `git apply` takes the file that *Save perfkit.diff* downloads.

# %%
panel.patch()

# %% [markdown]
# In a terminal:
#
# ```bash
# perfkit watch train.py -- --epochs 5
# perfkit referee train.py --set workers=2 --set amp=bf16 -- --epochs 5
# perfkit patch train.py --set workers=2 -- --epochs 5
# ```
#
# With `--try`, `watch` measures its two best suggestions at once.
#
# ## A trace that you already have
#
# From a cluster or a colleague, `*.pt.trace.json[.gz]` of PyTorch's profiler opens here, and in [ui.perfetto.dev](https://ui.perfetto.dev). `perfkit trace FILE` says the same in a terminal. This one is the simulated V100 of chapter 03:

# %%
view = pk.TraceView("recorded:sim-v100-data_loading")
view.table("Diagnosis")

# %%
view.timeline()

# %% [markdown]
# Removing *all* of a wait gives the speed-up in the table. That is the most any fix can give. For each gap in the device's row, look straight up: is the host waiting for data, or still launching?
#
# ## All switches
#
# Switches that need your data set's code (bytes, resizing on the device, ranks) cannot be set from outside. Write your training as a class with four methods, `dataset`, `model`, `loss`, `optimizer`, and every panel takes it: `pk.Workbench(workload="my_module:Mine")`. [How](../docs/workloads.md).

# %% [markdown]
# **In a trace, `cudaStreamSynchronize` on the host takes 20 ms of each step. Is it slow?**
#
# <details><summary>Yes: use a faster call</summary>
#
# **No.** It does nothing but wait for the device.
#
# </details>
#
# <details><summary>It is waiting: look at what the device does meanwhile</summary>
#
# **Right.** If kernels run all the time, the host is simply ahead. If the device is idle afterwards, the wait delays the next launches.
#
# </details>

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
# Next: [10 workbench](10_workbench.ipynb)
