# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 20 · Profiling by hand
#
# **How do you profile any loop with nothing but PyTorch, and what is a faster loop worth?**
#
# *About 1 minute at the preset `quick` on two cores; at `paper` on a GPU at most 1 (planned, not timed). Needs: nothing special.*
#
# perfkit calls PyTorch's profiler for you. You will also meet loops that perfkit cannot start: on a cluster, in a colleague's framework, in a debugger. Everything on this page works there, too.
#
# Optimising is a loop of its own: **profile, find what takes the most time, change one thing, measure, and profile again**, because the largest part is now another one. The profiler article goes round it seven times: the wait for data hides the copies, the copies hide a small batch, and only when all three are gone does it pay to look at the kernels. Stop when the next change is worth less than the time it takes you.
#
# ## A loop to profile

# %%
import time

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(1024, 10)
)
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images, labels = torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 10, (256,))


def fetch():
    """A batch, made slowly: one image at a time."""
    chosen = torch.randint(0, len(images), (32,)).tolist()
    return torch.stack([images[i].float().div(255).sub(0.5) for i in chosen]), labels[chosen]


def step():
    with record_function("fetch"):
        x, y = fetch()
    with record_function("copy"):
        x, y = x.to(device), y.to(device)
    with record_function("forward"):
        loss = nn.functional.cross_entropy(model(x), y)
    with record_function("backward"):
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def timed(after=lambda: None, steps=12):
    """Milliseconds of each step; `after` is called at the end of each."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        after()
        if device.type == "cuda":
            torch.cuda.synchronize()  # or the clock stops before the device does
        times.append((time.perf_counter() - start) * 1e3)
    return times


timed(steps=5)  # the first steps allocate, choose algorithms, fill caches
plain_ms = timed()

# %% [markdown]
# `record_function` names a part of your own code, as a context or as a decorator (`@record_function("augment")`). `torch.cuda.nvtx.range` does the same for Nsight Systems ([chapter 16](16_nvtx_and_nsight.ipynb)), and C++ extensions have the macro `RECORD_FUNCTION`.
#
# ## Five lines around it
#
# This is the article's profiler, with a `schedule`. The profiler counts your calls of `step()` and goes through four phases: `wait` (does nothing), `warmup` (records, and throws it away: its own start is slow), `active` (records and keeps), and then `on_trace_ready` is called. All of this happens `repeat` times. The article found that a longer warm-up made its results steadier.

# %%
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")

with profile(
    activities=activities,
    schedule=schedule(wait=1, warmup=4, active=3, repeat=1),
    on_trace_ready=lambda p: p.export_chrome_trace(str(folder / "by_hand.pt.trace.json")),
    record_shapes=True,  # shapes of the operators' inputs
    profile_memory=True,  # allocations
    with_stack=False,  # True: the line of code of each operator, at a price
) as profiler:
    profiled_ms = timed(after=profiler.step, steps=8)

print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=8, max_name_column_width=30))

# %% [markdown]
# *Self* time leaves out what a row calls; *total* includes it. Sort by self time to find the work, by total time to find whose work it is: your own names stand at the top of the totals.

# %%
ours = {row.key: row.cpu_time_total / 1e3 / row.count for row in profiler.key_averages()}
for name in ("fetch", "copy", "forward", "backward", "optimizer"):
    print(f"{name:10} {ours[name]:6.2f} ms a step, on the host")

# %% [markdown]
# On a GPU, this is the time that the *host* needs to launch the work, not the time of the work: kernels run later. A slow `.item()` or a print of the loss then collects the time of everything before it. The device's own times are in the columns `CUDA time`, and on the timeline.
#
# ## A profiled step is no measurement

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
axes.plot(range(1, 13), plain_ms, "o-", label="plain")
axes.plot(range(1, 9), profiled_ms, "s--", label="profiled: 1 wait, 4 warm-up, 3 active")
axes.set(xlabel="step", ylabel="ms", ylim=(0, None), xticks=range(1, 13))
axes.legend()
plt.show()

# %% [markdown]
# Recording takes time, most of it for small operators. Use a profile to find out *where* time goes and how large the parts are, relative to each other. Measure the effect of a change without the profiler.
#
# ## Looking at the trace
#
# The file holds every event. perfkit reads it, like any trace of PyTorch or Nsight:

# %%
from perfkit import notebook as pk

view = pk.TraceView(folder / "by_hand.pt.trace.json")
view.plot("timeline")

# %%
view.table("Mean step")

# %% [markdown]
# Look at the timeline before you believe a summary. TensorBoard's overview merged the article's three recorded steps into one and reported 240 ms; on the timeline each step took 80 ms. It also put the wait for data under "CPU exec" and "other", so that the article's slow loader did not show up as one.
#
# How to read the timeline of a GPU: each *stream* is a row, and kernels and copies within a stream run one after the other. The rows of the CPU threads lie above; a launch there and its kernel below are joined by an arrow, and the distance between them is how far the host is ahead.
#
# | you see | it means |
# |---|---|
# | the device's row is empty while the host waits for the loader | data-bound: [02](02_data_loading.ipynb), [05](05_uint8_copy.ipynb) |
# | long copies in the same stream as the kernels | copy-bound: [03](03_pinning.ipynb), [05](05_uint8_copy.ipynb) |
# | small gaps between short kernels; launches close above their kernels | host-bound: larger batches ([04](04_batch_size.ipynb)), [07](07_compile.ipynb) |
# | the host stands in `cudaStreamSynchronize` or `cudaMemcpy` within a step | a hidden wait: [14](14_hidden_transfers.ipynb) |
# | a full row | device-bound: fewer, faster kernels: [06](06_amp.ipynb), [07](07_compile.ipynb), [15](15_kernels_and_shapes.ipynb) |
#
# Other tools open the same file, or record more:
#
# | tool | for |
# |---|---|
# | [ui.perfetto.dev](https://ui.perfetto.dev) | the timeline in a browser; the file stays on your machine. `chrome://tracing` is its predecessor |
# | the profiler plugin of TensorBoard | what the article used: deprecated in 2024, removed from PyTorch's profiler in 2026. Its tables are in chapters [09](09_reading_a_profile.ipynb), [15](15_kernels_and_shapes.ipynb) and [18](18_memory.ipynb) here |
# | Holistic Trace Analysis | traces of many ranks together; [chapter 17](17_distributed.ipynb) does it for a few |
# | Nsight Systems, Nsight Compute | threads, driver and operating system; one kernel in every detail |
# | `torch.cuda.memory._record_memory_history()` | each allocation with its stack, for [pytorch.org/memory_viz](https://pytorch.org/memory_viz) |
#
# ## `nvidia-smi`, and what its utilisation does not say
#
# The quickest look of all: `nvidia-smi dmon` prints utilisation, memory and clocks once a second, without touching your program. Its *utilisation* is the share of time in which **at least one kernel** was running. It says nothing about how much of the GPU that kernel used: one that fills a single multiprocessor counts as much as one that fills them all.
#
# So low utilisation proves that the GPU is idle, and high utilisation proves nothing. When the article raised its batch size, utilisation "did not change much", and its throughput rose by a third, from 1,200 to 1,584 samples/s. Samples per second are the result; utilisation is a hint where to look.

# %%
import pynvml

try:
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        busy, memory = pynvml.nvmlDeviceGetUtilizationRates(gpu), pynvml.nvmlDeviceGetMemoryInfo(gpu)
        print(f"{pynvml.nvmlDeviceGetName(gpu)}: {busy.gpu}% busy, {memory.used / 2**30:.1f} GiB in use")
except pynvml.NVMLError as problem:
    print("n/a here:", problem)

# %% [markdown]
# ## What is it worth?
#
# The GPU is the most expensive part of most training machines, and it costs the same while it waits. Put in your own training and your own price:

# %%
samples = 1_281_167 * 90  # seen in training: images × epochs
price = 3.0  # of an hour, in any currency
before_per_s, after_per_s = 400, 3268  # the article's first stage (derived: 32 ÷ 80 ms) and its last one

for name, rate in (("before", before_per_s), ("after", after_per_s)):
    hours = samples / rate / 3600
    print(f"{name:7} {rate:6,.0f} samples/s  {hours:6.1f} h  costs {hours * price:7.2f}")
print(f"{after_per_s / before_per_s:.1f} times as fast")

# %% [markdown]
# Two cautions. *Samples per second are not time to train*: a change that needs more epochs for the same accuracy (a much larger batch, a lower precision) can raise the one and the other. MLPerf therefore measures the time until an accuracy is reached. And a run that happens once is worth little of your time; one that a team starts every day is worth a lot.
#
# ## When the loader itself is the limit
#
# More workers help until the cores are used up. After that:
#
# | change | when |
# |---|---|
# | decode and resize once, and store the result | the same files are read in every epoch |
# | decode on the GPU (`torchvision.io.decode_jpeg(…, device="cuda")`, NVIDIA DALI) | JPEG decoding fills the cores, and the GPU has time left |
# | a loader in C++ (DALI, FFCV) or threads instead of processes (SPDL) | Python itself, or passing batches between processes, is the limit |
# | one large file in place of many small ones (WebDataset, tar shards) | the disk or the network waits for each file |
#
# All of them change more of your code than any switch in this workbook. Look at what a sample costs first ([chapter 13](13_what_if.ipynb)).
#
# ## Exercise
#
# `schedule(skip_first=1, wait=2, warmup=3, active=4, repeat=2)`: how many steps does a loop need until the second trace has been written?

# %% tags=["exercise"]
answer = None  # a number of steps

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    from torch.profiler import ProfilerAction

    phases = schedule(skip_first=1, wait=2, warmup=3, active=4, repeat=2)
    written = [n + 1 for n in range(100) if phases(n) is ProfilerAction.RECORD_AND_SAVE]
    assert answer == written[1], (
        "Each trace takes wait + warmup + active steps; the first step is skipped once"
    )
    print(f"Right: the traces are written after steps {written[0]} and {written[1]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = 1 + 2 * (2 + 3 + 4)
# ```
#
# </details>

# %% [markdown]
# Back to [00 start here](00_start_here.ipynb)
