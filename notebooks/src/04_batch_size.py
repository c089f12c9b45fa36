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
# **Does a larger batch use the device better, and what does it cost in memory?** *8 minutes. Needs: nothing special.*
#
# *After this you can say what a larger batch gains, what it costs, and why twice the samples/s may not halve the training time.*
#
# The walk-through's V100, simulated. The same samples in small batches and in one large batch:

# %%
from perfkit import notebook as pk

pk.lanes("sim-v100-batch_size")

# %% [markdown]
# Here there is no gap to see: the kernels' row is nearly full on both sides. What a larger batch gains is *inside* the kernels, because small ones leave part of the GPU idle while they run. The simulation does not see that: it predicts 1.08 times, and the walk-through measured 1.32. (Where the host is the bottleneck, a larger batch helps as well: the same launches do more work.) It **changes the training**: there are fewer, larger steps for the same samples.
#
# Compare samples/s, never the time of a step: a larger batch has longer steps. (Take ratios as shown: [rates don't divide to them](../docs/measuring.md#the-interval).)

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
# Expect 1.0 to 1.25 times on a CPU, because 32 samples already keep its cores busy. The walk-through's V100 went from 1,200 to 1,584 samples/s with batch 512 (324 ms a step), while utilisation hardly moved: it counts the time in which *a* kernel runs, not how much of the GPU it fills.
#
# ## What it costs: memory
#
# The walk-through tried it because the memory view showed less than 1 of 16 GB in use. With batch 512 it was 11.3 GB. (You see that without a profiler: `torch.cuda.max_memory_allocated() / 2**30`.) Everything that holds samples grows with the batch: the batch itself, the *activations*, which are kept from forward until backward has used them, and the *workspace*, which operators hold while they run. Weights, gradients and the optimizer's state do not grow, so memory grows less than in proportion.

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
# *Accumulated* sums the gradients of two small batches before a step. Batch norm aside, you get the large batch's update in a small batch's memory, but kernels stay small. `torch.utils.checkpoint` (a puzzle below) computes activations again in backward, for about one more forward pass.
#
# If a run does not fit, set a smaller batch, here and in the chapters that follow: `panel.set(batch_size=128)`.
#
# On a GPU, `nvidia-smi` shows more than PyTorch has allocated: the CUDA context takes hundreds of MB, which no setting frees, and the allocator keeps freed memory, because `cudaMalloc` is slow and `cudaFree` synchronises. Leave `empty_cache()` out of the loop. If sizes vary: `PYTORCH_ALLOC_CONF=expandable_segments:True`.

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
# Tune the learning rate again before you conclude anything about accuracy.
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
