# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · Batch size
#
# **Does a larger batch use the device better, and what does it cost in memory?** *9 minutes. Needs: nothing special.*
#
# *After this you can say what a larger batch gains and costs, and why twice the samples/s may not halve the training time.*
#
# Images of 32 × 32 on a simulated V100, the same samples in small batches and in larger ones:

# %%
from perfkit import notebook as pk

loop = {"workers": 8, "pin_memory": True, "non_blocking": True}
pk.lanes(
    {"batches of 32": loop, "batches of 128": loop | {"batch_size": 128}},
    workload="cifar_resnet18",
    options={"image_size": 32},
    device="sim:v100",
    host="cores=8,fetch_ms=0.1",
    preset="paper",
)

# %% [markdown]
# The kernels' row is full of gaps, because launching a kernel takes longer than running it. A larger batch needs no more launches. It also fills each kernel; a small one leaves part of the GPU idle while it runs. At the walk-through's 224 × 224 pixels there are no gaps, and only this second effect is left: it measured 1.32 times. The simulation sees little of it, and predicts 1.08 times.
#
# ## First, on a CPU: memory reuse
#
# On a CPU, freed memory goes back to the system, and every step has to request it again, page by page. The larger the batch, the more this costs, so fix this first. Two variables, `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1`, keep the memory, which then fragments, and never returns. (PyTorch's tuning guide recommends jemalloc or tcmalloc, which reuse memory, too.) Guess the gain:

# %%
pk.my_train(allocator="keep")

# %% [markdown]
# ## Now the batch
#
# A larger batch **changes the training**: there are fewer, larger steps for the same samples. Compare samples/s, never the time of a step. (*Kept so far* is what you kept; in the recording, another run, memory reuse was *faster*.)

# %%
panel = pk.StagePanel("batch_size")
panel

# %%
panel.run()

# %%
panel.table("Training loss")

# %% [markdown]
# Compare losses at equal *samples* (the table's are not): this stage changes the training.
#
# Expect 0.9 to 1.25 times on a CPU, because 32 samples already keep its cores busy. The walk-through's V100 went from 1,200 to 1,584 samples/s with batch 512 (324 ms a step), while utilisation, blind to how much a kernel fills, hardly moved.
#
# ## What it costs: memory
#
# The walk-through's memory view showed less than 1 GB of 16 in use, and with batch 512 11.3 GB. (`torch.cuda.max_memory_allocated() / 2**30` tells you.) Everything that holds samples grows: the batch itself, the *activations*, which are kept until backward has used them, and the *workspace*, which operators hold while they run. Weights, gradients and the optimizer's state do not grow. In this net they are next to nothing, so memory doubles; in a large model they may be most of it.

# %%
size = panel.plan.subject.size.batch_size
ledger = pk.memory(
    {
        "small batch": {"batch_size": size},
        "twice the batch": {"batch_size": 2 * size},
        "accumulated": {"batch_size": size, "accumulation": 2},
    }
)
ledger.plot("held")

# %%
ledger.table("At the peak")

# %% [markdown]
# *Accumulated* sums the gradients of two small batches before a step. Batch norm aside, you get the large batch's update in a small batch's memory, but kernels stay small. `torch.utils.checkpoint` (a puzzle below) recomputes activations in backward, at the cost of about one forward pass. If a run does not fit, set a smaller batch, here and later: `panel.set(batch_size=128)`.
#
# On a GPU, `nvidia-smi` shows more than PyTorch has allocated: the CUDA context takes hundreds of MB, and the allocator keeps freed memory, because `cudaMalloc` is slow and `cudaFree` synchronises. Leave `empty_cache()` out of the loop. If sizes vary: `PYTORCH_ALLOC_CONF=expandable_segments:True` (older releases: `PYTORCH_CUDA_ALLOC_CONF`).

# %% [markdown]
# ## Your line
#
# Double the batch in `my_train.py`, even if the panel was undecided. Steps then see different samples, which you allow:

# %%
pk.my_train(allow=["samples", "updates"])

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# batch_size=64
# ```
#
# Not kept? Undo it. Kept? Tune the learning rate again before you conclude anything about accuracy.
#
# </details>

# %% [markdown]
# ## Drill

# %%
pk.drill(5)

# %% [markdown]
# ### Puzzle ★★: fit into memory: accumulate
#
# *About 15 minutes.*

# %%
pk.puzzle("accumulation")


# %%
def train_step(model, optimizer, inputs, targets, micro):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


pk.puzzle("accumulation").check(train_step)

# %% [markdown]
# ### Puzzle ★★: fit into memory: recompute
#
# *About 15 minutes.*

# %%
pk.puzzle("checkpointing")


# %%
def forward(blocks, x):
    for block in blocks:
        x = block(x)
    return x


pk.puzzle("checkpointing").check(forward)

# %% [markdown]
# ## Check yourself
#
# **Twice the samples/s with twice the batch. Is training done in half the time?**
#
# <details><summary>Answer</summary>
#
# Only if it needs no more epochs for the same accuracy.
#
# </details>
#
# **A step waits for data. Does a larger batch help?**
#
# <details><summary>Answer</summary>
#
# No. It waits longer, for more samples.
#
# </details>
#
# **An embedding of 10,000,000 × 150 float32 values needs 5.59 GiB and does not fit. What now?**
#
# <details><summary>Answer</summary>
#
# Leave it on the host, and copy only the rows of the step ([11](11_hidden_transfers.ipynb)).
#
# </details>
#
# Next: [05 uint8 copy](05_uint8_copy.ipynb)
