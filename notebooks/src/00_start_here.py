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
# You start from a plain training loop. In each chapter you switch on **one** optimization, predict its effect, run the loop without it and with it, and read from the result whether it helped *on your machine*.
#
# *This page: 12 minutes, ten of them for the picture. Needs: nothing but this notebook's kernel.*
#
# **You should know** how a PyTorch training loop is written: a `DataLoader`, a model, `loss.backward()`, an optimizer. You need not know anything about GPUs or profilers. Terms are in the [glossary](../docs/glossary.md).
#
# **You will be able to** say what limits a training loop, choose the change that helps, prove that it did, and know when it is no use. The goal has two parts: first keep the device busy all the time, then make it need less time. Each is a loop of its own: *profile, find the largest part, change one thing, measure, and begin again*.

# %% [markdown]
# ## Your machine
#
# Check it first. Where something is missing, the row says what to do. A stage that cannot run on this machine is shown as n/a, with the reason.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

pk.doctor()

# %% [markdown]
# ## Two queues
#
# Nearly everything in this workbook follows from one picture. A training loop is a pipeline with three stations and a queue between each two:
#
# - The **loader** fetches samples and makes batches of them. With workers, several processes do so, and finished batches wait in the *first queue*.
# - The **host** is the Python process. It takes a batch, starts its copy to the device, and *launches* the operations of forward, backward and optimizer: it puts each as a kernel into the *second queue*, and does not wait for the result.
# - The **device** (the GPU) takes copies and kernels from that queue, and runs those of one *stream* one after the other.
#
# All three work at the same time, each on another batch. So the slowest sets the pace: the stations before it run ahead until their queue is full, those behind it wait at an empty one. That gives three regimes:
#
# | regime | the queues | you see | what helps |
# |---|---|---|---|
# | **data-bound** | the first is empty | the host waits in `next(loader)`; or the device waits for long copies | workers ([02](02_data_loading.ipynb)), fewer bytes ([05](05_uint8_copy.ipynb)), faster copies ([03](03_pinning.ipynb)) |
# | **host-bound** | the second is empty | short kernels with gaps between them | fewer, larger kernels ([04](04_batch_size.ipynb), [07](07_compile.ipynb)), fewer waits ([14](14_hidden_transfers.ipynb)) |
# | **device-bound** | both are filled | kernels without gaps | faster kernels ([06](06_amp.ipynb), [07](07_compile.ipynb), [15](15_kernels_and_shapes.ipynb)) |
#
# A change that speeds up a station that is *not* the slowest gains nothing. That is why the same tip makes one training twice as fast and leaves another as it was.
#
# Try it. The picture starts with the article's plain loop: its time for fetching, copies and kernels follow from the article's figures. **Before each button, guess:** which regime, and how much faster? Then read the last column of the table: how much a part could gain if it cost nothing at all (Amdahl's law).

# %%
pk.pipeline()

# %% [markdown]
# Things to look for:
#
# 1. *plain loop*: nothing is drawn above the host. It fetches, then launches, and the device does nothing meanwhile.
# 2. *8 workers*: each batch still takes as long to fetch. There are more of them at a time.
# 3. *pinned memory*: the copy is shorter, and the host no longer waits for it (the dashed bars are gone). The copy still stands *between* the kernels: on one stream it never overlaps with them.
# 4. *second stream*: now it does. How much is that worth once the copy is short?
# 5. *many tiny kernels*: the device could do more, but the host cannot launch fast enough. No faster GPU helps here.
# 6. Now find settings in which one more worker makes nothing faster, and settings in which it does.
#
# The picture leaves out much: kernels that differ, batches that take longer than others, workers that compete for cores. It is the model that perfkit predicts with, and [chapter 13](13_what_if.ipynb) measures how far it is from the truth. It runs in your browser and needs no kernel: [the page by itself](../perfkit/show/pipeline.html).
#
# Without a GPU there is only one queue: host and device are the same cores, which also run the workers. A step is then data-bound or compute-bound.

