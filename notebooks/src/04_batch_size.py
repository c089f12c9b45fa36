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
# *After this you can say what a larger batch gains, what it costs, and why twice the samples/s may not halve the training time.*
#
# When does it help? A drill first:

# %%
from perfkit import notebook as pk

pk.drill(5)

# %% [markdown]
# There, a larger batch needs no more launches. The walk-through's V100, simulated, is another case (the same samples, in small batches and in a large one):

# %%
pk.lanes("sim-v100-batch_size")

# %% [markdown]
# The kernels' row is nearly full on both sides, so no gap can close. What a larger batch gains is *inside* the kernels, because small ones leave part of the GPU idle while they run. The simulation does not see that: it predicts 1.08 times, and the walk-through measured 1.32.
#
# A larger batch **changes the training**: there are fewer, larger steps for the same samples. Compare samples/s, never the time of a step.

# %%
panel = pk.StagePanel("batch_size")
panel

# %%
panel.run()

# %%
panel.table("Training loss")

# %% [markdown]
# Compare losses over *samples*. They differ: this is the first stage that changes the training.
#
# Expect 0.9 to 1.25 times on a CPU, because 32 samples already keep its cores busy. The walk-through's V100 went from 1,200 to 1,584 samples/s with batch 512 (324 ms a step), while utilisation hardly moved: it counts the time in which *a* kernel runs, not how much of the GPU it fills.
#
# ## What it costs: memory
#
# The walk-through tried it because the memory view showed less than 1 GB of 16 in use. With batch 512 it was 11.3 GB. (You see that without a profiler: `torch.cuda.max_memory_allocated() / 2**30`.) Everything that holds samples grows with the batch: the batch itself, the *activations*, which are kept from forward until backward has used them, and the *workspace*, which operators hold while they run. Weights, gradients and the optimizer's state do not grow, so memory grows less than in proportion.

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
# *Accumulated* sums the gradients of two small batches before a step. Batch norm aside, you get the large batch's update in a small batch's memory, but kernels stay small. `torch.utils.checkpoint` (a puzzle below) recomputes activations in backward, at the cost of about one forward pass.
#
# If a run does not fit, set a smaller batch, here and in later chapters: `panel.set(batch_size=128)`.
#
# On a GPU, `nvidia-smi` shows more than PyTorch has allocated: the CUDA context takes hundreds of MB, which no setting frees, and the allocator keeps freed memory, because `cudaMalloc` is slow and `cudaFree` synchronises. Leave `empty_cache()` out of the loop. If sizes vary: `PYTORCH_ALLOC_CONF=expandable_segments:True` (`PYTORCH_CUDA_ALLOC_CONF` in older releases).

# %% [markdown]
# ## On a CPU: memory that is kept
#
# On a CPU, freed memory goes back to the system, and each step asks for it again, page by page; the more, the larger the batch. Two variables, `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1`, keep it (*memory reuse*). Guess what that gains, then set them, outside the file:

# %%
pk.my_train(allocator="keep")

# %% [markdown]
# ## Your line
#
# Double the batch in `my_train.py`, even if the panel was undecided. Each step then sees different samples, so tell the check to allow that:

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
# Only if it needs no more epochs for the same accuracy. MLPerf measures the time to an accuracy.
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
