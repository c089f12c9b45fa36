# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Puzzles: you write the code
#
# The chapters switch on optimizations that are already written. Here you write them: one to ten lines each, in the loop, the loader or the model. *2 minutes for this page. Needs: no GPU.*
#
# | puzzles | with |
# |---|---|
# | [loading data](1_loading.ipynb) | chapters 02, 03 and 05 |
# | [the loop](2_loop.ipynb) | chapters 01, 08, 14, 16, 18 and 20 |
# | [what the device computes](3_kernels.ipynb) | chapters 04, 06, 07 and 15 |
# | [memory and ranks](4_memory.ipynb) | chapters 17 and 18 |
# | [figures and traces](5_reading.ipynb) | chapters 09 to 13, and 19 |
# | [the capstone](6_capstone.ipynb) | all of them: ten faults in one script |
#
# ## How an answer is checked
#
# - By what it does, not by how it is written: which process fetched a sample, how a tensor lies in memory, which calls would make the host wait, how many graphs were compiled.
# - By what it trains: losses, gradients or weights have to be those of the plain program on the same batches. Skipped steps, left-out samples or a smaller model do not pass.
# - By a clock, where time is the point: that of a simulated device, so that it counts the same on every machine.
#
# What needs a GPU (pinned memory, streams) is checked on a simulated one, and the puzzle says so. Your answer runs in a process of its own with a time limit, not in this notebook's kernel: a loop without end or a crash there costs you nothing. What it prints is not shown; try things out in a cell of their own.

# %%
from perfkit import notebook as pk

pk.puzzles()

# %% [markdown]
# Begin with [loading data](1_loading.ipynb). Stuck? `pk.puzzle("loader").hint(1)` gives the first of three hints; they are also folded below each task.
