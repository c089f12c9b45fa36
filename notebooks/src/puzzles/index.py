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
# *2 minutes for this page. Needs: no GPU.* Each puzzle is at the end of its chapter, and asks for one to ten lines in the loop, the loader or the model. More stars are harder.

# %%
from perfkit import notebook as pk

pk.puzzles()

# %% [markdown]
# ## How an answer is checked
#
# - **By what it does**, not by how it is written: which process fetched a sample, which calls would make the host wait, how many graphs were compiled.
# - **By what it trains**: losses, gradients or weights must be those of the plain program. Skipped steps or a smaller model do not pass.
# - **By a clock**, where time is the point: that of a simulated device, which is the same on every machine.
#
# Your answer runs in a separate process with a time limit. A crash there costs you nothing. Stuck? The hints are folded under each task; [solutions](solutions.ipynb) say why.
#
# ## Mystery loops
#
# [Twelve scripts](mysteries.ipynb), each with one hidden cause of slowness. The table above lists them last.
#
# ## The capstone
#
# [A script with ten faults](capstone.ipynb), about two hours. Start with chapter [01](../01_baseline.ipynb).
