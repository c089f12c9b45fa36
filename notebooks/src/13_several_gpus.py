# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 17 · Several ranks
#
# **How much faster are two processes that train together, and what would you expect from 1,024?**
#
# *About 5 to 7 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 10 (planned, not timed). Needs: two cores, or two GPUs.*
#
# With `DistributedDataParallel`, each *rank* is a process with its own copy of the model and its own part of the data. During the backward pass the ranks average their gradients with all-reduce, so the copies stay identical. The part of this communication that overlaps with backward is free; the *exposed* part lengthens the step.
#
# perfkit starts the ranks itself (gloo on a CPU, NCCL on GPUs), with the same training program. The switches of this chapter: `ranks`, `no_sync` with `accumulation`, `cpu_threads` (for each rank).
#
# ## Predict
#
# Compare two ranks, with one thread each, to one rank with one thread. By what factor do the samples per second grow?

# %%
from perfkit import notebook as pk

together = {"ranks": 2, "cpu_threads": 1}
panel = pk.RecipePanel(
    {
        "1 rank": {"cpu_threads": 1},
        "1 rank, 4 threads": {"cpu_threads": 4},
        "2 ranks": together,
        "accumulate 4": {**together, "accumulation": 4},
        "accumulate 4, no_sync": {**together, "accumulation": 4, "no_sync": True},
    },
    workload="tiny_gpt",
)
panel

# %%
panel.run()

# %%
one, two = panel["1 rank"], panel["2 ranks"]
print(f"Two ranks over one: {two.samples_per_s.value / one.samples_per_s.value:.2f}×")
print(f"Scaling efficiency: {panel.efficiency('1 rank', '2 ranks'):.0%}")

# %% [markdown]
# ## Where a step goes
#
# *Alone* is how long the all-reduce takes with nothing else running. *Exposed* is how much longer the step became because of it; the rest is hidden behind backward. A rank that computes for longer than the median rank is a *straggler*: all others wait for it. A transformer (`workload="tiny_gpt"`) has more weights for the same work, so it has more to send.

# %%
panel.communication()

# %% [markdown]
# ## Is it the same training?
#
# Two ranks with batch size *n* each must have the same losses as one rank with batch size 2 *n*. (Batch normalisation would break this, because each rank computes its own statistics; `nn.SyncBatchNorm` fixes it.)

# %%
panel.parity("2 ranks")

# %% [markdown]
# ## What would more ranks gain?
#
# The α–β model of a ring all-reduce: 2 (n − 1) α + 2 (n − 1)/n · bytes/β, with the latency α and the bandwidth β measured between these ranks. You can check its prediction for two ranks against the table above. For many ranks it is pessimistic about latency: NCCL then uses trees and hierarchies, whose latency grows with log n, not with n. And a single α and β cannot distinguish a fast link within a machine (NVLink) from the network between machines.

# %%
panel.forecast("2 ranks")

# %% [markdown]
# The same training over another network, with its latency and bandwidth given (here, those of a fast data-centre link):

# %%
panel.forecast("2 ranks", latency_s=5e-6, bytes_per_s=12.5e9)

# %% [markdown]
# ## On a cluster
#
# Export the script with `perfkit export --set ranks=16 > train.py`, then run on every machine, here on two of eight GPUs each:
#
# ```bash
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# Environment variables are passed on to the ranks: `NCCL_DEBUG=INFO` reports which network is used, `NCCL_IB_DISABLE=1` falls back from InfiniBand to TCP, and `OMP_NUM_THREADS` sets the threads per rank.
#
# ## The article's checklist
#
# Collectives with one process per device · CPU threads per process (try 1 and 4) · reading results every 30 steps, not in every step ([chapter 14](14_hidden_transfers.ipynb)) · RDMA with TCP as the fall-back · larger batches, or several accumulated before communicating (`no_sync`) · double buffering, uint8 batches and pinned memory in the data loader (chapters 02 to 05) · an endless reader: a data loader that does not start again from an empty queue in each epoch · mixed precision (the article scales the loss by a constant; PyTorch's `GradScaler` adapts the factor). Its advice: verify the gain of each one.
#
# Some of its items have no counterpart today. *Parameter servers* and *ParallelGraph* were ways to exchange gradients before collectives with one process per device became the rule. `sync_nccl_allreduce` chose whether the host waits for each all-reduce; DDP does not wait, and overlaps it with backward. *Dropping scopes* less often freed the framework's temporary variables in batches; PyTorch frees a tensor when its last reference is gone, and its allocator keeps the memory ([18](18_memory.ipynb)).
#
# ## CPU threads for each rank
#
# The article tries 1 and 4 threads for each process. torchrun sets one (`OMP_NUM_THREADS=1`), so that the ranks of a machine do not fight for its cores; with more cores than ranks, more can be better. Compare the rows `1 rank` and `1 rank, 4 threads` above:

# %%
four = panel["1 rank, 4 threads"]
print(f"4 threads: {four.samples_per_s.value / one.samples_per_s.value:.2f}x the samples/s of one thread.")

# %% [markdown]
# With more threads than cores they take time from each other. On a GPU these threads do little but load and prepare data.
#
# ## When it does not help
#
# - On one CPU, the ranks share cores that a single process could use with threads.
# - If the step is short, most of it is communication.
# - All ranks together process a larger batch: fewer optimizer steps per epoch, which changes the training.
#
# ## What to remember
#
# - What counts is the *exposed* part of the communication.
# - More ranks mean a larger batch: compare the training, not only the rate.
# - Two numbers, latency and bandwidth, explain most of what a network costs.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. Two ranks reach 1.9 times the samples/s of one. What was the price?**
#
# <details><summary>None, it is the same training</summary>
#
# **No.** Only if the batch of each rank is half as large.
#
# </details>
#
# <details><summary>The batch of all ranks together is twice as large</summary>
#
# **Right.** Each rank has its own batch. Unless you halve it, an optimizer step sees twice as many samples, which changes training.
#
# </details>
#
# <details><summary>The model is split between them</summary>
#
# **No.** With data parallelism each rank has a copy of the whole model.
#
# </details>
#
# **2. All-reduce takes 20 ms alone, and the step became 2 ms longer. Why not 20?**
#
# <details><summary>The measurement is wrong</summary>
#
# **No.** The two numbers measure different things: the whole of it, and the exposed part.
#
# </details>
#
# <details><summary>Most of it runs while backward still computes</summary>
#
# **Right.** DDP sends the gradients of the last layers while those of the first are still being computed.
#
# </details>
#
# <details><summary>Gradients are compressed</summary>
#
# **No.** Not by default: a communication hook does it.
#
# </details>

# %% [markdown]
# ## Exercise
#
# Compute the scaling efficiency of `2 ranks` yourself, from the two runs.

# %% tags=["exercise"]
answer = None  # a number, computed from one and two

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    assert abs(answer - panel.efficiency("1 rank", "2 ranks")) < 0.005, (
        "Divide the throughput per rank by that of one rank alone"
    )
    print(f"Right: {answer:.0%}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = two.samples_per_s.value / 2 / one.samples_per_s.value
# ```
#
# </details>

# %% [markdown]
# Next: [18 memory](18_memory.ipynb)
