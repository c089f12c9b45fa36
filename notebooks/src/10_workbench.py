# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · The workbench
#
# **What do *you* want to try?**
#
# *About 2 to 3 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 3 (planned, not timed). This is for one run; do as many as you like. Needs: nothing special.*
#
# Every switch of the recipe is a control. Set some and press **Run**: your recipe is measured interleaved with the one you chose under *Against*, each in its own process. Tick runs in the list to compare them. **Profile** shows the timeline, the diagnosis, and a button for what to try next. **Script** gives the standalone script of a run; **Report** gives one HTML file with the ticked runs, to send to a colleague.
#
# A control that has no effect on this machine is disabled; its tooltip says why.

# %%
from perfkit import notebook as pk

bench = pk.Workbench()
bench

# %% [markdown]
# You can do the same from a cell: set the recipe, then run it. The cell waits until the run has finished; the kernel's stop button cancels it.

# %%
bench.controls.show(bench.controls.recipe.replace(workers=1, persistent_workers=True))
bench.run()

# %% [markdown]
# The results as ordinary outputs, which are also visible without a kernel:

# %%
bench.table()

# %%
bench.plot("throughput")

# %% [markdown]
# Next: [11 your own model](11_your_own.ipynb)
