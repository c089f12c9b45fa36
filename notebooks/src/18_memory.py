# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 18 · Memory
#
# **What uses memory in a training step, and how can you reduce it?**
#
# *About 2 to 4 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: nothing special.*
#
# *Weights* and *optimizer state* take memory all the time, the *batch* during most of the step, *gradients* from backward until `zero_grad` sets them to `None` (or for ever, if it fills them with zeros). *Activations* are created in forward and kept until backward has used them; *workspace* is temporary. The peak is where the sum of all of them is highest, most often at the start of backward.
#
# perfkit tracks the storage of every tensor while a step runs, on a CPU as well as on a GPU.

# %%
from perfkit import notebook as pk

recipes = {
    "plain": {},
    "gradients zeroed": {"zero_grad_set_to_none": False},
    "bf16": {"amp": "bf16"},
    "half the batch, twice": {"accumulation": 2, "batch_size": pk.LadderPanel().plan.preset.batch_size // 2},
    "checkpointing": {"activation_checkpointing": True},
}
ledger = pk.memory(recipes, workload="cifar_resnet18")
ledger.table("At the peak")

# %%
ledger.plot("held")

# %% [markdown]
# What dominates depends on the model and the optimizer. A transformer with AdamW (`pk.memory(recipes, workload="tiny_gpt")`) keeps two numbers of optimizer state for each weight; SGD with momentum, as here, keeps one.

# %% [markdown]
# ## When, and where
#
# The highest point of each phase, and the lines of code with the most memory at the peak of the plain loop:

# %%
ledger.table("Highest")

# %%
ledger.table("Largest at the peak: plain")

# %% [markdown]
# ## What it costs
#
# Checkpointing discards activations and computes them again in backward: it saves memory and costs time. Is it worth it here?

# %%
panel = pk.RecipePanel(
    {"plain": {}, "checkpointing": {"activation_checkpointing": True}}, workload="cifar_resnet18"
)
panel

# %%
panel.run()

# %%
panel.parity("checkpointing")

# %% [markdown]
# ## When memory runs out
#
# A run that does not fit ends with a message that says so, and what to reduce; the notebook and the other runs continue. On a GPU, the table also has the allocator's own figures. Memory that is *reserved* but not *allocated* is kept for later. If there is a lot of it, the cause may be fragmentation; a large temporary peak leaves the same picture.
#
# The allocator asks the driver for memory in large blocks and keeps what is freed, because asking is slow and makes the host wait. The distributed article sets how much is taken at the start, and warns of a share of 0, with which every request goes to the driver. PyTorch's allocator grows as needed; its settings:
#
# | setting | does |
# |---|---|
# | `PYTORCH_ALLOC_CONF=expandable_segments:True` | blocks that grow: less fragmentation where sizes vary |
# | `…=max_split_size_mb:N` | does not split blocks larger than this |
# | `torch.cuda.memory.set_per_process_memory_fraction(0.5)` | an upper limit, for a GPU that is shared |
# | `torch.cuda.empty_cache()` | gives unused blocks back to the driver; in a loop it makes training slower |
# | `PYTORCH_NO_CUDA_MEMORY_CACHING=1` | no caching, every request goes to the driver: for finding memory errors only |
#
# A large embedding table can stay in host memory if each step uses only a few of its rows. In the article, a float32 table of 10,000,000 × 150 takes 5.59 GiB of device memory. Keeping it on the host saves that, and also the gradient of the same size (unless gradients are sparse) and the optimizer state. If the device's memory suffices, leave the table there: each step waits for its rows.
#
# ## When it does not help
#
# - If weights and optimizer state make up most of the peak, discarding activations changes little.
# - Autocast keeps the weights in 32 bits and adds 16-bit copies of them: with a small batch it can need more memory than before.
# - `accumulation` saves memory only if you also make the batches smaller.
#
# ## What to remember
#
# - Find out what the memory is used for before you save any: activations, gradients and optimizer state have different remedies.
# - Free memory on a GPU buys nothing by itself. In the article less than 1 of 16 GB was used, which often, not always, means that a larger batch would use the device better ([04](04_batch_size.ipynb)).
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. `nvidia-smi` shows 14 GB in use, PyTorch's allocator says 9 GB are allocated. Where is the rest?**
#
# <details><summary><code>empty_cache()</code> in each step would make training faster</summary>
#
# **No.** It gives the memory back, and the next step has to ask for it again: that is slower.
#
# </details>
#
# <details><summary>It has leaked</summary>
#
# **No.** A leak is memory that grows from step to step. Compare two later steps.
#
# </details>
#
# <details><summary>Reserved by the allocator for later, and used by the CUDA context</summary>
#
# **Right.** The allocator keeps freed memory, because asking the driver is slow. The context and the libraries take some, too.
#
# </details>
#
# **2. Does a batch twice as large need twice the memory?**
#
# <details><summary>No, memory does not depend on the batch size</summary>
#
# **No.** Each sample has its own activations, which are kept for backward.
#
# </details>
#
# <details><summary>No: only activations and the batch itself grow</summary>
#
# **Right.** Weights, gradients and the optimizer's state do not depend on the batch size.
#
# </details>
#
# <details><summary>Yes, memory is proportional to the batch size</summary>
#
# **No.** The distributed article says so. It is right only for the part that depends on the batch.
#
# </details>

# %% [markdown]
# ## Exercise
#
# SGD with momentum stores one value for each trained weight. In the recipe `gradients zeroed`, which has all gradients at the peak, what is the ratio of the optimizer's bytes to those of the gradients?

# %% tags=["exercise"]
answer = None  # ledger.found[1].parts has the bytes

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    held = ledger.found[1].parts
    assert abs(answer - held["optimizer"] / held["gradients"]) < 0.01, (
        "Divide the optimizer's bytes by the gradients'"
    )
    print(f"Right: {answer:.2f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# held = ledger.found[1].parts
# answer = held["optimizer"] / held["gradients"]
# ```
#
# </details>

# %% [markdown]
# Next: [19 checking the articles](19_checking_the_articles.ipynb)
