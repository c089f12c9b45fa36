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
# **How many bytes does a sample need?** *8 minutes. Needs: nothing special; only a GPU has a copy to shorten.*
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
# **What to expect.** A quarter of the bytes, for certain. It is faster only if bytes were the bottleneck: on a CPU usually *no measurable difference*, on the walk-through's V100 1,584 → 1,670 samples/s, at a utilisation of 97.51%. "No measurable difference" is a result, too. The text says how large an effect would have shown. Drop the change, and go on.
#
# ## Cheaper samples
#
# On a CPU, decoding is most of what a sample costs. Each photo is decoded at 500 × 375, and the next line shrinks it to 96 × 96: most pixels were decoded for nothing. A JPEG file can be decoded at a half, a quarter or an eighth of its size. `pk.StagePanel("scaled_decode").run()` measures that. Expect 1.0 to 1.2 times as fast if the worker already keeps up, because it now uses less of the core it shares with the model, and far more if the loop still waits. The pixels change slightly.
#
# If images are small and the model enlarges them, send them small and resize on the device (`device_resize`). The walk-through copies 224 × 224 images that were made from 32 × 32, which have 49 times fewer pixels.

# %% [markdown]
# ## Your line
#
# In `my_train.py`, keep the images in bytes, and convert them to floats between -1 and 1 after the copy.

# %%
pk.my_train()

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.PILToTensor()])
#
# images = (images.to(torch.float32) / 255 - 0.5) / 0.5
# ```
#
# Augmentations that need floats move to the device as well, or you send floats again.
#
# </details>

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
# *About 20 minutes.* If samples are small, or all in one array, most of their cost is Python. A data set with `__getitems__` gets all indices of a batch in one call.

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
# In the worker, which makes no floats, and on the way to the loop: a quarter of the bytes passes through shared memory. Not in the model, which sees the same floats as before.
#
# </details>
#
# **The bytes are a quarter, the rate is the same. Did the switch fail?**
#
# <details><summary>Answer</summary>
#
# No. That a switch is in effect and that it helps are two findings. Here bytes were not the bottleneck.
#
# </details>
#
# **The walk-through next tried `zero_grad(set_to_none=True)` and gained nothing. Why?**
#
# <details><summary>Answer</summary>
#
# It has been the default since PyTorch 2.0, the version that the walk-through used. Look up your version's default before you follow a tip.
#
# </details>
#
# Next: [06 AMP](06_amp.ipynb)
