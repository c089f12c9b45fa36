# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Puzzles: loading data
#
# You write the code: a few lines each, with what chapters 02, 03 and 05 explain. Run a cell as often as you like; the last line of it checks what you wrote. *About 20 minutes. Needs: no GPU.*

# %%
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from perfkit import notebook as pk

# %% [markdown]
# ## The DataLoader line
#
# From chapter [02](../02_data_loading.ipynb).

# %%
pk.puzzle("loader")


# %%
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


pk.puzzle("loader").check(make_loader)

# %% [markdown]
# ## Seeds for workers
#
# From chapter [02](../02_data_loading.ipynb).

# %%
pk.puzzle("worker_seed")


# %%
def seed_worker(worker_id):
    np.random.seed(worker_id)


pk.puzzle("worker_seed").check(seed_worker)

# %% [markdown]
# ## An order without end
#
# From chapter [02](../02_data_loading.ipynb).

# %%
pk.puzzle("infinite_sampler")


# %%
def endless(length, generator):
    yield from torch.randperm(length, generator=generator).tolist()


pk.puzzle("infinite_sampler").check(endless)

# %% [markdown]
# ## A batch in one access
#
# From chapter [02](../02_data_loading.ipynb).

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
# ## Pinned, and without waiting
#
# From chapter [03](../03_pinning.ipynb).

# %%
pk.puzzle("pinning")


# %%
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


def to_device(batch, device):
    images, labels = batch
    return images.to(device), labels.to(device)


pk.puzzle("pinning").check(make_loader, to_device)

# %% [markdown]
# ## A prefetcher that overlaps
#
# From chapter [03](../03_pinning.ipynb).

# %%
pk.puzzle("prefetcher")


# %%
def prefetch(batches, device):
    for batch in batches:
        yield batch.to(device, non_blocking=True)


pk.puzzle("prefetcher").check(prefetch)

# %% [markdown]
# ## Normalise on the device
#
# From chapter [05](../05_uint8_copy.ipynb).

# %%
pk.puzzle("uint8")


# %%
def to_device(images, device, mean, std):
    images = images.float() / 255
    images = (images - mean.view(3, 1, 1).cpu()) / std.view(3, 1, 1).cpu()
    return images.to(device)


pk.puzzle("uint8").check(to_device)

# %% [markdown]
# Next: [the loop](2_loop.ipynb). Two answers to each of these, and three wrong ones: [solutions](solutions/1_loading.ipynb).
