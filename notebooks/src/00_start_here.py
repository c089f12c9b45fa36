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
# The next cell trains a small network for some seconds, in a process of its own, and measures it. Run it. (What stands below it until then is a recording, as in every chapter.)

# %%
from perfkit import notebook as pk

baseline = pk.StagePanel("baseline")
baseline.run()

# %% [markdown]
# The number to watch is **samples/s**. The lower bar is one training step: orange is time spent waiting for data, blue is everything else. On a CPU, this loop decodes JPEG photos, and orange is a large part.
#
# Now change one thing: let another process load the next batch while the model trains. In PyTorch that is `DataLoader(..., num_workers=1)`.

# %%
panel = pk.StagePanel("data_loading")
panel.set(workers=1)
panel.run()

# %% [markdown]
# The orange part shrinks, and samples/s rises. Press **Keep**. The panel measured both loops in turns, so a slow moment of the machine hits both. It says *faster* only if the interval of the ratio lies above 1.
#
# (On a CPU the panel sets two more things, which [02](02_data_loading.ipynb) explains. Both loops keep the memory that they have freed, so the first one is faster than the loop above. And with the worker, waiting threads sleep; otherwise it would gain little.)
#
# This is the method of the whole course: **look at the step, name the gap, change one line, look again.**
#
# ## The course
#
# The same loop trains in chapters 00 to 08: photos on a CPU, [the walk-through's](../docs/articles.md) ResNet-18 on a GPU. Each chapter starts from the recipe that you kept in the one before.
#
# | chapter | question | minutes |
# |---|---|---|
# | [01 baseline](01_baseline.ipynb) | where does a step's time go? | 10 |
# | [02 data loading](02_data_loading.ipynb) | does the loop wait for data? | 12 |
# | [03 pinning](03_pinning.ipynb) | can the copy be shorter, or hidden? | 8 |
# | [04 batch size](04_batch_size.ipynb) | does a larger batch use the device better, and what does it cost? | 8 |
# | [05 uint8 copy](05_uint8_copy.ipynb) | how many bytes does a sample need? | 10 |
# | [06 AMP](06_amp.ipynb) | are 16-bit products faster here? | 10 |
# | [07 compile](07_compile.ipynb) | what do fused kernels gain, and when is compiling paid back? | 8 |
# | [08 the whole ladder](08_the_whole_ladder.ipynb) | how much together? | 6 |
# | [09 your own script](09_your_own_script.ipynb) | where does *your* step's time go? | 20 |
# | [10 workbench](10_workbench.ipynb) | what do you want to try? | 10 |
# | [11 hidden transfers](11_hidden_transfers.ipynb) | which lines make the host wait? | 20 |
# | [12 kernels and shapes](12_kernels_and_shapes.ipynb) | how far is it to the device's limits? | 20 |
# | [13 several GPUs](13_several_gpus.ipynb) | how well does it scale, and why not? | 20 |
# | [14 checking the articles](14_checking_the_articles.ipynb) | do the published figures agree? | 15 |
#
# Minutes are yours, without puzzles. The [puzzles](puzzles/index.ipynb) stand in their chapters; each says how long it takes.
#
# To look things up: [cheat sheet](../docs/cheat_sheet.md) · [glossary](../docs/glossary.md) · [how perfkit measures](../docs/measuring.md) · [the articles](../docs/articles.md). If something does not run, `!perfkit doctor` checks the machine.
#
# **Without a GPU** you can still follow the GPU's story. The menu *Where* of each panel offers a *simulated* V100: a model predicts its kernels, and every such value is marked `~` ([how good it is](../docs/simulation.md)).
#
# Next: [01 baseline](01_baseline.ipynb)
