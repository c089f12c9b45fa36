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
# **Does the loop wait for data?** *8 minutes. Needs: two cores.*
#
# *After this you can give a loop the right number of workers, and tell when one more won't help.*
#
# The walk-through's V100, simulated, before and after:

# %%
import matplotlib.pyplot as plt
import torch
from torch.utils.data import DataLoader

import perfkit
from perfkit import notebook as pk
from perfkit.show import style

pk.lanes("sim-v100-data_loading")

# %% [markdown]
# The gap: the training process fetches each batch itself, so the device runs out of work. Afterwards, eight workers load while the model trains, two batches ahead each, through shared memory (`/dev/shm`, small in many containers). The host still waits (orange) for the copy, which queues behind the kernels: [03](03_pinning.ipynb).

# %% [markdown]
# Enter a guess, then press *Run*. Press *Keep* if it was faster, *Drop* if not: the next chapters start from what you kept.

# %%
panel = pk.StagePanel("data_loading")
panel

# %%
panel.run()

# %% [markdown]
# Expect 1.1 to 1.8 times on two cores. The walk-through's V100, with 8 workers on 8 vCPUs, went from 80 to 37 ms (865 samples/s), and its utilisation from 31.65 to 72.81%.
#
# **How many?** The rate rises with each worker, stays flat once nothing waits, and falls when cores or memory run out. If a GPU trains, start with cores ÷ GPUs. If the CPU itself trains, start with one worker for every two cores. Try a few more and fewer, as `perfkit tune` does. *Guess: at how many does the simulated V100's rate level off?*

# %%
v100, counts = perfkit.plan(device="sim:v100", host="article"), [0, 1, 2, 4, 8, 16]
pairs = [perfkit.compare("baseline", f"workers={count}", v100) for count in counts[1:]]
rates = [run.samples_per_s.value for run in (pairs[0].a, *(pair.b for pair in pairs))]
plt.figure(figsize=(6, 2.5))
plt.plot(counts, rates, "o-", color=style.BLUE)
plt.xlabel("workers")
plt.ylabel("samples/s, predicted")
plt.ylim(bottom=0)
plt.show()

# %% [markdown]
# At 2: a step is then a copy and the kernels, one after the other, and no worker shortens either ([03](03_pinning.ipynb)).
#
# ## On a CPU: sleeping threads
#
# While PyTorch's compute threads wait for each other they *spin*, on a core that the worker needs. With `OMP_WAIT_POLICY=PASSIVE python my_train.py` they sleep. In a longer measurement the worker alone gave 0.92 times the plain rate, sleeping threads 0.94, both 1.20 ([details](../docs/cpu.md)). So the panel changes both.
#
# ## Your line
#
# Open `my_train.py` and give its `DataLoader` a worker. Save it, then run this cell.

# %%
pk.my_train(wait_policy="passive")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
# ```
#
# Without `persistent_workers`, the workers start again in each epoch. The queue still runs empty at its end; an endless sampler avoids that.
#
# </details>

# %% [markdown]
# Was it the worker alone? Guess, then let the threads spin again.

# %%
pk.my_train(wait_policy="default")

# %% [markdown]
# Multiply both ratios, and the sleeping threads cancel out: in the stored output the worker alone gives 1.277 × 0.803 = 1.03 (0.89 to 1.19), so no gain is shown (0.92 fits, too). Sleeping threads made it pay. (Pictures of your file don't time workers: see the panel's.)

# %% [markdown]
# ## Drill

# %%
pk.drill(3)

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
# ### Puzzle ★: an endless order
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
# In the first epoch, unless the data set draws random numbers (`RandomCrop`). Later, persistent workers change the order, unless the sampler has its own generator.
#
# </details>
#
# **A loader is too slow on average. Does `prefetch_factor=4` help?**
#
# <details><summary>Answer</summary>
#
# No. A queue that is emptied faster than it is filled stays empty.
#
# </details>
#
# **DeepLabv3+ in the methods slides went from 8 to 17 samples/s with 8 workers instead of 2. Why no further?**
#
# <details><summary>Answer</summary>
#
# Its `reader_cost` fell from half of the step to nothing. If workers are not enough, make samples cheaper: fewer bytes ([05](05_uint8_copy.ipynb)), stored decoded, or decoded on the GPU.
#
# </details>
#
# Next: [03 pinning](03_pinning.ipynb)
