# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 16 · Named ranges, Nsight Systems, and three bottlenecks
#
# **Three training loops: which is bound by data, which by the host, which by the device?**
#
# *About 3 to 4 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: nothing special; Nsight Systems only for its own section.*
#
# Names make a timeline readable. perfkit names each part of the step it profiles (data, copy, forward, backward, optimizer). In your own code, write `with torch.profiler.record_function("augment"):` for the PyTorch profiler; for Nsight Systems write `with torch.cuda.nvtx.range("augment"):` or put `@torch.cuda.nvtx.range("augment")` above a function; C++ code has `nvtxRangePush` and `nvtxRangePop`.

# %%
# %% [markdown]
# ## Nsight Systems
#
# `nsys` records what the PyTorch profiler does not: every thread, the driver, the operating system. Record a *window* of steps, not the start: the article opens it at step 20 and closes it at step 30. In an exported script that is `torch.cuda.profiler.start()` before step 20 and `torch.cuda.profiler.stop()` before step 30, and the command is
#
# ```bash
# nsys profile --trace=cuda,nvtx,osrt,cudnn,cublas --capture-range=cudaProfilerApi --capture-range-end=stop -o report python train.py
# ```
#
# The slides read such a timeline in five steps: (1) which *named range* takes most of the step; (2) which *kernels* take most of the time, though their share does not yet show for which sizes; (3) among the calls of one kernel, are there some that are much *slower* than the others; (4) which *operator and range* launched those; (5) unfold the rows of the *threads*: what do they wait for?
#
# The rows of a GPU: one for each stream (often one for the kernels and one for copies), and one for all of them together. Their gaps are idle time.
#
# ## Three training loops, one bottleneck each
#
# The article distinguishes three bottlenecks by what they look like:
#
# | bound by | look on the timeline |
# |---|---|
# | **data** | gaps between iterations, and copies |
# | **host** | long blanks in the device's row; on a CPU, many tiny operators with gaps between them |
# | **device** | a full row, with slow operators or very many of them |
#
# The slides' cases, from models of their own: a convolution whose algorithm was chosen again and again on the CPU (host); threads that waited for a lock, `pthread_mutex_lock`, in the thread rows (host); a temporal shift with a slow kernel of its own (device: write a better kernel); weight decay as many small kernels of its own (device: let the optimizer's kernel do it, as PyTorch's optimizers do).
#
# And their levers, with the place in this workbook:
#
# | lever | here |
# |---|---|
# | reading data: asynchronous, parallel, in C++, on the GPU | [02](02_data_loading.ipynb), [20](20_profiling_by_hand.ipynb) |
# | copying data: asynchronous, and no back and forth between devices | [03](03_pinning.ipynb), [05](05_uint8_copy.ipynb), [14](14_hidden_transfers.ipynb) |
# | scheduling: less work on the host for each operator | [04](04_batch_size.ipynb), [07](07_compile.ipynb) |
# | low precision | [06](06_amp.ipynb) |
# | operators and graphs: better kernels, fusion, code generation | [07](07_compile.ipynb), [15](15_kernels_and_shapes.ipynb) |
# | the model's own code | [11](11_your_own.ipynb), [14](14_hidden_transfers.ipynb) |
#
# Here are A, B and C, in random order. Look at them first, then say which is which in the exercise.
# %%
import random

from perfkit import notebook as pk

bottlenecks = random.Random(16).sample(["data", "host", "device"], 3)
hidden = dict(zip("ABC", bottlenecks, strict=True))  # no peeking
kinds = {
    "data": ("perfkit.workloads.bottlenecks:DataBound", {}),
    "host": ("tiny_gpt", {"batch_size": 1}),
    "device": ("perfkit.workloads.bottlenecks:DeviceBound", {}),
}
readings = {letter: pk.profile(*kinds[kind][:1], settings=kinds[kind][1]) for letter, kind in hidden.items()}
readings["A"].plot("timeline")

# %%
readings["B"].plot("timeline")

# %%
readings["C"].plot("timeline")

# %%
for letter, reading in readings.items():
    step = reading.analysis.steps[0]
    calls = sum(row.calls for row in reading.analysis.operators) / len(reading.analysis.steps)
    print(f"{letter}: a step of {step.duration_us / 1e3:.1f} ms, {calls:,.0f} operator calls")

# %% [markdown]
# On a simulated GPU you can look at the same three loops with a device's row: `pk.profile("tiny_gpt", settings={"batch_size": 1}, device="sim:v100", host="article")`.
#
# ## When it does not help
#
# Named ranges make nothing faster. A profile of the first steps shows warm-up; a profile of a step that waits for data says little about kernels.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. The GPU's row shows many short kernels with gaps of the same length between them. Which bottleneck?**
#
# <details><summary>The device</summary>
#
# **No.** Then there would be no gaps.
#
# </details>
#
# <details><summary>The host: it cannot launch them fast enough</summary>
#
# **Right.** The remedy is fewer, larger kernels: a larger batch, fusion, CUDA graphs.
#
# </details>
#
# <details><summary>The data</summary>
#
# **No.** Waiting for data makes one long gap in each step, before its first kernel.
#
# </details>
#
# **2. Why does the article record steps 20 to 30, and not the first ten?**
#
# <details><summary>The first steps are different: they allocate, choose algorithms and fill queues</summary>
#
# **Right.** A trace should show the steady state, and be small enough to be opened.
#
# </details>
#
# <details><summary>Nsight needs 20 steps to start</summary>
#
# **No.** It can record from the first step on.
#
# </details>
#
# <details><summary>The loss is more stable then</summary>
#
# **No.** The loss does not matter for the timeline.
#
# </details>

# %% [markdown]
# ## Exercise
#
# Which bottleneck does each of the three have?

# %% tags=["exercise"]
answer = None  # {"A": "data", "B": ..., "C": ...} with "data", "host" and "device"

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    assert answer == hidden, (
        "Data: the step's time is before the first operator. Host: the most operator calls, each of them tiny"
    )
    print("Right:", ", ".join(f"{letter} is bound by the {kind}" for letter, kind in answer.items()))

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = hidden
# ```
#
# In the data-bound loop, loading a sample keeps a core busy for a while. The host-bound model has more than a hundred tiny layers; the device-bound one has a few wide convolutions.
#
# </details>

# %% [markdown]
# ## What the tools find
#
# Each finding comes with its evidence and with the largest possible gain.

# %%
for letter, reading in readings.items():
    print(letter, "·", reading.findings[0].message if reading.findings else "nothing stands out")

# %% [markdown]
# Next: [17 distributed](17_distributed.ipynb)
