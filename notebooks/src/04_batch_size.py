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
# **Does a larger batch use the device better, and what does it cost in memory?** *10 minutes. Needs: nothing special.*
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
# The kernels' row is full of gaps, because launching a kernel takes longer than running it. A larger batch needs no more launches, and its kernels fill the device better. At the walk-through's 224 × 224 pixels only the second effect is left: it measured 1.32 times. (The simulation predicts 1.08 times.)
#
# ## First, on a CPU: memory reuse
#
# On Linux, large freed blocks go back to the system, and every step requests them again, page by page. The larger the batch, the more this costs, so fix this first. Two variables, `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1`, keep that memory for the next step. The price: it fragments, and the process never gives it back. Guess:

# %%
pk.my_train(allocator="keep", budget_s=120)

# %% [markdown]
# *Undecided*? Measure longer (`budget_s=240`), or keep it with `keep=True`: the chart then says *kept by you*.
#
# ## Now the batch
#
# A larger batch **changes the training**: fewer updates for the same samples. Compare samples/s, never the time of a step.

# %%
panel = pk.StagePanel("batch_size")
panel

# %%
panel.run()

# %%
small, large = panel.runs[:2]
if large.losses:
    few, many = small.samples_per_step, large.samples_per_step
    steps = many // few  # small ones for the same samples
    for at, loss in enumerate(large.losses[: len(small.losses) // steps]):
        mean = sum(small.losses[steps * at : steps * (at + 1)]) / steps
        print(f"samples {many * at + 1} to {many * (at + 1)}:", end=" ")
        print(f"loss {mean:.2f} in {steps} steps of {few}, {loss:.2f} in one of {many}")

# %% [markdown]
# Compare losses on equal *samples*, not after equal steps: here the small batches are ahead, because they have updated the weights more often.
#
# Expect 0.9 to 1.25 times on a CPU, because 32 samples already keep its cores busy. The walk-through's V100 went from 1,200 to 1,584 samples/s with batch 512, while utilisation, blind to how full the device is, hardly moved.
#
# ## What it costs: memory
#
# With batch 512, the walk-through's memory in use rose from below 1 GB to 11.3. (`torch.cuda.max_memory_allocated() / 2**30` tells you.) What holds samples grows: the batch, the *activations*, kept until backward has used them, and the *workspace* of operators. Weights, gradients and the optimizer's state do not grow. In this net they are next to nothing, so what the step holds, below, doubles; in a large model they may be most of it. (The panel's peak is the whole process's, mostly Python and PyTorch; `pk.my_train` adds the worker's.)

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
# *Accumulated* averages the gradients of two small batches before a step. Batch norm aside, it makes the large batch's update in a small batch's memory, but kernels stay small. `torch.utils.checkpoint` (a puzzle below) recomputes activations, at the cost of about one forward pass.
#
# On a GPU, `nvidia-smi` also counts the CUDA context and freed memory, which the allocator keeps. Leave `empty_cache()` out of the loop. If sizes vary: `PYTORCH_ALLOC_CONF=expandable_segments:True`.

# %% [markdown]
# ## Your line
#
# Double the batch in `my_train.py`, even if the panel was undecided. Each step then sees different samples, so tell perfkit to allow it:

# %%
pk.my_train(allow=["samples", "updates"])

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# batch_size=64
# ```
#
# </details>
#
# *Undecided* here, but *faster* in the panel? Their intervals overlap: measure longer, or keep it. Not kept? Undo it. Kept? Tune the learning rate again before you judge the accuracy.

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
# **An embedding does not fit into the device's memory. What now?**
#
# <details><summary>Answer</summary>
#
# Leave it on the host, and copy only the step's rows ([11](11_hidden_transfers.ipynb)).
#
# </details>
#
# Next: [05 uint8 copy](05_uint8_copy.ipynb)
