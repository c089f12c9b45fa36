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
# Here is a training loop. In each chapter you switch on **one** optimization, predict what it will do, run the loop before and after, and read from the result whether it helped *on your machine*.
#
# *This page: 2 minutes. Needs: nothing but this notebook's kernel.*

# %% [markdown]
# ## Your machine
#
# Check it first. A row that is not in order says what to do; a stage that cannot be real here will be shown as n/a, with the reason.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

pk.machine()

# %%
pk.doctor()

# %% [markdown]
# ## The chapters
#
# | chapter | question | minutes at `quick` | needs |
# |---|---|---|---|
# | [01 baseline](01_baseline.ipynb) | how fast is the plain loop, and where does its time go? | 1 | – |
# | [02 data loading](02_data_loading.ipynb) | does the model wait for data? | 2 | two cores |
# | [03 pinning](03_pinning.ipynb) | can the copy overlap with the computation? | 1 | a CUDA GPU; without one, a calculation |
# | [04 batch size](04_batch_size.ipynb) | does a larger batch use the device better? | 2 | – |
# | [05 uint8 copy](05_uint8_copy.ipynb) | how many bytes must travel? | 3 | – |
# | [06 AMP](06_amp.ipynb) | what do 16-bit matrix units give? | 2 | such units: Tensor Cores, AMX, AVX512-BF16 |
# | [07 compile](07_compile.ipynb) | what do fused kernels give? | 3 | a C++ compiler, or Triton |
# | [08 the whole ladder](08_the_whole_ladder.ipynb) | what do all of them give together? | 5 | – |
# | [09 reading a profile](09_reading_a_profile.ipynb) | where does a step's time go? | 3 | – |
# | [10 the workbench](10_workbench.ipynb) | what do you want to try? | – | – |
# | [11 your own](11_your_own.ipynb) | how fast is your training, and what helps it? | 3 | your code in a module |
# | [12 what each is worth](12_what_each_is_worth.ipynb) | how much of the gain is whose? | 3 | – |
# | [13 what if](13_what_if.ipynb) | how fast would it be with other hardware, and with other switches? | 4 | – |
# | [14 hidden transfers](14_hidden_transfers.ipynb) | which lines make the host wait? | 2 | – |
# | [15 kernels and shapes](15_kernels_and_shapes.ipynb) | what can this device do, and how much of it is used? | 3 | – |
# | [16 NVTX and Nsight](16_nvtx_and_nsight.ipynb) | data, host or device: which binds? | 2 | – |
# | [17 distributed](17_distributed.ipynb) | how well do several ranks scale? | 3 | two cores, or two GPUs |
# | [18 memory](18_memory.ipynb) | what holds memory in a step? | 2 | – |
#
# Each chapter stands alone; the order is that of the article which the workbook follows.
#
# ## How much is measured
#
# | preset | for | how |
# |---|---|---|
# | `smoke` | a try, and the tests | seconds a stage; too few rounds for a verdict |
# | `quick` | the default without an accelerator | small images, small batches |
# | `paper` | the default with one | the article's sizes |
#
# Set the environment variable `PERFKIT_PRESET` before the kernel starts (`PERFKIT_PRESET=smoke make lab`), or give `preset="smoke"` to a panel. What holds here:

# %%
plan = pk.LadderPanel().plan
Markdown(
    f"Preset **{plan.preset.name}** on **{plan.device}**, workload **{plan.workload}**: "
    f"batches of {plan.preset.batch_size} and then {plan.preset.large_batch}, {plan.preset.rounds} rounds of "
    f"{plan.preset.block_samples} samples a stage."
)

# %% [markdown]
# ## Words
#
# - A **workload** is what is trained: data set, model, loss, optimizer.
# - A **recipe** is how it is trained: one value that holds every **switch**.
# - An **optimization** is one named change of a recipe. The **ladder** puts optimizations in an order; a **stage** is one rung of it.
# - A **run** is the raw result of one recipe in a process of its own.
#
# ## How to read a table
#
# - *samples/s*: median over the measured blocks, with its 95% interval.
# - *× previous*, *× baseline*: a ratio of blocks measured in turn. It is called faster or slower only where its interval excludes 1; else there is *no measurable difference*, and that is a result. Fewer than five rounds (the preset `smoke`) are *too few*, and get no verdict.
# - *waits for data*: the share of the step spent in `next(loader)`.
# - *pipeline efficiency*: throughput over its **ceiling**, the same step on a batch that is already on the device.
# - *peak memory*: of the device's allocator; on a CPU, of the training process.
# - *bytes/sample*: what one sample weighs in the loader's batch.
# - *n/a*: not measured here; the note says why.

# %% [markdown]
# Next: [01 baseline](01_baseline.ipynb)
