# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 · uint8 copy
#
# **How many bytes does a sample need?** *10 minutes. Needs: nothing special; only a GPU has a copy to shorten.*
#
# The gap: what is left of the copy, and the loader's work on floats. A decoded image is bytes. `ToTensor` makes four bytes of each before the batch is collated, queued and copied. Send the bytes, and convert on the device.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("uint8_copy")
panel

# %%
panel.run()
before, after = panel.runs[:2]
print(
    f"{before.batch_bytes_per_sample:,} bytes per sample before, {after.batch_bytes_per_sample or 0:,} after"
)

# %% [markdown]
# **What to expect.** A quarter of the bytes, for certain. A gain only where bytes were the bottleneck: on a CPU usually *no measurable difference*; on the walk-through's V100 1,584 → 1,670 samples/s, at a utilisation of 97.51%. "No measurable difference" is a result: the text says how large an effect would have shown. Drop it, and go on.

# %%
pk.recording("sim-v100", "uint8_copy")

# %% [markdown]
# ## Cheaper samples
#
# On a CPU, what a sample costs is mostly decoding. A photo of 500 × 375 pixels is decoded, and the next line throws nearly all of them away. A JPEG file can be decoded at a half, a quarter or an eighth of its size (`scaled_decode`):

# %%
scaled = pk.StagePanel("scaled_decode")
scaled.run()

# %% [markdown]
# (The loop *before* it may have `channels_last`, a memory layout that [06](06_amp.ipynb) explains.) Expect 1.0 to 1.2 times where a worker keeps up either way: it gives back some time of a core that the model shares. Expect far more where the loop still waits. The pixels are slightly other ones, so *Details* compares the inputs.
#
# Where samples are small, or lie in one array, most of their cost is Python: a data set with `__getitems__` gets all indices of a batch in one call (a puzzle below). If images are small and the model enlarges them, send them small and resize on the device (`device_resize`). The walk-through's 32 × 32 images have 49 times fewer pixels than the 224 × 224 that it copies. Photos of different sizes cannot form a batch before they are resized, so it is n/a for them.
#
# ## Your line
#
# Keep the images in bytes, and convert after the copy to floats between -1 and 1.

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
transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.ToTensor(), T.Normalize(0.5, 0.5)])  # edit
dataset = ImageFolder(photos, transform)
loader = DataLoader(
    dataset,
    shuffle=True,
    drop_last=True,
    batch_size=32,
    num_workers=1,
)
for images, labels in loader:
    images, labels = images.to(device), labels.to(device)  # edit
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% tags=["check"]
if dataset[0][0].dtype == torch.float32:
    print("Your turn: edit the marked lines above, and run both cells again.")
else:
    assert dataset[0][0].dtype == torch.uint8, "The data set should give bytes"
    assert images.dtype == torch.float32, "The model needs floats: convert on the device"
    assert -1 <= images.min() < 0 < images.max() <= 1, (
        "Scale to the range from -1 to 1, as Normalize(0.5, 0.5) did"
    )
    print("Right: the loader passes on bytes, and the model sees the same floats as before")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.PILToTensor()])
#
# images, labels = images.to(device), labels.to(device)
# images = (images.to(torch.float32) / 255 - 0.5) / 0.5
# ```
#
# </details>

# %% [markdown]
# **Where does a smaller batch save time besides the copy to the GPU?**
#
# <details><summary>In the model, which now computes with bytes</summary>
#
# **No.** The model sees the same floats. Only the place of the cast has changed.
#
# </details>
#
# <details><summary>In the worker, and on the way from it to the loop</summary>
#
# **Right.** The worker makes no floats, and a quarter of the bytes passes through shared memory.
#
# </details>
#
# <details><summary>Nowhere</summary>
#
# **No.** Every byte is written and read several times on its way.
#
# </details>

# %% [markdown]
# ## A tip that has expired
#
# The walk-through's next step, `zero_grad(set_to_none=True)`, had no effect. It could not: it has been PyTorch's default since 2.0, the version that the walk-through used. Look up the default of your version before you follow a tip. `pk.StagePanel("zero_grad")` turns the switch `zero_grad_set_to_none` off, and measures what the default is worth.

# %% [markdown]
# ### Puzzle ★: normalise on the device
#
# *About 10 minutes.*

# %%
pk.puzzle("uint8")


# %%
def to_device(images, device, mean, std):
    images = images.float() / 255
    images = (images - mean.view(3, 1, 1).cpu()) / std.view(3, 1, 1).cpu()
    return images.to(device)


pk.puzzle("uint8").check(to_device)

# %%
from torch.utils.data import Dataset

# %% [markdown]
# ### Puzzle ★★: a batch in one access
#
# *About 20 minutes.*

# %%
pk.puzzle("batched_fetch")


# %%
class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


pk.puzzle("batched_fetch").check(Images, make_loader)

# %% [markdown]
# ## Keep in mind
#
# - Send uint8 and convert on the device: a quarter of the bytes for one line.
# - Run augmentations that need floats on the device, or you send floats again.
#
# Next: [06 AMP](06_amp.ipynb)
