# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # perfkit: make PyTorch training faster, and know why
#
# A training script, a set of switches, and a measured, honest difference. In each chapter you see a training loop, switch **one** thing, run it again, and look at what changed.
#
# *This page: 2 minutes. Needs: nothing but this notebook's kernel.*

# %% [markdown]
# ## Your machine

# %%
from perfkit import notebook as pk

pk.machine()

# %%
pk.doctor()

# %% [markdown]
# ## The chapters
#
# | chapter | question | minutes at `quick` | needs |
# |---|---|---|---|
# | [01 baseline](01_baseline.ipynb) | how fast is the plain loop, and where does its time go? | 2 | – |
# | [02 data loading](02_data_loading.ipynb) | does the model wait for data? | 2 | two cores |
# | [03 pinning](03_pinning.ipynb) | can the copy overlap with the computation? | 2 | a CUDA GPU to be measured |
# | [04 batch size](04_batch_size.ipynb) | does a larger batch use the device better? | 2 | – |
# | [05 uint8 copy](05_uint8_copy.ipynb) | how many bytes must cross? | 3 | – |
# | [06 AMP](06_amp.ipynb) | what do 16-bit matrix units give? | 2 | matrix units help |
# | [07 compile](07_compile.ipynb) | what do fused kernels give? | 3 | a C++ compiler, or Triton |
# | [08 the whole ladder](08_the_whole_ladder.ipynb) | what do all of them give together? | 5 | – |
#
# ## How much is measured
#
# Presets: `smoke` (a try: too few rounds for a verdict), `quick` (default without an accelerator), `paper` (default with one: the article's sizes). Set the environment variable `PERFKIT_PRESET` before the kernel starts, or give `preset="…"` to a panel.
#
# ## Words
#
# A **workload** is what is trained (data set, model, loss, optimizer). A **recipe** is how it is trained: one value holding every switch. An **optimization** is one named change of a recipe; the **ladder** puts them in order, and a **stage** is one rung of it. A **run** is the raw result of one recipe in a process of its own.
#
# ## How to read a table
#
# *samples/s* is the median over blocks, with its 95% interval. *× previous* is a ratio from blocks measured in turn; it is called faster or slower only where the interval excludes 1. *waits for data* is the share of the step spent in `next(loader)`. *pipeline efficiency* compares with the same step on a batch that is already on the device. What cannot be measured here is n/a, with the reason.

# %% [markdown]
# Next: [01 baseline](01_baseline.ipynb)
