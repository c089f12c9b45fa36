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
# *After this you can start training on several GPUs correctly, and say what limits its scaling.*
#
# With `DistributedDataParallel`, each *rank* is a process with a copy of the model, its own loader and its own part of the data. A `DistributedSampler` chooses the part; call `sampler.set_epoch(epoch)`, or every epoch has the same order. During backward, the ranks average their gradients with all-reduce. What overlaps with backward is nearly free; the *exposed* part isn't.

# %%
import matplotlib.pyplot as plt

from perfkit import machine
from perfkit import notebook as pk
from perfkit.additions.ranks.panel import watch_ranks
from perfkit.show import style

pk.lanes("buckets")

# %% [markdown]
# A script for several ranks needs these lines, and two that you write below:

# %%
script = "data/scripts/several_ranks.py"
adds = ("set_device(", "init_process_group", "DistributedDataParallel(", "destroy")
for line in machine.shipped("scripts/several_ranks.py").read_text(encoding="utf-8").splitlines():
    if any(name in line for name in adds):
        print(line.strip())

# %% [markdown]
# ## Your lines: a part for each rank
#
# Here, every rank trains on all samples. Add the two lines. (Pass `num_replicas=ranks, rank=rank`; a launched script knows them.)

# %% tags=["exercise"]
from torch.utils import data


def batches(dataset, rank, ranks, epochs):
    """What a rank trains on, epoch after epoch."""
    sampler = None  # edit
    loader = data.DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(epochs):
        pass  # edit
        yield from loader


# %% tags=["check"]
samples, seen = range(24), []
for rank in (0, 1):
    seen.append([int(one) for batch in batches(samples, rank, ranks=2, epochs=2) for one in batch])
if len(seen[0]) == 2 * len(samples):
    print("Your turn: each rank sees all 24 samples. Edit the marked lines above, and run both cells again.")
else:
    first, second = [drawn[:12] for drawn in seen], [drawn[12:] for drawn in seen]
    for epoch in (first, second):
        assert sorted(epoch[0] + epoch[1]) == [*samples], (
            "In each epoch, each sample once, on one of the ranks"
        )
    assert first != second, "Both epochs have the same order: tell the sampler which epoch it is"
    print("Right: each epoch deals the samples out differently")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# sampler = data.DistributedSampler(dataset, num_replicas=ranks, rank=rank)
#
# sampler.set_epoch(epoch)
# ```
#
# </details>
#
# ## Scaling
#
# `torchrun` starts the script with one rank and with two, in turn (in a terminal: `perfkit scale train.py`).
#
# Guess: by what factor do samples/s grow from one rank to two?

# %%
scaling = pk.scale(script, ranks=(1, 2), budget_s=9)
scaling

# %% [markdown]
# Two GPUs of one machine come close to twice the rate if a step is much longer than its all-reduce. On two CPU cores expect an efficiency of 50 to 95%.
#
# If the loss is a mean over equal parts, two ranks with batch *n* train as one with batch 2*n*: halve it (`--global-batch`) to train the same. Batch norm sees each rank's part only (`nn.SyncBatchNorm` fixes that).
#
# ## One rank is late
#
# All ranks wait for the slowest. *Guess: which one waits longer in the table, the late rank or the other?*

# %%
late = watch_ranks(script, arguments=["--late-ms", "20"], budget_s=5)
late

# %% [markdown]
# The first sentence names rank and line. There, `--late-ms` makes it sleep. Without the sleep, the larger bound holds:

# %%
mended = watch_ranks(script, budget_s=5)


def bars(rank):
    """The parts of a rank's step, one after the other."""
    waiting, forward, backward, optimizer, own = rank.parts
    parts = [("load", waiting), ("own", own), ("compute", forward + backward)]
    parts += [("wait", rank.for_others), ("exchange", rank.exposed), ("compute", optimizer)]
    found, end = [], 0.0
    for kind, seconds in parts:
        found.append((end, end + 1e3 * seconds, kind))
        end += 1e3 * seconds
    return found


watched = {"late": late.found.lateness, "mended": mended.found.lateness}
rates = [sum(rank.samples_per_s for rank in each.spent) for each in watched.values()]
print(
    f"Rank that is late now: {watched['mended'].late}. Samples per second: {rates[1] / rates[0]:.1f} times as many"
)
pk.lanes(
    {
        f"{name}, parts added up": {f"rank {rank.rank}": bars(rank) for rank in each.spent}
        for name, each in watched.items()
    }
)

# %% [markdown]
# (More than the bound? Two launches differ, too. `perfkit referee old.py new.py -- torchrun --nproc-per-node 2` alternates them.)
#
# ## Your line: equal work
#
# These texts are sorted by length, and each rank gets a half. Give every rank as many texts and about as many tokens:

