# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Capstone: a script with ten faults
#
# *About 120 minutes; a measurement takes about 3. Needs: no GPU, two cores.* All ten faults come from real training code.
#
# The first run of the next cell puts a copy of the slow script next to this notebook. Edit that file, save it, run the cell again:

# %%
from perfkit import notebook as pk

result = pk.capstone("my_capstone.py")
result

# %% [markdown]
# - **Speed**: yours as a share of the *speed of light*: the same model on a batch that is already in memory, with a fused optimizer and nothing else. Both are measured in turns.
# - **Four levers**, each seen in an epoch that the check trains: *workers decode*, *batches are uint8*, *layers compute in 16 bits*, *compiled*. A lever that helps only on a GPU may be tied to one (`enabled=DEVICE == "cuda"`): the check enables it.
# - **Keep only what helps here.** If a lever does not, take it out again, and say what you measured: `LEFT_OUT = {"compiled": "0.92 times as fast on two cores"}` in your script. Such a lever counts as decided. Measure with `perfkit compare my_capstone.py other.py`.
# - **Your score** is the share of the speed of light times the share of the levers that are decided. Keep `main(epochs)`.
# - **The same training**: each step sees the same 64 photos in the same order, and the losses of the first steps are compared with the slow script's. Otherwise there is no score.
#
# To find the faults, watch the script in a terminal, and look up each line of the report on the [cheat sheet](../../docs/cheat_sheet.md):
#
# ```sh
# perfkit watch my_capstone.py
# ```
#
# [The ten faults, and a script without them](capstone_solution.ipynb).
