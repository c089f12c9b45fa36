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
# **Where does a step's time go?** *7 minutes. Needs: nothing special.*
#
# *After this you can name the bottleneck of a loop from its timeline, and say how much a fix can gain at most.*
#
# A training loop has three stations:
#
# - The **loader** makes batches.
# - The **host**, the Python process, takes a batch, starts its copy and *launches* the kernels, without waiting for them.
# - The **device** runs copies and kernels, those of one *stream* in the order of their launch.
#
# In the plain loop the host fetches, copies and launches one after the other, and only kernels run meanwhile (on a CPU, nothing). Once the stations overlap, the slowest one sets the pace, and only speeding up that one helps (on a CPU the stations share cores, so cheaper loading helps a little, too: [05](05_uint8_copy.ipynb)):
#
# | bottleneck | on the timeline | what helps |
# |---|---|---|
# | **data** | a long gap in the device's row while a batch is loaded | [02](02_data_loading.ipynb), [05](05_uint8_copy.ipynb) |
# | **transfer** | a gap while a batch is copied | [03](03_pinning.ipynb), [05](05_uint8_copy.ipynb) |
# | **host** | small gaps between short kernels; a large one where a line waits | [04](04_batch_size.ipynb), [07](07_compile.ipynb), [11](11_hidden_transfers.ipynb) |
# | **device** | a full row | [06](06_amp.ipynb), [07](07_compile.ipynb), [12](12_kernels_and_shapes.ipynb) |
#
# Which bottleneck does the picture show? Then press *8 workers*, and *pinned memory*: what sets the pace?

# %%
from perfkit import notebook as pk

pk.pipeline()

# %% [markdown]
# Now measure the plain loop:

# %%
panel = pk.StagePanel("baseline")
panel.run()

# %% [markdown]
# The last rate in the sentence is the *ceiling*: the same step on a batch that is already on the device. No loader can take the loop past this rate; only a faster step can.
#
# ## Look at the step
#
# These are two steps under PyTorch's profiler:

# %%
mine = pk.profile()
pk.lanes({"the plain loop": mine.analysis.files[0]})

# %%
mine.table("Mean step")

# %% [markdown]
# While a green bar lasts, the model does nothing. (The thin blue bars are the transforms' tensor operations. A profiler slows the step: take rates from runs without one.)
#
# ## The walk-through's V100, simulated
#
# The walk-through started at 80 ms a step, 400 samples/s. The simulation gets 72 ms:

# %%
pk.recording("sim-v100", "baseline")

# %% [markdown]
# The walk-through's GPU was busy 31.65% of the time: *utilisation*, as in `nvidia-smi`, is the share of time in which any kernel runs. In the simulation, kernels run for 25 of 72 ms, 35%, and the host waits for data for 82%: more than 100%, because queued kernels run while it waits. So take a GPU's bound from the ceiling.
#
# The [methods slides](../docs/articles.md) sort all remedies into five *levers*: data reading (the long gap), framework scheduling (the small gaps), configuration and operator performance (the kernels), and model implementation (computing less).
#
# ## Time it by hand
#
# Every training log should have two numbers: the time of a step, and how long the host waits for data in it (the slides' `batch_cost` and `reader_cost`). Replace the line marked `# edit`: how long did the loop wait for this batch?

# %% tags=["exercise"]
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from perfkit.workloads.files import photo_folder  # JPEG files, made once
from perfkit.workloads.photos import small_net

device = "cuda" if torch.cuda.is_available() else "cpu"
model = small_net(classes=8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.ToTensor(), T.Normalize(0.5, 0.5)])
loader = DataLoader(ImageFolder(photo_folder(256), transform), batch_size=32, shuffle=True, drop_last=True)
waits, ends = [], [time.perf_counter()]
for images, labels in loader:
    arrived = time.perf_counter()
    images, labels = images.to(device), labels.to(device)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    waits.append(0.0)  # edit
    ends.append(time.perf_counter())
if device == "cuda":
    torch.cuda.synchronize()  # once: in each step it would keep the host from running ahead
    ends[-1] = time.perf_counter()

# %% tags=["check"]
seconds = ends[-1] - ends[2]  # the first steps allocate and choose algorithms
share = sum(waits[2:]) / seconds
if share == 0:
    print("Your turn: edit the marked line above, and run both cells again.")
else:
    assert 0 < share < 1, (
        "The wait is a part of the step: from the end of the last step until the batch arrived"
    )
    assert abs(waits[-1] - (arrived - ends[-2])) < 1e-3, (
        "That is another part of the step: the wait begins where the last step ended, and ends when the batch arrived"
    )
    rate = 32 * (len(ends) - 3) / seconds
    print(f"Right: it waits {share:.0%} of the time, at {rate:.0f} samples/s")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# waits.append(arrived - ends[-1])
# ```
#
# </details>

# %% [markdown]
# ## Drills

# %%
pk.drill(1)

# %%
pk.drill(2)

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
# ## Check yourself
#
# **A CPU loop waits for data half of the time, and nothing overlaps. How many times as fast can a perfect loader make it?**
#
# <details><summary>Answer</summary>
#
# About twice: removing a share *s* gives 1 / (1 − *s*). The ceiling, measured separately, may differ.
#
# </details>
#
# **The device's row is full. Will more loader workers help?**
#
# <details><summary>Answer</summary>
#
# No. Its kernels must get faster.
#
# </details>
#
# **`nvidia-smi` shows 98%. Is everything fine?**
#
# <details><summary>Answer</summary>
#
# Not necessarily: the kernels may be slow ones.
#
# </details>
#
# Next: [02 data loading](02_data_loading.ipynb)