# %% tags=["exercise"]
lengths = [10 + number // 4 for number in range(2_000)]  # tokens of each text


def part(rank, ranks):
    """The numbers of a rank's texts."""
    each = len(lengths) // ranks
    return range(rank * each, (rank + 1) * each)  # edit


# %% tags=["check"]
for ranks in (2, 4):
    parts = [part(rank, ranks) for rank in range(ranks)]
    tokens = [sum(lengths[number] for number in texts) for texts in parts]
    longer = ranks * max(tokens) / sum(tokens)  # on average, a step takes as long as the slowest rank's
    print(f"{ranks} ranks: tokens {tokens}, so a step takes {longer:.2f} times as long as with equal work")
if longer > 1.05:
    print("Your turn: edit the marked line above, and run both cells again.")
else:
    assert sorted(number for texts in parts for number in texts) == [*range(2_000)], "Each text, once"
    assert len({len(texts) for texts in parts}) == 1, "As many texts for each rank"
    print("Right: equal work in total. In one step, lengths may still differ: batch similar texts together.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# return range(rank, len(lengths), ranks)
# ```
#
# `DistributedSampler` deals samples out like this.
#
# </details>
#
# ## Why isn't all of it exposed?
#
# DDP collects gradients in *buckets* (`bucket_cap_mb`, 25 by default; then the first one has only 1 MB) and sends each as soon as it is full, while backward computes the layers before it. With one large bucket, nothing overlaps; small ones pay the latency more often. The picture at the top in numbers, for 40 ms of backward and 100 MB:

# %%
LATENCY_MS, MS_PER_MB, BACKWARD_MS, MB = 0.4, 0.16, 40, 100


def exposed_ms(bucket_mb):
    """Each bucket is averaged once it is full, and the one before it is done."""
    end = 0.0
    for number in range(1, MB // bucket_mb + 1):
        start = max(end, BACKWARD_MS * number * bucket_mb / MB)
        end = start + LATENCY_MS + MS_PER_MB * bucket_mb
    return end - BACKWARD_MS


for bucket_mb in (1, 5, 25, 100):
    print(f"buckets of {bucket_mb:3} MB: {exposed_ms(bucket_mb):4.1f} ms exposed")

# %% [markdown]
# With accumulation (`no_sync`) the ranks average once every four batches:

# %%
merged = watch_ranks(script, arguments=["--accumulate", "4"], budget_s=5)
for name, seen in {"each batch": mended, "four batches": merged}.items():
    rank = seen.found.lateness.spent[0]
    exposed_s = rank.exposed / (rank.samples_per_s * seen.found.lateness.step_s)
    print(f"averaged once for {name}: {1e6 * exposed_s:.1f} µs exposed per sample")


# %% [markdown]
# Not a quarter? The gradients are sent once instead of four times, but only one backward pass can hide that.
#
# ## Why not 1,024?
#
# A ring all-reduce of *n* ranks takes 2(n − 1)·α + 2(n − 1)/n · bytes/β, with a link's latency α (5 µs) and bandwidth β (12.5 GB/s, 100 Gbit/s). For 100 MB that nothing overlaps:


# %%
def ring_s(ranks, size=100e6, latency_s=5e-6, bytes_per_s=12.5e9):
    return 2 * (ranks - 1) * latency_s + 2 * (ranks - 1) / ranks * size / bytes_per_s


counts = [2**power for power in range(11)]
for step_s, line in ((0.2, "o-"), (0.02, "s--")):
    efficiencies = [step_s / (step_s + ring_s(count)) for count in counts]
    name = f"computing takes {1e3 * step_s:.0f} ms a step"
    plt.plot(counts, efficiencies, line, color=style.BLUE, label=name)
plt.xscale("log", base=2)
plt.ylim(0, 1.05)
plt.xlabel("ranks")
plt.ylabel("scaling efficiency")
plt.legend()
plt.show()

# %% [markdown]
# Short steps lose most between one and four ranks; from 16 on each sends almost the same bytes. Only the latency still grows: at 1,024 ranks, 2 · 1,023 · 5 µs is 10 ms, half a short step. (There NCCL prefers trees, whose latency grows with log n.)
#
# On each of two machines with eight GPUs:
#
# ```bash
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# From [the distributed guide's list](../docs/articles.md#the-distributed-guide):
#
# - torchrun sets `OMP_NUM_THREADS` to 1 by default: try cores ÷ ranks, less the loaders' workers.
# - Without RDMA, NCCL silently falls back to TCP. `NCCL_DEBUG=INFO` says which one it uses.

# %% [markdown]
# ### Puzzle ★★: average once per step
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
# ## Check yourself
#
# **All-reduce takes 20 ms alone, and the step became 2 ms longer. Why not 20?**
#
# <details><summary>Answer</summary>
#
# Most of it runs while backward still computes.
#
# </details>
#
# **Two ranks train twice as fast. Is it the same training?**
#
# <details><summary>Answer</summary>
#
# Not unless you halve the batch.
#
# </details>
#
# **Rank 3 hardly waits for others. Good news?**
#
# <details><summary>Answer</summary>
#
# No: it is the late one, and all others wait for it.
#
# </details>
#
# Next: [14 checking the articles](14_checking_the_articles.ipynb)
