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
# **How many bytes does a sample need?** *11 minutes. Needs: nothing special; only a GPU has a copy to shorten.*
#
# *After this you can send a quarter of the bytes, and say where that helps and where it does not.*
#
# The walk-through's V100, simulated. What is left of the copy shrinks:

# %%
from perfkit import notebook as pk

pk.lanes("sim-v100-uint8_copy")

# %% [markdown]
# The gap: what is left of the copy, and the loader's work on floats. A decoded image consists of bytes. `ToTensor` turns each byte into four before the batch is collated, queued and copied. Send the bytes, and convert on the device.

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
# Either way you send a quarter of the bytes (the label's 8 bytes stay). That is faster only if bytes were the bottleneck. On a CPU expect *no measurable difference* or *undecided*; the walk-through's V100 went from 1,584 to 1,670 samples/s, at a utilisation of 97.51%. "No measurable difference" is a result, too: the text under the table says how large an effect would have been noticed. Drop the change, and go on.
#
# ## Cheaper samples
#
# On a CPU, decoding is most of what a sample costs. Each photo is decoded at 500 × 375, and then shrunk to 96 × 96. A JPEG file can be decoded at a half, a quarter or an eighth of its size. Expect 1.0 to 1.2 times if the worker already keeps up, because it shares the model's cores, and far more if the loop still waits.

# %%
cheaper = pk.StagePanel("scaled_decode")
cheaper.run()

# %% [markdown]
# If images are small and the model enlarges them, send them small and resize on the device (`device_resize`). The walk-through copies 224 × 224 images that were made from 32 × 32, which have 1/49 of the pixels.

# %% [markdown]
# ## Your line
#
# In `my_train.py`, keep the images in bytes, and convert them to floats between -1 and 1 after the copy.

# %%
pk.my_train()

# %% [markdown]
# Not kept? Undo it. Then decode smaller: `ImageFolder` takes a `loader`, a function of a path. Let yours open the photo and call `draft("RGB", (96, 96))`. Pixels and losses differ slightly:

# %%
pk.my_train(allow=["losses"])

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.PILToTensor()])
#
# images = (images.to(torch.float32) / 255 - 0.5) / 0.5
#
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
# Augmentations that need floats must move to the device too; otherwise you are sending floats again.
#
# </details>

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
# In the worker, which no longer converts to float, and in shared memory. Not in the model, which sees the same floats as before.
#
# </details>
#
# **The bytes are a quarter, the rate is the same. Did the switch fail?**
#
# <details><summary>Answer</summary>
#
# No. Whether a switch is on and whether it helps are two separate questions. Here bytes were not the bottleneck.
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
