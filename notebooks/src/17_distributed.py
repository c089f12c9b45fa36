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
# **How much faster are two processes that train together, and what would 1,024 be?**
#
# *About 3 minutes at the preset `quick` on two cores. Needs: two cores, or two GPUs.*
#
# With DistributedDataParallel each *rank* is a process with a copy of the model and its own part of the data. After backward the ranks average their gradients, so the copies stay equal. That averaging is traffic: what of it is hidden behind backward costs nothing, what is *exposed* makes the step longer.
#
# perfkit starts the ranks itself (gloo on a CPU, NCCL on GPUs), with the same program. The switches of this chapter: `ranks`, `no_sync` with `accumulation`, `bucket_cap_mb`, `gradient_as_bucket_view`, `static_graph`, `gradient_compression`, `infiniband`, `cpu_threads` for each rank, `log_every`.
#
# ## Predict
#
# Two ranks with one thread each, against one rank with one thread: how many times the samples per second?

# %%
my_guess = 2.0

# %%
from perfkit import notebook as pk

together = {"ranks": 2, "cpu_threads": 1}
panel = pk.RecipePanel(
    {
        "1 rank": {"cpu_threads": 1},
        "2 ranks": together,
        "accumulate 4": {**together, "accumulation": 4},
        "accumulate 4, no_sync": {**together, "accumulation": 4, "no_sync": True},
        "bf16 gradients": {**together, "gradient_compression": "bf16"},
        "buckets as views": {**together, "gradient_as_bucket_view": True, "static_graph": True, "bucket_cap_mb": 1},
    },
    workload="perfkit.workloads.bottlenecks:HostBound",
)
panel

# %%
panel.run()

# %%
panel.table()

# %%
one, two = panel["1 rank"], panel["2 ranks"]
print(f"You guessed {my_guess:g}x; measured: {two.samples_per_s.median / one.samples_per_s.median:.2f}x.")
print(f"Scaling efficiency: {panel.efficiency('1 rank', '2 ranks'):.0%}")

# %%
panel.plot("throughput")

# %% [markdown]
# ## Where a step goes
#
# *Averaging alone* is what the collectives take with nothing beside them; *exposed* is what the step became longer by; the rest was hidden. A rank that computes longer than the median one is a *straggler*: all others wait for it.

# %%
panel.communication()

# %% [markdown]
# ## Is it the same training?
#
# Two ranks with a batch of *n* each must have the losses of one rank with a batch of 2 *n*. (Batch normalisation would break that, as each rank sees its own batch; `nn.SyncBatchNorm` mends it.)

# %%
panel.parity("2 ranks")

# %% [markdown]
# ## What would more ranks give?
#
# The α–β model of a ring: 2 (n − 1) α + 2 (n − 1)/n · bytes/β, with latency α and bandwidth β as measured between these ranks. Its prediction for two ranks can be checked against the table above.

# %%
panel.forecast("2 ranks")

# %% [markdown]
# The same training over another network, whose latency and bandwidth are given (here those of a fast data-centre link):

# %%
panel.forecast("2 ranks", latency_s=5e-6, bytes_per_s=12.5e9)

# %% [markdown]
# ## On a cluster
#
# Export the script with `perfkit export --set ranks=16 > train.py`, then on every machine:

# %%
pk.torchrun(16, nodes=2)

# %% [markdown]
# To measure across machines, give `perfkit run --ranks 16 --nodes 2 --node-rank 0 --rendezvous HOST:29500` on the first, and `--node-rank 1` on the second. Environment variables reach the ranks: `NCCL_DEBUG=INFO` says which network is used, `NCCL_IB_DISABLE=1` (the switch `infiniband=false`) falls back from InfiniBand to TCP, `OMP_NUM_THREADS` sets threads per rank.
#
# ## The levers, as the article lists them
#
# Collectives with one process per device · CPU threads per process (try 1 and 4) · reading results every 30 steps, not in each (`log_every`) · RDMA with a TCP fall-back · larger batches, or accumulated ones before communicating (`no_sync`) · double buffering, uint8 batches, pinned memory in the reader (chapters 02 to 05) · an endless reader · mixed precision. Its advice: verify the gain of each one.
#
# ## When it does not help
#
# - On one CPU the ranks share cores that one process could use by threads.
# - A small step spends its time averaging.
# - All ranks together take a larger batch: fewer optimizer steps an epoch, which changes training.
#
# ## Exercise
#
# Compute the scaling efficiency of `2 ranks` yourself, from the two runs.

# %% tags=["exercise"]
answer = None  # use one and two

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    assert abs(answer - panel.efficiency("1 rank", "2 ranks")) < 0.005, (
        "Per rank, over what one rank does alone"
    )
    print(f"Right: {answer:.0%}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = two.samples_per_s.median / 2 / one.samples_per_s.median
# ```
#
# </details>

# %% [markdown]
# Next: [18 memory](18_memory.ipynb)
