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
# *About 1 minute at the preset `quick` for a run; then as long as you like. Needs: nothing special.*
#
# Every switch of the recipe is a control. Set some, press **Run**: the recipe is measured in turn with what you chose under *Against*, in processes of their own. Tick runs in the list to see them beside each other; **Profile** shows the timeline, the diagnosis, and a button for what to try next; **Script** is the standalone script of a run, **Report** one HTML file of the ticked runs for a colleague.
#
# A control that cannot act here is disabled; its tooltip says why.

# %%
from perfkit import notebook as pk

bench = pk.Workbench()
bench

# %% [markdown]
# From a cell the same: set the recipe, then run it. This cell waits for the end; the stop button ends it.

# %%
bench.controls.show(bench.controls.recipe.replace(workers=1, persistent_workers=True))
bench.run()

# %% [markdown]
# What a reader without a kernel sees:

# %%
bench.table()

# %%
bench.plot("throughput")

# %% [markdown]
# Next: [11 your own model](11_your_own.ipynb)
