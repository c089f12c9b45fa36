# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Pinning
#
# **Can the copy be shorter, or hidden?** *8 minutes. Needs: a CUDA GPU to measure; without one, the simulated V100 shows it.*
#
# The gap: the batch is copied to the GPU while no kernel runs. In the walk-through, 10 of 37 ms of a step were this copy. Three switches act on it, and they do three things:
#
# - **Pinned memory** (`pin_memory=True`) makes the copy faster. From ordinary memory, the driver must first copy the batch into a page-locked buffer of its own.
# - **`non_blocking=True`** lets the host go on after it has queued the copy.
# - **A second stream** lets copy and kernels run at the same time. On one stream, they always queue.
#
# Here is the step before, on the simulated V100. Find the copy in the stream's row, and the host's wait above it:

# %%
from perfkit import notebook as pk

before = pk.TraceView("recorded:sim-v100-data_loading")
before.timeline()

# %% [markdown]
# **In this picture the kernels of the step begin only when the copy has ended, and the host stands still until then. What would you try?**
#
# <details><summary>More workers</summary>
#
# **No.** The next batch is there in time: the host does not wait in the loader.
#
# </details>
#
# <details><summary>Pinned memory and `non_blocking`</summary>
#
# **Right.** The copy gets shorter, and the host can launch the step's kernels meanwhile. They still start after the copy: only a second stream changes that.
#
# </details>
#
# <details><summary>A faster GPU</summary>
#
# **No.** The kernels would be shorter. The copy would not.
#
# </details>

# %%
pk.recording("sim-v100", "pinning")

# %% [markdown]
# **What to expect.** At most the copy's share of the step. The walk-through went from 865 to 1,200 samples/s: a copy of 19 MB took 10 ms before, which is 1.9 GB/s, and about 2 ms after. (It prints 46 ms a step beside 1,200 samples/s, which contradict each other: [14](14_checking_the_articles.ipynb).) If your copies take 3% of a step, pinning brings at most 3%.
#
# ## On your machine
#
# On a CPU nothing is copied, and the panel says n/a. (What is recorded below is the simulated V100.)

# %%
panel = pk.StagePanel("pinning")
panel.run()

# %% [markdown]
# And with a second stream on top, so that the next copy runs beside this step's kernels. It can gain what pinning left of the copy, 2 of 27 ms:

# %%
pinned = panel.runs[-1].recipe
streams = pk.RecipePanel(
    {"copy on the same stream": pinned, "copy on a second stream": pinned | {"device_prefetch": True}}
)
if panel.runs[-1].status == "ok":
    streams.run()

# %% [markdown]
# ## Your line
#
# Two places: the loader, and the copies. Pin only in a loader with workers. With `num_workers=0` there is no pin thread: the training process would pin each batch itself, and can be slower than with a plain copy. Without a GPU the edited cell warns that there is nothing to pin for.

# %%
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
    num_workers=1,
    pin_memory=False,  # edit
)
for images, labels in loader:
    images, labels = images.to(device), labels.to(device)  # edit
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% tags=["check"]
if not loader.pin_memory:
    print("Your turn: edit the marked lines above, and run both cells again.")
else:
    assert loader.num_workers > 0, "Without workers the training process pins each batch itself"
    print("Right: the loader pins in a thread of its own, beside the loop")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# pin_memory=True,
#
# images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
# ```
#
# Copies *to the host* need care: after `.to("cpu", non_blocking=True)` synchronize before you read.
#
# </details>

# %% [markdown]
# **`x` is in ordinary memory. What does `x.to("cuda", non_blocking=True)` do?**
#
# <details><summary>The same as from pinned memory</summary>
#
# **No.** The driver cannot let the device read pages that may be swapped out.
#
# </details>
#
# <details><summary>The host waits while `x` is copied into a staging buffer, but not for the kernels before it</summary>
#
# **Right.** Without `non_blocking`, PyTorch also waits until the stream has finished the copy.
#
# </details>
#
# <details><summary>Nothing changes: it needs pinned memory</summary>
#
# **No.** It removes the wait for the stream. The staging copy stays.
#
# </details>

# %% [markdown]
# **Pinned, non-blocking, one stream. Does the copy overlap with kernels?**
#
# <details><summary>Yes, that is what `non_blocking` means</summary>
#
# **No.** The *host* is not blocked. On the device, the copy is one more entry in the queue.
#
# </details>
#
# <details><summary>No, that takes a second stream</summary>
#
# **Right.** The walk-through's own figures show it: kernels and copies add up to the whole step.
#
# </details>

# %% [markdown]
# ### Puzzle ★★★: a prefetcher that overlaps
#
# *About 40 minutes.*

# %%
pk.puzzle("prefetcher")


# %%
def prefetch(batches, device):
    for batch in batches:
        yield batch.to(device, non_blocking=True)


pk.puzzle("prefetcher").check(prefetch)

# %% [markdown]
# ## Keep in mind
#
# - Compute the limit first: bytes per batch ÷ bandwidth, compared with the step.
# - Pin in the loader, with workers. Do not call `.pin_memory()` in the loop.
# - If the copy still shows, send fewer bytes: [05](05_uint8_copy.ipynb).
#
# Next: [04 batch size](04_batch_size.ipynb)
