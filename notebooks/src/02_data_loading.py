# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · Data loading
#
# *About 1 to 3 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: two cores or more.*
#
# Worker processes (`workers`) load the next batches while the model trains. `persistent_workers` keeps them alive from one epoch to the next; `prefetch_factor` is the number of batches that each worker loads in advance. Workers remove the waiting as long as there are CPU cores for them. The article's machine had 8 vCPUs, and so it used 8 workers. One for each core is a good first guess on a machine with a GPU; how many are best depends on the machine and on what a sample costs. Here the stage takes one for every two cores on a CPU, which also has to train the model. (The article wished for an automatic choice. `perfkit tune` and [chapter 13](13_what_if.ipynb) make one, by measuring.)
#
# Finished batches pass from a worker to the training process through shared memory (`/dev/shm` on Linux, which is small in many containers: [00](00_start_here.ipynb) checks it).

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

panel = pk.StagePanel("data_loading")

# %% [markdown]
# The card of this optimization, in parts that open on a click:

# %%
panel.card()

# %% [markdown]
# ## What changes in the script
#
# A diff of two scripts, both exported from the program that is measured: as on this machine and, where that differs, as on a GPU.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# What speed-up do you expect? 1 means no change, below 1 means slower. Enter *your* number under *Guess*; the panel sets it beside the result and the article's figure. (In code: `panel.predict(1.5)`.)

# %%
panel

# %% [markdown]
# ## Run
#
# Press *Run* in the panel, or run the next cell: the result appears below the one that you used.

# %%
panel.run()

# %% [markdown]
# ## Did it help *here*, and why?
#
# The panel says so, with the evidence that each switch is in effect. Workers change *when* a batch is loaded, not *what* is in it. The losses of the first steps should therefore agree to the last bit:

# %%
before, after = panel.runs[0], panel.runs[1]
same = "the same bit for bit" if before.losses == after.losses else "**not** the same"
Markdown(f"{len(after.losses)} losses, {same}." if after.losses else "There are no losses to compare.")

# %% [markdown]
# ## Threads that wait without working
#
# On a CPU, several threads compute each operation together (OpenMP), and after each one they wait for the slowest of them at a *barrier*. By default libgomp, the OpenMP library of most PyTorch builds for Linux, lets them *spin* there: a waiting thread looks again and again whether the others are done. While nothing else runs, this saves the time to wake it up.
#
# It goes wrong as soon as something else wants a core: a loader worker, a browser, a video call. Then the one thread that all others wait for may be without a core, while the others keep theirs busy with waiting. A step can take several times as long, and loader workers can gain nothing, although their load is small. The remedy is one environment variable, which lets waiting threads sleep and gives their core to whoever has work:
#
# ```bash
# OMP_WAIT_POLICY=PASSIVE python train.py
# ```
#
# It must be set before the process loads OpenMP, so before Python starts, or at least before the first `import torch` (`os.environ["OMP_WAIT_POLICY"] = "PASSIVE"`). It is not free: waking a thread takes a moment, so on a machine with nothing else to do, a step of many short operations can become a little slower. The alternative is to leave a core free: fewer compute threads (`cpu_threads`).
#
# perfkit sets nothing by itself: its baseline is a bare `python train.py`. The wait policy is the first rung of the CPU's ladder, a switch like any other (`wait_policy`). The second rung, `allocator`, lets the process keep memory that it has freed. This is what the first is worth beside one loader worker:

# %%
pk.StagePanel("wait_policy", settings={"workers": 1}).run()

# %% [markdown]
# What we measured on our machine is in [How perfkit measures](../docs/measuring.md).

# %% [markdown]
# ## The same on a simulated V100
#
# A GPU computes a step faster than a CPU, so it asks for more data per second. This is the article's machine with its eight workers, as a recorded simulation (nothing is measured: see [00](00_start_here.ipynb)):

# %%
pk.recording("sim-v100", "data_loading")

# %% [markdown]
# What if that GPU were in *your* machine? In a panel, choose *simulated GPU* with *this machine's* host: the loader then really runs, and only the GPU is simulated. With few cores, the loader stays the bottleneck in all later stages as well. That is not an error of the simulation. It is what this machine could feed to such a GPU.

