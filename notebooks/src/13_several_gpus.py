# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13 · Several GPUs
#
# **How well does training scale from one process to two, and why not to 1,024?** *20 minutes. Needs: two GPUs; with fewer, two CPU cores stand in.*
#
# With `DistributedDataParallel`, each *rank* is a process with its own copy of the model, its own loader and its own part of the data. During backward, the ranks average their gradients with all-reduce. Communication that overlaps with backward is free; the *exposed* part lengthens the step.
#
# Guess: by what factor do samples/s grow from one rank to two? (On two cores, each rank gets one thread.)

# %%
import matplotlib.pyplot as plt
import torch

from perfkit import notebook as pk
from perfkit.additions.ranks.scaling import efficiency, forecast

several = torch.cuda.device_count() > 1
both = {"ranks": 2} if several else {"ranks": 2, "cpu_threads": 1}
panel = pk.RecipePanel(
    {
        "1 rank": {} if several else {"cpu_threads": 1},
        "2 ranks": both,
        "accumulate 4": both | {"accumulation": 4},
    },
    workload="tiny_gpt",
    device="cuda" if several else "cpu",
)
panel

# %%
panel.run()

# %%
print(f"Scaling efficiency: {efficiency(panel['1 rank'], panel['2 ranks']):.0%}")
panel.table("Communication")

# %% [markdown]
# *Alone* is an all-reduce with nothing else running. *Exposed* is how much longer the step became; on cores that ranks share it can be more than the averaging, because the ranks also slow each other. A *straggler* computes for longer than the others, and all wait for it.
#
# **What to expect.** Efficiency of 90% and more on two GPUs of one machine with a real model. On two CPU cores 50 to 95%, and below that if anything else runs. *Accumulate 4* averages once for four batches (`no_sync` skips it for the first three), in a step of four times the samples.
#
# ## Is it the same training?
#
# Two ranks with batch *n* train as one rank with batch 2*n*: twice the samples in a step, which changes training unless you halve the batch. Batch norm sees each rank's part (`nn.SyncBatchNorm` mends that).

# %%
panel.parity("2 ranks")

# %% [markdown]
# ## Why not 1,024?
#
# A ring all-reduce of n ranks takes 2(n − 1)·α + 2(n − 1)/n · bytes/β, with the latency α and bandwidth β measured between these ranks. For many ranks it is pessimistic: NCCL uses trees, whose latency grows with log n.

# %%
here = forecast(panel["2 ranks"])
over_a_link = forecast(panel["2 ranks"], latency_s=5e-6, bytes_per_s=12.5e9)
plt.plot(*zip(*here.items(), strict=True), "o-", label="as measured here")
plt.plot(*zip(*over_a_link.items(), strict=True), "s--", label="over a data-centre link: 5 µs, 12.5 GB/s")
plt.xscale("log", base=2)
plt.xticks([*here], [*here])
plt.ylim(0, 1.05)
plt.xlabel("ranks")
plt.ylabel("scaling efficiency, forecast")
plt.legend()
plt.show()

# %% [markdown]
# The first part, the latency, grows with every rank, whatever the size of the model. With 5 µs a hop, 1,024 ranks in a ring spend 2 · 1,023 · 5 µs, 10 ms, on it in each step; the model has to compute for much longer than that.

# %% [markdown]
# On a cluster, `perfkit export --set ranks=16 > train.py`, then on each of two machines with eight GPUs:
#
# ```bash
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# ## The distributed guide's list
#
# Its advice: check each lever, and measure its gain. What it is today:
#
# | the guide (PaddlePaddle) | PyTorch today |
# |---|---|
# | collectives (NCCL2), not parameter servers | the only way that `DistributedDataParallel` has |
# | one process per device; ParallelGraph: one process, many GPUs | DDP; `nn.DataParallel` is the other way, and slower. Each process also has its own loader, so reading scales |
# | `FLAGS_sync_nccl_allreduce=1` *helps* in ParallelGraph | no counterpart: DDP overlaps all-reduce with backward |
# | executor threads, 1 or 4: how many *operators* are scheduled at once | none in eager mode. `OMP_NUM_THREADS` is another thing: threads inside one operator; torchrun sets 1 |
# | pre-allocate device memory | the allocator keeps what it freed ([04](04_batch_size.ipynb)) |
# | drop scopes, fetch results every 30 steps | tensors are freed at once; fetch rarely ([11](11_hidden_transfers.ipynb)) |
# | RDMA with TCP to fall back on | `NCCL_DEBUG=INFO` says which; `NCCL_IB_DISABLE=1` forces TCP |
# | normalise on the GPU, uint8 reader | [05](05_uint8_copy.ipynb) |
# | batch merge | `accumulation`; DDP's `no_sync` around all batches but the last |
# | double buffer, pinned memory | [03](03_pinning.ipynb) |
# | endless reader | [02](02_data_loading.ipynb): `persistent_workers`, an endless sampler |
# | mixed precision, constant loss scale | [06](06_amp.ipynb): `GradScaler` adapts it |

# %% [markdown]
# **All-reduce takes 20 ms alone, and the step became 2 ms longer. Why not 20?**
#
# <details><summary>The measurement is wrong</summary>
#
# **No.** The two numbers measure different things.
#
# </details>
#
# <details><summary>Most of it runs while backward still computes</summary>
#
# **Right.** DDP sends the gradients of the last layers while those of the first are being computed.
#
# </details>
#
# <details><summary>Gradients are compressed</summary>
#
# **No.** Not by default: a communication hook does it.
#
# </details>

# %% [markdown]
# ### Puzzle ★★: average once, not for each part
#
# *About 15 minutes.*

# %%
pk.puzzle("no_sync")


# %%
def train_step(model, optimizer, parts):
    for inputs, targets in parts:
        loss = F.cross_entropy(model(inputs), targets) / len(parts)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


pk.puzzle("no_sync").check(train_step)

# %% [markdown]
# Next: [14 checking the articles](14_checking_the_articles.ipynb)
