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
# **Does the loop wait for data?** *12 minutes. Needs: two cores.*
#
# The gap: the training process fetches each batch itself, and the model stands still meanwhile. Worker processes load the next batches while the model trains. Finished batches come through shared memory (`/dev/shm`, which is small in many containers).
#
# Enter a guess in the panel, then press *Run*. Afterwards press *Keep* if it was faster, *Drop* if not: the next chapters start from what you kept. A change on which you decide nothing stays in their loops, but [08](08_the_whole_ladder.ipynb) leaves it out.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("data_loading")
panel

# %%
panel.run()

# %% [markdown]
# **What to expect.** Two laptop cores: 1.2 to 1.8 times as fast. On the walk-through's V100 with 8 workers for its 8 vCPUs: 80 → 37 ms, utilisation 31.65 → 72.81%, 865 samples/s. How many are best depends on cores and samples: start with one for each core beside a GPU, with one for every two cores on a CPU, and measure around it. `perfkit tune` does that for you; the walk-through wished that PyTorch did.

# %%
pk.recording("sim-v100", "data_loading")

# %% [markdown]
# ## Before and after, as timelines
#
# Two recorded steps, with one compute thread and a profiler, which slow them down. Before, the training thread decodes photos itself; after, it has its next batch at once:

# %%
pk.TraceView("recorded:photos-baseline").timeline()

# %%
pk.TraceView("recorded:photos-data_loading").timeline()

# %% [markdown]
# `pk.profile("photos", "data_loading")` records one of your own.

# %% [markdown]
# **Look at the second picture. What would you try next?**
#
# <details><summary>A second worker</summary>
#
# **No.** The loop hardly waits any more. Another worker would take a core from the model.
#
# </details>
#
# <details><summary>Something that makes the operators faster</summary>
#
# **Right.** The row is full of forward and backward: the step now computes. Layout, precision and compiling come in 06 and 07.
#
# </details>

# %% [markdown]
# ## On a CPU: when a worker makes it slower
#
# PyTorch's compute threads wait for each other after each operation, and by default they *spin*: they keep their core busy. A worker that needs a core then pushes one thread aside while the others burn theirs waiting for it. `OMP_WAIT_POLICY=PASSIVE python train.py` lets waiting threads sleep. A bare `python train.py` does not have it, and gains little or even loses by a worker:

# %%
waiting = pk.RecipePanel(
    {
        "plain loop": {},
        "a worker, threads spin": {"workers": 1},
        "a worker, threads sleep": {"workers": 1, "wait_policy": "passive"},
    }
)
waiting.run()

# %% [markdown]
# So on a CPU the panel sets both. Sleep has a price: threads take time to wake, and computing alone gets slower (the panel's *Why*). The loop *before* already keeps freed memory, in place of handing it back and asking again. On a GPU neither matters much.
#
# ## Your line
#
# Give the loop a worker. Does the wait fall? Does the step get shorter? (The threads of this kernel spin, unless you started it with `OMP_WAIT_POLICY=PASSIVE`.)

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
    num_workers=0,  # edit
)
for images, labels in loader:
    images, labels = images.to(device), labels.to(device)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% tags=["check"]
if loader.num_workers == 0:
    print("Your turn: edit the marked line above, and run both cells again.")
else:
    assert loader.num_workers <= 4, "More workers than cores only take memory"
    print(f"Right: {loader.num_workers} worker(s). Compare the share of waiting with that of 0 workers")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# num_workers=1,
# ```
#
# For several epochs, add `persistent_workers=True`: otherwise the workers start anew in each. The queue still runs empty at the end of each epoch; an endless sampler avoids that (puzzle below).
#
# </details>

# %% [markdown]
# **You change from 0 to 4 workers. Are the losses the same as before?**
#
# <details><summary>Yes, always: the order of samples does not depend on workers</summary>
#
# **No.** The order does not. But ordinary random augmentation, such as `RandomCrop`, draws from each worker's own generator.
#
# </details>
#
# <details><summary>Yes, unless the data set draws random numbers</summary>
#
# **Right.** With random augmentation the numbers depend on the worker, so the losses differ. It is still the same training in expectation.
#
# </details>
#
# <details><summary>No, the order changes</summary>
#
# **No.** The sampler runs in the training process.
#
# </details>

# %% [markdown]
# **`prefetch_factor=4` and a loader that is too slow on average. What changes?**
#
# <details><summary>Nothing in the long run</summary>
#
# **Right.** A longer queue evens out slow batches. A queue that is emptied faster than it is filled stays empty.
#
# </details>
#
# <details><summary>Batches load twice as fast</summary>
#
# **No.** Each worker loads one batch at a time, as before.
#
# </details>

# %% [markdown]
# ### Puzzle ★: the DataLoader line
#
# *About 10 minutes.*

# %%
pk.puzzle("loader")


# %%
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


pk.puzzle("loader").check(make_loader)

# %% [markdown]
# ### Puzzle ★: an order without end
#
# *About 10 minutes.*

# %%
pk.puzzle("infinite_sampler")


# %%
def endless(length, generator):
    yield from torch.randperm(length, generator=generator).tolist()


pk.puzzle("infinite_sampler").check(endless)

# %% [markdown]
# ## Keep in mind
#
# - Add workers until the loop no longer waits; then stop. In the methods slides, DeepLabv3+ went from 8 to 17 samples/s with 8 workers for 2, and its `reader_cost` from half of the step to nothing.
# - On a CPU, let waiting threads sleep.
# - If workers are not enough, make samples cheaper: fewer bytes ([05](05_uint8_copy.ipynb)), stored decoded or resized, or decoded on the GPU.
#
# Next: [03 pinning](03_pinning.ipynb)
