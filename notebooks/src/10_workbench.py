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
# *About 1 to 3 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 3 (planned, not timed). This is for one run; do as many as you like. Needs: nothing special.*
#
# Every switch of the recipe is a control; changed ones are bold, and one fold lists those that cannot act on this machine, with the reasons. Set some and press **Run**: your recipe is measured interleaved with the baseline, each in its own process. **Stop** ends it. **Profile** shows the timeline of the recipe in the controls, and a diagnosis.
#
# The **history** has every run of this workload that was measured on this computer. Sort it by a heading, or filter it by words. Tick two runs to compare them: the result stands below.
#
# For the ticked runs: **Use** sets the controls as they were in the newest one; **Export** gives its standalone script, and the runs as a file that a colleague can open in perfkit; **Report** is one HTML file with every figure; **Delete** removes them, until **Undo delete**.

# %%
from perfkit import notebook as pk

bench = pk.Workbench()
bench

# %% [markdown]
# You can do the same from a cell: set the recipe, then run it. The cell waits until the run has finished; the kernel's stop button ends it, and the cells below.

# %%
bench.set(workers=1)
bench.run()

# %% [markdown]
# Next: [11 your own model](11_your_own.ipynb)
