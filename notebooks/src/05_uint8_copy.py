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
# **How many bytes does a sample need?** *9 minutes. Needs: nothing special; only a GPU has a copy to shorten.*
#
# *After this you can send a quarter of the bytes, and say where that helps and where it does not.*
#
# A simulated RTX 3090 that skips [03](03_pinning.ipynb): 2 GB/s, from ordinary memory:

# %%
from perfkit import notebook as pk

loop = {"batch_size": 64, "workers": 8, "amp": "fp16", "channels_last": True}
pk.lanes(
    {"float32 batches": loop, "uint8 batches": loop | {"uint8_copy": True}},
    workload="cifar_resnet18",
    device="sim:rtx3090",
    host="article",
    preset="paper",
)

# %% [markdown]
# The gap: the copy. A decoded image consists of bytes, and `ToTensor` turns each into four. Send the bytes, and convert on the device.
#
# There, bytes were the bottleneck (pinned memory leaves a sixth of that gap). On your machine? A CPU copies nothing; only the loader's work gets cheaper. Guess:

# %%
panel = pk.StagePanel("uint8_copy")
panel

# %%
panel.run()
before, after = panel.runs[:2]
print(
    f"{before.batch_bytes_per_sample:,} bytes per sample before, {after.batch_bytes_per_sample or 0:,} after"
)

# %% [markdown]
# Either way you send a quarter of the bytes (the label's 8 bytes stay). While the worker keeps up, a CPU hardly gains, and the walk-through's V100, pinned by then, only went from 1,584 to 1,670 samples/s.
#
# (In the recording, *uint8 copy* starts from batches of 32, *scaled decoding* and [channels_last](06_amp.ipynb) from batches of 64.)
#
# *No measurable difference* is a result: the text under the table says how large any difference is at most. *Undecided* is not a result yet: **Continue** adds rounds. Unless it is *faster*, press **Drop**, and try it again in [07](07_compile.ipynb).
#
# ## Cheaper samples
#
# On a CPU, decoding is most of what a sample costs. Each photo is decoded at 500 × 375, then shrunk to 96 × 96, but JPEG files can be decoded at a half, a quarter or an eighth of their size. Expect 1.0 to 1.2 times.

# %%
cheaper = pk.StagePanel("scaled_decode")
cheaper.run()

# %% [markdown]
# The walk-through enlarges 32 × 32 images to 224 × 224, then copies 49 times the bytes: resize on the device (`device_resize`).

# %% [markdown]
# ## Your line
#
# The uint8 lines wait for [07](07_compile.ipynb), where the worker is short of time. (With a GPU, take them from there now.)
#
# In `my_train.py`, decode smaller: `ImageFolder` takes a `loader`, a function of a path. Let yours open the photo and call `draft("RGB", (96, 96))`. Pixels and losses will change slightly, so allow it:

# %%
pk.my_train(allow=["losses"], budget_s=120)

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# from PIL import Image
#
# def load(path):
#     photo = Image.open(path)
#     photo.draft("RGB", (96, 96))  # never smaller than this
#     return photo.convert("RGB")
#
# dataset = ImageFolder(photo_folder(256), transform, loader=load)
# ```
#
# </details>
#
# *Faster*, though it hardly waited? On a CPU, worker and model share the cores, so the time that the worker saves goes to the model. With a GPU, the same edit would gain nothing here. *Undecided*? As in 04. Not kept? Undo it.

# %% [markdown]
# ## Drill

# %%
pk.drill(6)

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
from torch.utils.data import DataLoader, Dataset

# %% [markdown]
# ### Puzzle ★★: a batch in one access
#
# *About 20 minutes.* A data set with `__getitems__` gets all indices of a batch in one call.

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
# ## Check yourself
#
# **Besides the copy, where do fewer bytes per sample save time?**
#
# <details><summary>Answer</summary>
#
# In the worker, which no longer converts to float, and in shared memory. Not in the model, which sees the same floats.
#
# </details>
#
# **The bytes are a quarter, the rate is the same. Did the switch fail?**
#
# <details><summary>Answer</summary>
#
# No. Whether a switch is on and whether it helps are two questions. Here bytes were not the bottleneck.
#
# </details>
#
# **The walk-through next tried `zero_grad(set_to_none=True)` and gained nothing. Why?**
#
# <details><summary>Answer</summary>
#
# It has been the default since PyTorch 2.0, which the walk-through used. Check a tip against your version.
#
# </details>
#
# Next: [06 AMP](06_amp.ipynb)