# %% [markdown]
# ## When it does not help
#
# - If the model does not wait for data, there is no waiting to remove.
# - When the CPU also trains the model, workers and compute threads share the cores. Let waiting threads sleep (above), or use fewer of them (`cpu_threads`); more workers than spare cores make training slower.
# - If a sample is cheap to make, passing it between processes can cost more than making it. Then load a whole batch at once without PIL (`batched_fetch`): see chapter 05.
# - At the end of each epoch the queue runs empty, and the next epoch waits until it fills again. If epochs are short, a sampler without an end avoids that.
#
# ## In a log
#
# Some training logs print both parts of a step, in seconds. The slides quote one of DeepLabv3+: with 2 workers the article's `reader_cost` is about half of its `batch_cost` of 0.49, at 8 samples/s; with 8 workers it is below 0.001 of 0.24, at 17 samples/s. Print these two numbers in your own loop: they cost nothing, and tell you at once when the data falls behind.
#
# ## What to remember
#
# - Workers remove waiting, and nothing else. Once `next(loader)` returns at once, stop adding them.
# - A queue evens out slow batches; it does not help a loader that is too slow on average.
# - If workers are not enough: fewer bytes ([05](05_uint8_copy.ipynb)), cheaper samples, another loader ([20](20_profiling_by_hand.ipynb)).
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. A machine has 8 cores and a GPU. Why did the article choose 8 workers, and is that the best number?**
#
# <details><summary>The number of workers must equal the number of cores</summary>
#
# **No.** Nothing breaks if it does not. The operating system shares the cores among any number of processes.
#
# </details>
#
# <details><summary>One worker for each core is a first guess; measure around it</summary>
#
# **Right.** Fewer may feed the GPU already, and each worker costs memory. More can help if workers wait for a disk or a network.
#
# </details>
#
# <details><summary>The more workers, the better</summary>
#
# **No.** Once the loop no longer waits, another worker only takes memory and, if the CPU is busy, time.
#
# </details>
#
# **2. With 2 workers the rate doubled. What will 4 workers do?**
#
# <details><summary>Double it again</summary>
#
# **No.** Only as long as the loader is the bottleneck, and there are cores for the workers.
#
# </details>
#
# <details><summary>Nothing, if the loop already does not wait for data</summary>
#
# **Right.** Workers remove waiting. When none is left, the computation is the bottleneck.
#
# </details>
#
# <details><summary>Change the losses</summary>
#
# **No.** The order of the samples does not depend on the number of workers: the losses agree to the last bit.
#
# </details>
#
# **3. What does `prefetch_factor=4` change if the loader is too slow on average?**
#
# <details><summary>Nothing in the long run</summary>
#
# **Right.** A longer queue evens out batches that take longer than others. A queue that is emptied faster than it is filled is empty, however long it may be.
#
# </details>
#
# <details><summary>Each worker uses four cores</summary>
#
# **No.** It is the number of batches that a worker loads in advance.
#
# </details>
#
# <details><summary>Batches are loaded twice as fast</summary>
#
# **No.** Each worker still loads one batch at a time. It may only be further ahead.
#
# </details>

# %% [markdown]
# ## Exercise
#
# Would one more worker be better still? Run the recipe that you just measured with a different number of `workers`. A recipe is plain data, so change one entry of it; a ladder with only the stage `baseline` is a single run.

# %% tags=["exercise"]
trial = None  # pk.LadderPanel(["baseline"], settings=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    ours, yours = panel.runs[1], trial.runs[-1]
    assert yours.status == "ok", f"It was not measured: {yours.reason}"
    assert yours.recipe["workers"] != ours.recipe["workers"], "Change the number of workers"
    for run in (ours, yours):
        rate = run.samples_per_s
        print(
            f"{run.recipe['workers']} workers: {rate.value:.0f} samples/s ({rate.low:.0f} to {rate.high:.0f})"
        )
    print("Right. These two runs were not interleaved: if their intervals overlap, call it no difference.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# now = panel.runs[1].recipe
# trial = pk.LadderPanel(["baseline"], settings=now | {"workers": now["workers"] + 1})
# trial.run()
# ```
#
# As soon as the step no longer waits, another worker gains nothing, and when the CPU trains the model it also costs a core.
#
# </details>

# %% [markdown]
# Next: [03 pinning](03_pinning.ipynb)
