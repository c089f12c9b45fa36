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
# Every switch of the recipe is a control. Set some and press **Run**: your recipe is measured interleaved with the one you chose under *Against*, each in its own process. While it is measured, the button reads **Add to queue**: set the next recipe and press it. What waits can be moved, or removed; **Cancel** ends only the run under way.
#
# The **history** has every run of this workload that was measured on this computer. Sort it by a heading, filter it by words of any column, star a run, give it a name or a note. *Changes* says which switches differ, and since which run. Tick runs to compare them: each is shown beside the oldest of them. Everything works from the keyboard; the line below the grid has the keys.
#
# For the ticked runs: **Use its switches** sets the controls as they were; **Script** gives the standalone script; **Report** is one HTML file, **Share** a recording that a colleague can open in perfkit; **CSV** is the whole history for a spreadsheet; **Delete** removes them, until **Undo delete**. **Profile** shows the timeline of the recipe in the controls, the diagnosis, and a button for what to try next.
#
# The switches are grouped by where they act. One that has no effect on this machine is left out, and its group says why. What differs from the baseline stands above the groups; a click on it puts it back.

# %%
from perfkit import notebook as pk

bench = pk.Workbench()
bench

# %% [markdown]
# You can do the same from a cell: set the recipe, then run it. The cell waits until the run has finished; the kernel's stop button cancels it.

# %%
bench.controls.show(bench.controls.recipe.replace(workers=1))
bench.run()

# %% [markdown]
# Next: [11 your own model](11_your_own.ipynb)