# %% [markdown]
# ## The chapters
#
# | chapter | question | minutes: `quick`, two cores | `paper`, a GPU, at most | needs |
# |---|---|---|---|---|
# | [01 baseline](01_baseline.ipynb) | how fast is the plain loop, and where does its time go? | 1 | 2 | – |
# | [02 data loading](02_data_loading.ipynb) | does the model wait for data? | 1 to 3 | 4 | two cores |
# | [03 pinning](03_pinning.ipynb) | does copying from page-locked memory shorten the step? | 1 | 4 | a CUDA GPU; without one, a calculation |
# | [04 batch size](04_batch_size.ipynb) | does a larger batch use the device better? | 1 to 3 | 4 | – |
# | [05 uint8 copy](05_uint8_copy.ipynb) | how many bytes does a sample need? | 2 to 7 | 10 | – |
# | [06 AMP](06_amp.ipynb) | how much faster are 16-bit matrix products? | 1 to 3 | 4 | Tensor Cores or AMX, to be faster |
# | [07 compile](07_compile.ipynb) | how much do fused kernels gain? | 1 to 4 | 4 | a C++ compiler; on a GPU, Triton and a C compiler |
# | [08 the whole ladder](08_the_whole_ladder.ipynb) | how much do all of them gain together? | 6 | 10 | – |
# | [09 reading a profile](09_reading_a_profile.ipynb) | where does a step's time go? | 1 | 2 | – |
# | [10 the workbench](10_workbench.ipynb) | what do *you* want to try? | 1 to 3 | 3 | – |
# | [11 your own](11_your_own.ipynb) | where does your script's time go, and which switches help? | 5 | 5 | a script that trains; or your code in a module |
# | [12 what each is worth](12_what_each_is_worth.ipynb) | how much does each optimization contribute? | 4 | 4 | – |
# | [13 what if](13_what_if.ipynb) | which settings are fastest here, without trying them all? | 5 to 7 | 8 | – |
# | [14 hidden transfers](14_hidden_transfers.ipynb) | which lines make the host wait? | 2 | 3 | – |
# | [15 kernels and shapes](15_kernels_and_shapes.ipynb) | what can this device do, and how much of that do you use? | 6 to 8 | 12 | – |
# | [16 NVTX and Nsight](16_nvtx_and_nsight.ipynb) | data, host or device: which is the bottleneck? | 3 to 4 | 4 | – |
# | [17 distributed](17_distributed.ipynb) | how well does training scale to several ranks? | 5 to 7 | 10 | two cores, or two GPUs |
# | [18 memory](18_memory.ipynb) | what uses the memory in a step? | 2 to 4 | 4 | – |
# | [19 checking the articles](19_checking_the_articles.ipynb) | do the published figures agree with each other? | reading | reading | – |
# | [20 profiling by hand](20_profiling_by_hand.ipynb) | how do you profile without perfkit, and what is a faster loop worth? | 1 | 1 | – |
#
# [**Puzzles**](puzzles/0_puzzles.ipynb): with each chapter, a few lines of code that you write yourself, and that are checked.
#
# Each chapter stands alone. The order is that of the article which this workbook follows.
#
# No GPU has timed the column `paper` yet: it follows from the time that the preset allows.
#
# ## How much is measured
#
# | preset | for | how |
# |---|---|---|
# | `smoke` | trying things out, and the tests | seconds per stage; too few rounds for a verdict |
# | `quick` | machines without a CUDA GPU, including Macs (the default there) | small images, small batches |
# | `paper` | machines with a CUDA GPU (the default there) | the article's sizes |
#
# To choose one, set the environment variable `PERFKIT_PRESET` before the kernel starts (`PERFKIT_PRESET=smoke make lab`), or pass `preset="smoke"` to a panel. On this machine you get:

# %%
plan = pk.LadderPanel().plan
Markdown(
    f"Preset **{plan.preset.name}** on **{plan.device}**, workload **{plan.workload}**: "
    f"batch size {plan.preset.batch_size}, later {plan.preset.large_batch}; {plan.preset.rounds} rounds of "
    f"{plan.preset.block_samples} samples per stage."
)

