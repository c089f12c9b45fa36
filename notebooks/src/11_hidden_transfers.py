# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Hidden transfers
#
# **Which lines make the host wait, and where should a layer live?** *20 minutes. Needs: nothing special; your own waits cost time only on a GPU.*
#
# *After this you can find the lines of a loop that stop the host, say what each costs, and keep them out.*
#
# The host launches kernels and runs ahead of the device. A line that *reads* a value, or needs a size that only the device knows, stops it until the stream has finished all earlier work. So does a copy to the device without `non_blocking`, even from pinned memory: the host waits for the copy. With it, the host goes on at once if the memory is pinned; if not, it waits until the driver has staged the data, and perhaps for earlier kernels. Lines after which the device waits for new work:
#
# `.item()` · `print(loss)` · `if loss > 1` · `.cpu()` · `x[mask]` · `nonzero()` · `torch.tensor(n, device="cuda")`

# %%
from perfkit import notebook as pk

pk.lanes("hidden-waits")

# %% [markdown]
# ## Find them
#
# How many times does the host wait in one step of this loop?

# %%
import torch
from torch import nn

import perfkit

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(4, 32, 16, device=device)
targets = torch.randint(4, (4, 32), device=device)


def train():
    total = 0.0
    for x, y in zip(inputs, targets, strict=True):
        is_real = y > 0
        loss = nn.functional.cross_entropy(model(x)[is_real], y[is_real])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    return total


with perfkit.detect_syncs() as places:
    train()
for place in places:
    print(f"{place.count / len(inputs):g} in each step: {place.call}\n   {place.fix}")


# %% [markdown]
# Now without them: `ignore_index` leaves padding out of the mean, and the total stays on the device.


# %%
def train_without_waiting():
    total = torch.zeros((), device=device)
    for x, y in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(model(x), y, ignore_index=0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
    return total


with perfkit.detect_syncs() as places:
    train_without_waiting()
assert not places

# %% [markdown]
# Leave that `assert` in a test, and the next stray `print(loss)` fails it. Even without a GPU, perfkit finds nearly all waits, including the one that a mask causes in backward, but not copies such as `torch.tensor(n, device="cuda")`. On a GPU, `torch.cuda.set_sync_debug_mode("warn")` is PyTorch's own detector.
#
# ## What a wait costs
#
# The next cell times a loop that reads the loss in every step, and one that reads it at the end. Without a GPU, a thread stands in for it, and sleeps for as long as kernels would run.

# %%
import runpy

from perfkit import machine

script = runpy.run_path(str(machine.shipped("scripts/hidden_waits.py")))


def train_timed(timed, reads, steps=30):
    for _ in range(steps):
        timed.fetch()  # the host makes the next batch
        timed.launch()  # the device gets the kernels of a step
        if reads:
            timed.item()  # the line in question
    timed.item()


sides = {}
for title, reads in (("read in every step", True), ("read at the end", False)):
    timed = script["Device"]()  # a GPU, or a thread; it notes what ran when
    train_timed(timed, reads)
    print(f"{title}: {timed.step_s * 1e3:.1f} ms a step")
    sides[title] = timed.two_steps()

pk.lanes(sides)

# %% [markdown]
# If the loop reads nothing, a step takes as long as fetching or the kernels, whichever is longer; otherwise, the sum of both. So the distributed guide tells you to fetch results every 30 steps.
#
# ## The placement guide's example
#
# In the guide, for PaddlePaddle, each operator has a device. `shape` leaves its output on the CPU. `slice` runs on the GPU and pulls it up; `crop_tensor` needs it on the CPU and pulls it down: 20 synchronous copies in 10 iterations, 70% of all copy time. The fix: run the tiny `slice` on the CPU.
#
# The guide's totals fall from 26.6 to 14.5 ms, 1.83 times, but most of both are first calls. The fix is worth 1.35 times ([14](14_checking_the_articles.ipynb)). In PyTorch, the same mistake is a tensor that goes to the CPU and back.
#
# ## Where should a layer live?
#
# Its second example is a table that does not fit: 10,000,000 × 150 float32 values take 5.59 GiB. Each step needs few rows, so the table can stay on the host, and only they are copied:

# %%
table = nn.Embedding(10_000, 150, sparse=True)  # on the host; a small one here
body = nn.Linear(150, 4).to(device)
on_host = torch.optim.SGD(table.parameters(), lr=0.1)
body(table(torch.tensor([3, 14, 15])).to(device)).sum().backward()
on_host.step()
print(
    f"{table.weight.nbytes:,} bytes stay; {table.weight.grad.coalesce().values().nbytes:,} bytes of gradient"
)

# %% [markdown]
# Without `sparse=True`, its gradient is as large as the table. SGD, Adagrad and SparseAdam accept sparse gradients; AdamW raises an error. Each step now waits twice, for the rows and for their gradient. So a table that fits stays on the device.

# %% [markdown]
# ### Puzzle ★: a loop without hidden waits
#
# *About 10 minutes.*

# %%
pk.puzzle("waits")


# %%
def train(model, optimizer, batches):
    total, count = 0.0, 0
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        count += 1
        print(f"step {count}: {loss}")
    return total / count


pk.puzzle("waits").check(train)

# %% [markdown]
# ### Puzzle ★★: a mask without a wait
#
# *About 15 minutes.*

# %%
pk.puzzle("mask")


# %%
def masked_loss(logits, targets, mask):
    return F.cross_entropy(logits[mask], targets[mask])


pk.puzzle("mask").check(masked_loss)

# %% [markdown]
# ## Check yourself
#
# **`loss.item()` takes 30 ms in a profile of the host. Where does that time go?**
#
# <details><summary>Answer</summary>
#
# Into waiting: the kernels that were still queued must end before the value is there.
#
# </details>
#
# **A fix removes copies that took 4% of the time, and the total falls by 45%. What do you do first?**
#
# <details><summary>Answer</summary>
#
# Leave the first calls out, and compare row by row.
#
# </details>
#
# **Does a wait always matter?**
#
# <details><summary>Answer</summary>
#
# Not while the step waits for data anyway, and not outside the loop. Log every hundredth step.
#
# </details>
#
# Next: [12 kernels and shapes](12_kernels_and_shapes.ipynb)
