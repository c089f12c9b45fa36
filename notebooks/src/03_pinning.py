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
# **Can the copy be shorter, or hidden?** *6 minutes. Needs: a CUDA GPU to measure; without one, the simulated V100 shows it.*
#
# *After this you can compute what pinning can gain before you try it, and say what `non_blocking` does and does not do.*
#
# The walk-through's V100, simulated. Before, the host waits (orange) for each copy. After, the copy is short, and the host is ahead (grey): its launch queue is full of later steps.

# %%
from torch.utils.data import DataLoader

from perfkit import notebook as pk

pk.lanes("sim-v100-pinning")

# %% [markdown]
# The gap: the batch is copied while no kernel runs. Three switches change that:
#
# - **Pinned memory** (`pin_memory=True`) makes the copy faster. From ordinary memory, the driver must first copy the batch into a page-locked buffer.
# - **`non_blocking=True`**, from pinned memory, lets the host go on once the copy is queued.
# - **A second stream**, also from pinned memory, lets copy and kernels run at the same time. On one stream they take turns.

# %% [markdown]
# **Compute it first.** The walk-through's machine copied 19.3 MB at 1.9 GB/s, in a step of 37 ms; from pinned memory the simulation assumes 12 GB/s ([14](14_checking_the_articles.ipynb) derives about 9.5). How much can the faster copy gain?
#
# <details><summary>Answer</summary>
#
# The copy falls from 10 to 1.6 ms: 37 ÷ 28.6, about 1.3 times, as in the simulation, which took its 2 GB/s from there. The walk-through gained 1.39, 865 → 1,200 samples/s: more than no copy at all gives (37 ÷ 27, 1.37). With `non_blocking` the host also launches ahead: gaps between kernels may have closed.
#
# </details>
#
# ## On your machine

# %%
import time

import torch

if torch.cuda.is_available():  # both bandwidths, for the bytes of that batch
    for is_pinned in (False, True):
        batch = torch.empty(19_267_584, dtype=torch.uint8, pin_memory=is_pinned)
        batch.to("cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            batch.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        rate = 20 * batch.nbytes / (time.perf_counter() - start)
        print(f"{'pinned' if is_pinned else 'ordinary'} memory: {rate / 1e9:.1f} GB/s")
else:
    print("n/a: there is no GPU to copy to")

# %% [markdown]
# A CPU has nothing to copy, so this run is the simulated V100's:

# %%
panel = pk.StagePanel("pinning")
panel.run()

# %% [markdown]
# The kernels still start after the copy. A second stream can hide at most the 1.6 ms that pinning left:

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
# Edit the loader and the copies. Pin only with workers: otherwise the training thread itself pins each batch. On a CPU both edits do nothing, so they are kept unmeasured:

# %%
pk.my_train()

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# num_workers=1, persistent_workers=True, pin_memory=device == "cuda")
#
# images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
# ```
#
# After a copy *to the host*, `.to("cpu", non_blocking=True)`, synchronise before you read.
#
# </details>

# %% [markdown]
# ### Prove it ★
#
# *About 5 minutes.*

# %%
pk.puzzle("pinned")


# %%
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=1)


def to_device(images, labels, device):
    return images.to(device), labels.to(device)


pk.puzzle("pinned").check(make_loader, to_device)

# %% [markdown]
# ## Drill

# %%
pk.drill(4)

# %% [markdown]
# ### Puzzle ★★★: a prefetcher that overlaps
#
# *About 40 minutes.* This is the distributed guide's *double buffer*.

# %%
pk.puzzle("prefetcher")


# %%
def prefetch(batches, device):
    for batch in batches:
        yield batch.to(device, non_blocking=True)


pk.puzzle("prefetcher").check(prefetch)

# %% [markdown]
# ## Check yourself
#
# **`x` is in ordinary memory. What does `x.to("cuda", non_blocking=True)` do?**
#
# <details><summary>Answer</summary>
#
# The host still waits while `x` goes into a page-locked buffer, and perhaps for earlier kernels. Only pinned memory makes the copy asynchronous.
#
# </details>
#
# **Pinned, non-blocking, one stream. Does the copy overlap with kernels?**
#
# <details><summary>Answer</summary>
#
# No. The *host* goes on, but the copy waits in the device's queue.
#
# </details>
#
# **Copies take 3% of a step. How much can pinning gain?**
#
# <details><summary>Answer</summary>
#
# At most 3%, since the pinned copy still takes time; more only if launches waited for it. Then send fewer bytes: [05](05_uint8_copy.ipynb).
#
# </details>
#
# Next: [04 batch size](04_batch_size.ipynb)
