# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · Baseline
#
# **Where does a step's time go?** *10 minutes. Needs: nothing special.*
#
# Measure before you change anything. A training loop is a pipeline with three stations:
#
# - The **loader** makes batches.
# - The **host**, the Python process, takes a batch, starts its copy to the device and *launches* the kernels. It does not wait for their results.
# - The **device** runs copies and kernels in the order of their launch.
#
# The slowest station sets the pace, and the others wait for it. That gives three bottlenecks:
#
# | bottleneck | you see on the timeline | what helps |
# |---|---|---|
# | **data** | a long gap in the device's row at the start of each step; the host waits in `next(loader)` | [02](02_data_loading.ipynb), [03](03_pinning.ipynb), [05](05_uint8_copy.ipynb) |
# | **host** | small gaps between short kernels | [04](04_batch_size.ipynb), [07](07_compile.ipynb), [11](11_hidden_transfers.ipynb) |
# | **device** | a full row | [06](06_amp.ipynb), [07](07_compile.ipynb), [12](12_kernels_and_shapes.ipynb) |
#
# Speeding up a station that is not the slowest gains nothing. Without a GPU, host and device are the same cores. Play with the picture: before each button, guess which bottleneck it shows.

# %%
from perfkit import notebook as pk

pk.pipeline()

# %% [markdown]
# Now measure the plain loop:

# %%
panel = pk.StagePanel("baseline")
panel.run()

# %% [markdown]
# The last rate in the sentence is the *ceiling*: the same step on a batch that is already on the device. No loader can bring more.
#
# ## Look at the step
#
# The rate says how fast; a profile says why. This is one step under PyTorch's profiler:

# %%
mine = pk.profile()
mine.timeline()

# %%
mine.table("Mean step")

# %% [markdown]
# Find the longest bar in the rows of the training thread. It is the loader's: while it runs, the model stands still. A profiler slows the step down, most where operators are small, so take rates from a run without it.
#
# ## The same on the walk-through's V100, simulated
#
# The profiler walk-through ([the articles](../docs/articles.md)) started at 80 ms a step: 400 samples/s, GPU busy 31.65% of the time. Its profiler's summary did not blame the loader. The loader's time was booked under "CPU Exec" and "Other"; only the timeline showed it. The official tutorial that it set out to improve was at 132 ms and 23.54%.

# %%
pk.recording("sim-v100", "baseline")

# %% [markdown]
# GPU *utilisation*, here and in `nvidia-smi`, is the share of time in which at least one kernel runs. A low value proves that the device is idle. A high value does not prove that its kernels are good.
#
# The walk-through's 400 samples/s lie inside the simulation's band, below its middle: how long its loader took is a guess.
#
# ## Your line: time it by hand
#
# This is the loop in plain PyTorch, with a clock. `%%watch` above a cell shows what perfkit sees of its steps. Two numbers that every training log should have are the time of a step and the part of it spent waiting (the methods slides call them `batch_cost` and `reader_cost`). Replace the line marked `# edit`: how long did the loop wait for this batch?

# %%
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from perfkit.workloads.files import photo_folder

photos = photo_folder(256)  # JPEG files, made once
# %load_ext perfkit

# %% tags=["exercise"]
# %%watch
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
layers = []
shapes = [(3, 16, 2), (16, 32, 1), (32, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
for inputs, outputs, stride in shapes:
    layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 8)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.ToTensor(), T.Normalize(0.5, 0.5)])
dataset = ImageFolder(photos, transform)
loader = DataLoader(
    dataset,
    shuffle=True,
    drop_last=True,
    batch_size=32,
)
waits, steps, end = [], [], time.perf_counter()
for images, labels in loader:
    arrived = time.perf_counter()
    images, labels = images.to(device), labels.to(device)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    waits.append(0.0)  # edit
    if device == "cuda":
        torch.cuda.synchronize()  # or the clock stops before the device does
    steps.append(time.perf_counter() - end)
    end = time.perf_counter()

# %% tags=["check"]
share = sum(waits[2:]) / sum(steps[2:])  # the first steps allocate and choose algorithms
if share == 0:
    print("Your turn: edit the marked line above, and run both cells again.")
else:
    assert 0 < share < 1, (
        "The wait is a part of the step: from the end of the last step until the batch arrived"
    )
    print(f"Right: it waits {share:.0%} of the time, at {32 * len(steps[2:]) / sum(steps[2:]):.0f} samples/s")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# waits.append(arrived - end)
# ```
#
# Compare with what `%%watch` says.
#
# </details>

# %% [markdown]
# **A CPU loop waits for data half of the time, and nothing overlaps. How much faster can a perfect loader make it?**
#
# <details><summary>One and a half times</summary>
#
# **No.** The time is halved, so the speed doubles.
#
# </details>
#
# <details><summary>At most twice</summary>
#
# **Right.** Removing a share *s* of the time gives at most 1 / (1 − *s*). On a GPU this bound is too loose: kernels that ran during the wait need their time anyway. Use the ceiling.
#
# </details>
#
# <details><summary>As fast as the data sheet says</summary>
#
# **No.** A loader does not change the computation.
#
# </details>

# %% [markdown]
# ### Puzzle ★★: time a GPU step
#
# *About 15 minutes.*

# %%
pk.puzzle("timing")


# %%
def seconds_per_step(step, steps):
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


pk.puzzle("timing").check(seconds_per_step)

# %% [markdown]
# ### Puzzle ★: a profile of the right steps
#
# *About 10 minutes.*

# %%
pk.puzzle("profiler")


# %%
def profile(step, steps):
    with torch.profiler.profile() as profiler:
        for _ in range(steps):
            step()
    return profiler


pk.puzzle("profiler").check(profile)

# %% [markdown]
# ## Keep in mind
#
# - Look at the timeline before you read a summary.
# - Print the wait for data in every training log.
# - Close other programs before you believe a rate.
#
# Is your own script waiting? [09](09_your_own_script.ipynb) looks at it; you can go there now. Next: [02 data loading](02_data_loading.ipynb)