# %% [markdown]
# ## Without a GPU
#
# Each panel has a menu *Where*, which holds for this panel only:
#
# - **this machine** measures. This is the default.
# - **simulated** runs the stages on a GPU that is not there. PyTorch plans the real training step on a device that computes nothing; a model predicts the time of each kernel, and the memory. The loader and the host are computed as well, for the machine of the article or for numbers that you give.
# - **recorded** plays a stored session, measured or simulated, with its date and its machine.
#
# In code it is an argument of the panel, `pk.StagePanel("amp", device="sim:v100")`, or `pk.use("sim:v100")` for all panels that you make afterwards; `pk.use()` goes back to this machine.
#
# A simulated value looks like `~1,200 ±20% sim.`: about this much, give or take the error that the model has shown on published figures. There is no measured verdict, only *predicted faster*, *predicted slower*, or *too close to predict*. There are no losses, because nothing is computed. Never compare simulated with measured values. How good is the simulation? [How a simulated GPU predicts times](../docs/simulation.md) shows predicted against published. Chapters 01 to 08 open a recorded simulation by themselves; `pk.profile`, `pk.memory` and `pk.find_syncs` also take `device="sim:v100"`.
#
# To add a recording of a GPU, run `perfkit run -o data/runs/recordings/NAME.json` there, and bring the file here: it appears in the menu.

# %% [markdown]
# ## Terms
#
# - A **workload** is what is trained: dataset, model, loss, optimizer.
# - A **recipe** is how it is trained: one value that holds every **switch**.
# - An **optimization** is one named change to a recipe. The **ladder** is an ordered list of optimizations; each **stage** adds one of them.
# - A **run** is the raw result of one recipe, measured in its own process.
#
# All others are in the [glossary](../docs/glossary.md).
#
# ## How to read a table
#
# - *samples/s*: the rate over all rounds, with a 95% confidence interval.
# - *× previous*, *× baseline*: the ratio to the stage before and to the plain loop, from the same rounds as the rates. (A chapter with one stage has one such column, such as *× before*.) It is called faster or slower only if its interval excludes 1 and the difference is larger than both the noise between identical runs and 1%. Otherwise there is *no measurable difference*, and that is a result too: the text then says how large an effect would have shown. Fewer than five rounds (as in the preset `smoke`) are *too few* for a verdict.
# - *baseline (again)*: the last row. See below.
# - *waits for data*: the share of the step spent in `next(loader)`.
# - *pipeline efficiency*: throughput divided by its **ceiling**, which is the throughput of the same step on a batch that is already on the device.
# - *peak memory*: the peak of the device's allocator; on a CPU, that of the training process.
# - *bytes/sample*: the size of one sample in the loader's batch.
# - *n/a*: not measured here; the note says why.
#
# ## How stages are compared
#
# Measuring one stage after the other would compare two moments of the machine, not two stages. So all stages of a panel are started first, as many as fit in memory, and stay alive. Then they are measured in *rounds*: each round measures one block of every stage, in random order. Whatever slows the machine down for a while slows all of them down, and every rate, bar and ratio that is shown together comes from the same rounds.
#
# - **Is the difference real?** The row *baseline (again)* (*before (again)* in a chapter about one stage) is the baseline's recipe in a second process: an *A/A test*. Nothing differs between the two, so its ratio should be close to 1. How far it is from 1 shows how far two processes differ here for no reason, and a verdict needs a larger difference than that.
# - **Was the machine ours?** For every block, perfkit measures how much CPU time other programs took. A block with more than a twentieth of the cores is measured again; a round that stays disturbed does not count. If too few rounds are left, the verdict is *disturbed*: numbers without a conclusion. The warning names the program to close.
# - **Is it precise enough?** Rounds go on until all intervals are narrow, or the stage's time is used up.
#
# [How perfkit measures](../docs/measuring.md) has the details.

# %% [markdown]
# Next: [01 baseline](01_baseline.ipynb)
