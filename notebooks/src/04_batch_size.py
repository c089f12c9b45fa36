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
# *After this you can say what a larger batch gains, what it costs, and why an epoch that is twice as fast may not be.*
#
# The walk-through's V100, simulated. The same samples in small batches and in one large batch:

# %%
from perfkit import notebook as pk

pk.lanes("sim-v100-batch_size")

# %% [markdown]
# The gap: each operator costs some microseconds of Python and dispatch, whatever the batch. On a GPU, small kernels also leave part of the device idle while they run. With a larger batch, the same number of launches does more work. It **changes the training**: there are fewer, larger steps for the same samples.
#
# Compare samples/s, never the time of a step: a larger batch has longer steps.

# %%
panel = pk.StagePanel("batch_size")
panel

# %%
panel.run()

# %%
panel.table("Training loss")

# %% [markdown]
# Compare losses over *samples*, because a step of the larger batch trains on more of them. They differ: this is the first stage that changes the training.
#
# **What to expect.** A CPU: 1.0 to 1.25 times as fast, because 32 samples already keep its cores busy. The walk-through's V100: 1,200 → 1,584 samples/s with batch 512 (324 ms a step), while utilisation hardly moved. Utilisation counts the time in which *a* kernel runs, not how much of the GPU it fills.
#
# ## What it costs: memory
#
# The walk-through tried it because the memory view showed less than 1 of 16 GB in use. With batch 512 it was 11.3 GB. Everything that holds samples grows with the batch: the batch itself, the *activations*, which are kept from forward until backward has used them, and the *workspace*, which operators hold while they run. Weights, gradients and the optimizer's state do not grow. (The distributed guide says that memory grows in proportion. It does only where samples take nearly all of it.)

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
# *Accumulated* sums the gradients of two small batches before a step. It has the effective batch without its memory, but also without larger kernels. `torch.utils.checkpoint` (a puzzle below) keeps only the input of each block and computes the rest again in backward, for about one more forward pass.
#
# If a run does not fit, the panel says so. Set a smaller batch, here and in the chapters that follow: `panel.set(batch_size=128)`.
#
# On a GPU, `nvidia-smi` shows more than PyTorch has allocated. The allocator keeps freed memory, because asking the driver each time (`cudaMalloc`) is slow; the distributed guide warns of that, too. Leave `empty_cache()` out of the loop. If sizes vary, try `PYTORCH_ALLOC_CONF=expandable_segments:True`.

# %% [markdown]
# ## Your line
#
# Double the batch in `my_train.py`. A step then trains on other samples, which you have to allow:

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
# ### Puzzle ★★: fit into the memory: accumulate
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
# ### Puzzle ★★: fit into the memory: compute again
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
# Only if it needs no more epochs for the same accuracy. That is why MLPerf measures the time to an accuracy.
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
# Leave it on the host, as the placement guide does, and copy only the rows of the step ([11](11_hidden_transfers.ipynb)). If it fits, keep it on the device.
#
# </details>
#
# Next: [05 uint8 copy](05_uint8_copy.ipynb)
