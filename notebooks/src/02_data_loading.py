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
# *After this you can give a loop the right number of workers, and tell when another one is useless.*
#
# The gap: the training process fetches each batch itself, and the model stands still in the meantime. Worker processes load the next batches while the model trains. Finished batches come through shared memory (`/dev/shm`, which is small in many containers).

# %% [markdown]
# Enter a guess in the panel, then press *Run*. Afterwards press *Keep* if it was faster and *Drop* if not: the next chapters start from what you kept. Press neither and the change stays on in the next chapters, but [08](08_the_whole_ladder.ipynb) won't count it.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("data_loading")
panel

# %%
panel.run()

# %% [markdown]
# **What to expect.** Two laptop cores: 1.2 to 1.8 times as fast. The walk-through's V100, with 8 workers on 8 vCPUs: 80 → 37 ms, utilisation 31.65 → 72.81%, 865 samples/s.
#
# **How many?** Too few, and the loop still waits. Too many, and they take memory and cores for nothing. Start with one worker per core and GPU if a GPU trains (on a node with 8 GPUs, divide the cores by 8), or one per two cores if the CPU does. Then try a few more and a few fewer; `perfkit tune` does that for you. The walk-through wished that PyTorch did.
#
# ## Before and after, as timelines
#
# Two recorded steps, with one compute thread and a profiler, which slow them down. (Look at the times: each picture is stretched to its full width.) Before, the training thread decodes photos itself. After, its next batch is already there:

# %%
pk.TraceView("recorded:photos-baseline").timeline()

# %%
pk.TraceView("recorded:photos-data_loading").timeline()

# %% [markdown]
# Does the host still wait? If not, another worker would only take a core from the model. Computing is the bottleneck now: 06 and 07.

# %% [markdown]
# ## On a CPU: when a worker makes it slower
#
# PyTorch's compute threads wait for each other after each operation. By default they *spin*, which keeps their core busy. A worker then takes a core from one thread, and the other threads spin until it catches up. With `OMP_WAIT_POLICY=PASSIVE python train.py`, waiting threads sleep. A bare `python train.py` does not set it; a worker helps little there, and can even hurt. Compare:

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
# So on a CPU the panel sets both. Sleeping has a price: threads take time to wake up. The panel's *before* also keeps freed memory. On a GPU neither matters much.
#
# ## Your line
#
# Give the loop a worker. Does the wait fall? Does the step get shorter? (This kernel's threads spin, unless you started it with `OMP_WAIT_POLICY=PASSIVE`.)

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
# For several epochs, add `persistent_workers=True`, or the workers start again in each. The queue still runs empty at the end of each epoch; an endless sampler avoids that (puzzle below).
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
# ## Check yourself
#
# **You change from 0 to 4 workers. Are the losses the same?**
#
# <details><summary>Answer</summary>
#
# Yes, unless the data set draws random numbers. The order comes from the sampler in the training process, but `RandomCrop` draws from each worker's own generator.
#
# </details>
#
# **A loader is too slow on average. Does `prefetch_factor=4` help?**
#
# <details><summary>Answer</summary>
#
# No. A longer queue evens out slow batches, but a queue that is emptied faster than it is filled stays empty.
#
# </details>
#
# **DeepLabv3+ in the methods slides went from 8 to 17 samples/s with 8 workers instead of 2. Why no further?**
#
# <details><summary>Answer</summary>
#
# Its `reader_cost` fell from half of the step to nothing. There is no wait left to remove. If workers are not enough, make samples cheaper: fewer bytes ([05](05_uint8_copy.ipynb)), stored already decoded, or decoded on the GPU.
#
# </details>
#
# Next: [03 pinning](03_pinning.ipynb)
