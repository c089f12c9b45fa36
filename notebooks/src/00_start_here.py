# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Make PyTorch training faster, and see why
#
# *3 minutes to your first speed-up. Needs: this notebook's kernel.*
#
# Run the next cell. It trains a small network for a few seconds.

# %%
from perfkit import notebook as pk

baseline = pk.StagePanel("baseline")
baseline.run()

# %% [markdown]
# The number to watch is **samples/s**. The picture shows two training steps (its headline: the median): green is loading data, blue is computing. While the loop decodes JPEG photos, the CPU isn't training. The dashed line is the *ceiling*: where both steps would end if loading took no time.
#
# Now let another process load the next batch while the model trains: `DataLoader(..., num_workers=1)`. *Guess: how many times as fast?*

# %%
panel = pk.StagePanel("data_loading")
panel.set(workers=1)
panel.run()

# %% [markdown]
# Now the worker loads (green) while the model computes. Orange is what is left of the waiting. On a CPU the blue bars get longer, because the worker takes a core, but the wait shrinks by more. The panel alternates between both loops, so a slow moment hits both. It says *faster* only if the ratio's whole confidence interval is above 1, and the gain is above 1%. Then press **Keep**.
#
# **Your turn:** write `workers=2`, and run the cell again. Does a second worker help here?
#
# <details><summary>Answer</summary>
#
# On two cores, hardly: the first worker has already ended the wait.
#
# </details>
#
# (On a CPU this win takes *two* changes: waiting threads are also [put to sleep](../docs/cpu.md). That lowers the ceiling, but frees a core for the worker. [02](02_data_loading.ipynb) takes them apart.)
#
# That is the method: **look at the step, name the gap, change one line, look again.**

# %% [markdown]
# ## Your own file
#
# The next cell writes `my_train.py`, the same loop in thirty lines. In each chapter you see what a switch gains, and then change that line in *your* file. perfkit compares it with the previous version.

# %%
pk.my_train()

# %% [markdown]
# (No editor? `%load my_train.py`, then put `%%writefile my_train.py` above it. Joining late? `pk.my_train(restore="02")` writes the file after 02.)
#
# ## Why it matters
#
# [The walk-through](../docs/articles.md) by Chaim Rand, which this course follows, made a training loop 8.2 times as fast, with six changes.
#
# Try them on a simulated V100:

# %%
pk.climb()

# %% [markdown]
# ## The course
#
# Chapters 00 to 08 train one loop (photos on a CPU, the walk-through's ResNet-18 on a GPU; `my_train.py` always photos), and each starts from what you kept.
#
# | chapter | question | minutes |
# |---|---|---|
# | [01 baseline](01_baseline.ipynb) | where does a step's time go? | 7 |
# | [02 data loading](02_data_loading.ipynb) | does the loop wait for data? | 8 |
# | [03 pinning](03_pinning.ipynb) | can the copy be shorter, or hidden? | 6 |
# | [04 batch size](04_batch_size.ipynb) | does a larger batch use the device better? | 10 |
# | [05 uint8 copy](05_uint8_copy.ipynb) | how many bytes does a sample need? | 9 |
# | [06 AMP](06_amp.ipynb) | is 16-bit arithmetic faster here? | 13 |
# | [07 compile](07_compile.ipynb) | what do fused kernels gain? | 13 |
# | [08 the whole ladder](08_the_whole_ladder.ipynb) | how much do they gain together? | 5 |
# | [09 your own script](09_your_own_script.ipynb) | where does *your* step's time go? | 20 |
# | [10 workbench](10_workbench.ipynb) | what do you want to try? | 10 |
# | [11 hidden transfers](11_hidden_transfers.ipynb) | which lines make the host wait? | 20 |
# | [12 kernels and shapes](12_kernels_and_shapes.ipynb) | how far from the device's limits? | 20 |
# | [13 several GPUs](13_several_gpus.ipynb) | how well does it scale? | 20 |
# | [14 checking the articles](14_checking_the_articles.ipynb) | do the published figures agree? | 15 |
#
# The [puzzles](puzzles/index.ipynb) take extra time.
#
# Look things up: [cheat sheet](../docs/cheat_sheet.md) · [glossary](../docs/glossary.md) · [how perfkit measures](../docs/measuring.md). `!perfkit doctor` checks the machine.
#
# **Without a GPU**, each panel's menu *Where* offers a *simulated* V100, with predictions, marked `~` ([how well](../docs/simulation.md)).
#
# Next: [01 baseline](01_baseline.ipynb)
